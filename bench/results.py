"""The last result of each benchmark, kept in the repository with the machine that it is from."""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Mapping
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
# An engine that fails may name files of the machine: of their paths only the last part is kept.
_FOLDERS = re.compile(r"(?:\bfile:/{0,2}|(?<![\w.:/]))/(?:[\w.+@-]+/)+")


def machine() -> dict[str, Any]:
    """Return what the figures depend on, and nothing that identifies the machine."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cores": os.cpu_count(),
        "memory_gb": round(memory_bytes / 1e9, 1),
        "python": platform.python_version(),
        "pyspark": version("pyspark"),
        "date": datetime.now(timezone.utc).date().isoformat(),
    }


def keep(name: str, figures: Mapping[str, Any], folder: Path = RESULTS) -> str:
    """Keep a benchmark's result in place of its last one; return it as one line of JSON."""
    line = json.dumps({"name": name, **figures, "machine": machine()})
    line = _FOLDERS.sub(".../", line)
    folder.mkdir(parents=True, exist_ok=True)
    # Indented, so that a change of one figure is a change of one line.
    (folder / f"{name}.json").write_text(json.dumps(json.loads(line), indent=1) + "\n")
    return line


def load(folder: Path = RESULTS) -> dict[str, dict[str, Any]]:
    """Return the results that are there, by the benchmark's name."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}


def part(result: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return a part of a result; empty if it is missing."""
    found = result.get(key)
    return found if isinstance(found, dict) else {}


def numbers(result: Mapping[str, Any], key: str) -> tuple[float, ...]:
    """Return a figure, or one per round; nothing if there is none."""
    found = result.get(key)
    each = found if isinstance(found, list) else [found]
    return tuple(float(number) for number in each if isinstance(number, int | float))
