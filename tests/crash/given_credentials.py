"""Credentials from a file that a test replaces. Drivers and workers import it: no pytest here."""

from __future__ import annotations

import json
import os
from pathlib import Path

VARIABLE = "HOLDFAST_TEST_CREDENTIALS"


def from_file() -> dict[str, str]:
    """Return the file's current content."""
    found: dict[str, str] = json.loads(Path(os.environ[VARIABLE]).read_text(encoding="utf-8"))
    return found
