"""Run one benchmark by name; its last line is one JSON object, which is also kept.

What follows the name is given to the benchmark, as texts.
"""

from __future__ import annotations

import importlib
import inspect
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
    if len(sys.argv) < 2 or sys.argv[1] not in known:  # noqa: PLR2004 - the program and a name.
        print(f"usage: make bench NAME=<one of: {', '.join(known)}>", file=sys.stderr)
        return 2
    name = sys.argv[1]
    run = importlib.import_module(f"bench.{name.replace('-', '_')}").run
    try:
        given = inspect.signature(run).bind(*sys.argv[2:])
    except TypeError:
        takes = [f"[{argument}]" for argument in inspect.signature(run).parameters]
        print(f"{name} takes: {' '.join(takes) or 'nothing'}", file=sys.stderr)
        return 2
    figures = run(*given.args)
    print(keep(name, figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
