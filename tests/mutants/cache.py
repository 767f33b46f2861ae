"""Where results are kept from one run to the next, outside the repository."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return the folder that HOLDFAST_CACHE names, or the default one."""
    return Path(os.environ.get("HOLDFAST_CACHE") or Path.home() / ".cache" / "holdfast")
