"""Damage ledgers and call everything on them: python -m tests.fuzz [--minutes M] [--seed S].

`--without WORDS` removes the guards whose names have these words from a copy of the product, and
searches that copy: a search that finds nothing proves little unless it finds what was broken on
purpose.
"""

from __future__ import annotations

import argparse
import secrets
import subprocess
import sys
import warnings

from tests.fuzz.mutations import KINDS
from tests.fuzz.search import search
from tests.guards.guard import Guard, copied_product
from tests.guards.listed import GUARDS
from tests.mutants.change import ROOT, environment_of


def main() -> int:
    """Run the command line."""
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument(
        "--without", action="append", default=[], metavar="WORDS", help="guards to take away"
    )
    parser = argparse.ArgumentParser(description=__doc__, parents=[first], allow_abbrev=False)
    parser.add_argument("--minutes", type=float, default=1.0, help="how long to search")
    parser.add_argument("--seed", type=int, help="what to draw from; by default a fresh one")
    parser.add_argument("--rounds", type=int, help="how many rounds, if not as many as possible")
    parser.add_argument("--rounds-from", type=int, default=1, metavar="K", help="the first round")
    parser.add_argument("--only", choices=sorted(KINDS), help="the only kind of mutation")
    parser.add_argument("--stop", action="store_true", help="end at the first violation")
    given = parser.parse_args()
    if given.without:
        return _search_without(given.without, first.parse_known_args()[1])
    seed = secrets.randbelow(10**9) if given.seed is None else given.seed
    print(f"fuzz: seed {seed}", flush=True)
    # Warnings to a user are not findings, and each would be shown only once.
    warnings.simplefilter("ignore")
    found = search(
        seed,
        minutes=given.minutes,
        first=given.rounds_from,
        rounds=given.rounds,
        only=given.only,
        stop=given.stop,
    )
    print(found.summary(seed))
    return 1 if found.violations else 0


def _search_without(words: list[str], arguments: list[str]) -> int:
    """Search a copy of the product that lacks some guards, in a process of its own.

    Raises:
        SystemExit: No guard has such a name.
    """
    chosen: list[Guard] = [item for item in GUARDS if any(text in item.name for text in words)]
    if not chosen:
        raise SystemExit(f"no guard has such a name: {', '.join(words)}")
    with copied_product() as source:
        for guard in chosen:
            guard.take_away(source)
            print(f"without: {guard.name}", flush=True)
        command = [sys.executable, "-m", "tests.fuzz", *arguments]
        environment = environment_of(source)
        return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
