"""Write docs/explanation/licences.md: the licence of each package that is installed with Holdfast.

Run it from the root of the repository, after `make lock` and `make setup`: `make licences`. Which
packages there are is in requirements/dev.txt; what their licences are, pip-licenses finds in what
is installed. `tests/unit/project/test_licences.py` compares the page with both.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import requires
from pathlib import Path

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "explanation" / "licences.md"
LOCK = ROOT / "requirements" / "dev.txt"
# The machine that the page is about, so that it is the same wherever it is made.
MACHINE = {
    "implementation_name": "cpython",
    "os_name": "posix",
    "platform_machine": "x86_64",
    "platform_python_implementation": "CPython",
    "platform_system": "Linux",
    "python_full_version": "3.11.9",
    "python_version": "3.11",
    "sys_platform": "linux",
}
EXTRAS = ("", "spark", "iceberg", "lance", "cli", "openlineage", "opentelemetry")
_LOCKED = re.compile(r"^([\w.-]+)==([^\s;\\]+)(?:\s*;\s*([^\\\n]+?))?\s*\\?$", re.MULTILINE)
_HEAD = """# Licences

Holdfast is licensed under Apache-2.0, and its archives contain no code of others. What is installed
with it has the licences below, as the packages themselves state them; the versions are those that
the tests run on, on Linux with Python 3.11. `make licences` writes this page, and
`tests/unit/project/test_licences.py` fails if it is out of date or if a package in the first table
has a licence with conditions on the code that uses it.

## Installed with `holdfast[spark,iceberg,lance,cli,openlineage,opentelemetry]`

"""
_DEVELOPMENT = """
## For development only

Not installed with Holdfast. They check, test and document it.

"""


def main() -> None:
    """Write the page."""
    PAGE.write_text(page())


def page() -> str:
    """Return the page's text."""
    shipped = installed_with_holdfast()
    found = licences()
    rows = {
        name: f"| `{name}` | {version} | {found[name]} |\n" for name, version in locked().items()
    }
    return (
        _HEAD
        + _table(row for name, row in rows.items() if name in shipped)
        + _DEVELOPMENT
        + _table(row for name, row in rows.items() if name not in shipped)
    )


def _table(rows: Iterator[str]) -> str:
    return "| package | version | licence |\n|---|---|---|\n" + "".join(rows)


def locked() -> dict[str, str]:
    """Return the version of each package that `make setup` installs on the page's machine."""
    return {
        canonicalize_name(name): version
        for name, version, marker in _LOCKED.findall(LOCK.read_text())
        if not marker or Marker(marker).evaluate(MACHINE)
    }


def licences() -> dict[str, str]:
    """Return what pip-licenses finds about each installed package.

    Raises:
        SystemExit: A package does not state its licence.
    """
    command = [sys.executable, "-m", "piplicenses", "--with-system", "--format=json"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    rows: list[dict[str, str]] = json.loads(printed)
    found: dict[str, str] = {canonicalize_name(row["Name"]): row["License"] for row in rows}
    silent = [name for name in locked() if found.get(name, "UNKNOWN") == "UNKNOWN"]
    if silent:
        raise SystemExit(f"no licence is known of {', '.join(silent)}: run `make setup` first")
    return found


def installed_with_holdfast() -> set[str]:
    """Return the packages that the wheel and its extras need, directly or not."""
    found: set[tuple[str, str]] = set()
    left = [("holdfast", extra) for extra in EXTRAS]
    while left:
        name, extra = left.pop()
        if (name, extra) in found:
            continue
        found.add((name, extra))
        for line in requires(name) or ():
            needed = Requirement(line)
            if needed.marker is None or needed.marker.evaluate({**MACHINE, "extra": extra}):
                of = canonicalize_name(needed.name)
                left += [(of, more) for more in ("", *needed.extras)]
    return {name for name, _ in found} - {"holdfast"}


if __name__ == "__main__":
    main()
