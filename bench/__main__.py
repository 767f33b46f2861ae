"""Run one benchmark by name; its last line is one JSON object, which is also kept."""

from __future__ import annotations

import importlib
import json
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
    name, *sizes = sys.argv[1:] or [""]
    if name not in known or not all("=" in size for size in sizes):
        print(f"usage: make bench NAME=<one of: {', '.join(known)}> ARGS=rows=…", file=sys.stderr)
        return 2
    given = {key: int(value) for key, _, value in (size.partition("=") for size in sizes)}
    figures = importlib.import_module(f"bench.{name.replace('-', '_')}").run(**given)
    # A result of other sizes is shown, and not kept.
    print(json.dumps({"name": name, **figures}) if given else keep(name, figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
