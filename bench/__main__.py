"""Run one benchmark by name; its last line is one JSON object, which is also kept."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from bench.results import keep


def main() -> int:
    """Run the benchmark that the command line names."""
    here = Path(__file__).parent
    known = sorted(
        path.stem.replace("_", "-")
        for path in here.glob("*.py")
        if "\ndef run(" in path.read_text()
    )
    if len(sys.argv) != 2 or sys.argv[1] not in known:  # noqa: PLR2004 - the program and one name.
        print(f"usage: make bench NAME=<one of: {', '.join(known)}>", file=sys.stderr)
        return 2
    name = sys.argv[1]
    figures = importlib.import_module(f"bench.{name.replace('-', '_')}").run()
    print(keep(name, figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
