"""Run one benchmark by name; its last line is one JSON object, which is also kept.

What follows the name is given to the benchmark, as texts.
"""

from __future__ import annotations

import importlib
import inspect
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
    if len(sys.argv) < 2 or sys.argv[1] not in known:  # noqa: PLR2004 - the program and a name.
        print(f"usage: make bench NAME=<one of: {', '.join(known)}> ARGS=…", file=sys.stderr)
        return 2
    name, *given = sys.argv[1:]
    run = importlib.import_module(f"bench.{name.replace('-', '_')}").run
    takes = inspect.signature(run, eval_str=True)
    named = dict(text.split("=", 1) for text in given if "=" in text)
    try:
        chosen = takes.bind(*(text for text in given if "=" not in text), **named).arguments
    except TypeError:
        words = [f"[{argument}]" for argument in takes.parameters]
        print(f"{name} takes: {' '.join(words) or 'nothing'}", file=sys.stderr)
        return 2
    kinds = {argument: of.annotation for argument, of in takes.parameters.items()}
    figures = run(**{argument: kinds[argument](value) for argument, value in chosen.items()})
    # A result of other sizes is shown, and not kept.
    print(json.dumps({"name": name, **figures}) if given else keep(name, figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
