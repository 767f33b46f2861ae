"""Run many histories: python -m tests.simulation N [--seed S] [--without GUARD | --trace SEED]."""

from __future__ import annotations

import argparse
import os
import sys

from tests.simulation.guards import GUARDS
from tests.simulation.search import search, show


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("histories", type=int, nargs="?", default=20_000)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--without", choices=sorted(GUARDS), help="take one guard away")
    parser.add_argument("--guards", action="store_true", help="take each away in turn")
    parser.add_argument("--trace", type=int, help="print this seed's history and end")
    given = parser.parse_args()
    if given.trace is not None:
        show(given.trace, given.without, is_shrunk=True)
        return 0
    if given.guards:
        silent = []
        for guard in GUARDS:
            found = search(given.seed, given.histories, guard, given.jobs)
            print(f"without {guard!r}: {found and (found.seed, found.wrong[0])}", flush=True)
            silent += [] if found else [guard]
        print(f"{len(GUARDS) - len(silent)} of {len(GUARDS)} found; not found: {silent}")
        return 0
    bad = search(given.seed, given.histories, given.without, given.jobs)
    if bad is None:
        print("no violation")
        return 0
    show(bad.seed, given.without, is_shrunk=True)
    print(f"again: make simulate ARGS='--trace {bad.seed}'")
    return 1


if __name__ == "__main__":
    sys.exit(main())
