"""Split the options that a test passes into those of `hf.Run` and those of the write."""

from __future__ import annotations

import inspect
from typing import Any

import holdfast as hf

RUN_WIDE = frozenset(inspect.signature(hf.Run).parameters) - {"run_id", "store", "store_options"}


def run_wide(options: dict[str, Any]) -> dict[str, Any]:
    """Take the options of `hf.Run` out of a test's, and return them."""
    return {name: options.pop(name) for name in sorted(RUN_WIDE & options.keys())}
