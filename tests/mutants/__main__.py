"""Draw bugs at random, and show which no test notices: make mutate N=20 SEED=1."""

from __future__ import annotations

import argparse
import os
import secrets
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.guards.guard import product
from tests.mutants.change import Change
from tests.mutants.equivalent import EQUIVALENT, Equivalent
from tests.mutants.forks import Forks, Judge, Verdict, with_collected
from tests.mutants.operators import OPERATORS, Bug, Bugs
from tests.mutants.reach import Reach, recorded

_TESTS_MAX = 200
_UNREACHED = "SURVIVED: no test reaches it"


@dataclass(slots=True)
class _Search:
    """A number of bugs, drawn from a seed, and what became of each."""

    seed: int
    count: int
    jobs: int
    at_most: int
    bugs: Bugs
    reach: Reach
    drawn: set[tuple[object, ...]] = field(default_factory=set)
    killed: list[Bug] = field(default_factory=list)
    survived: list[tuple[Bug, str]] = field(default_factory=list)
    equivalent: list[tuple[Bug, str]] = field(default_factory=list)

    def run(self, forks: Forks) -> int:
        """Try the bugs; return the exit code."""
        forks.run((self._find(forks, number) for number in range(self.count)), self.jobs)
        for bug, reason in self.equivalent:
            print(f"\nthe same: {reason}\n{bug.change.diff()}")
        for bug, verdict in self.survived:
            print(f"\n{verdict} ({bug.operator})\n{bug.change.diff()}")
        print(f"\n{'operator':<20}killed  survived")
        killed = Counter(bug.operator for bug in self.killed)
        survived = Counter(bug.operator for bug, _ in self.survived)
        for name in OPERATORS:
            if killed[name] or survived[name]:
                print(f"{name:<20}{killed[name]:6}{survived[name]:10}")
        print(
            f"{len(self.survived)} of {len(self.killed) + len(self.survived)} bugs survived, "
            f"drawn with SEED={self.seed}"
        )
        return 1 if len(self.survived) > self.at_most else 0

    def _find(self, forks: Forks, number: int) -> Judge:
        """Draw until there is a bug that counts: the product can be imported with it."""
        for bug in self.bugs.draw(f"{self.seed} {number}"):
            key = bug.change.file, bug.change.after
            if key in self.drawn:
                continue
            self.drawn.add(key)
            if same := equivalent_to(bug.change):
                self.equivalent.append((bug, same.reason))
                continue
            tests = self.reach.tests_of(bug.change.file, bug.lines, _TESTS_MAX)
            tests = [test for test in tests if test in forks.items]
            if not tests:
                self._note(bug, _UNREACHED)
                return
            is_early = self.reach.is_run_at_import(bug.change.file, bug.lines)
            verdict = yield from forks.judged(bug.change, tests, is_fresh=is_early)
            if verdict.end != "error":
                self._note(bug, verdict)
                return

    def _note(self, bug: Bug, verdict: Verdict | str) -> None:
        print(f"{bug.change.name}: {verdict}", flush=True)
        if isinstance(verdict, Verdict) and verdict.is_noticed:
            self.killed.append(bug)
        else:
            self.survived.append((bug, str(verdict)))


def equivalent_to(change: Change) -> Equivalent | None:
    """Return the entry that says why a change changes nothing, if there is one."""
    lines = change.diff().splitlines()
    before = " ".join(line[1:].strip() for line in lines if line.startswith("-"))
    after = " ".join(line[1:].strip() for line in lines if line.startswith("+"))
    return next((same for same in EQUIVALENT if (same.before, same.after) == (before, after)), None)


def _arguments(given: argparse.Namespace) -> Sequence[str]:
    return ["-m", f"not ({given.without})", *given.tests] if given.without else given.tests


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tests", nargs="+", help="folders and files of tests")
    parser.add_argument("--without", help="markers of tests that are not run")
    parser.add_argument("--count", type=int, default=20, help="how many bugs")
    parser.add_argument("--seed", type=int, help="what to draw from; by default a fresh one")
    parser.add_argument("--only", default="", metavar="WORDS", help="in files whose path has these")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--at-most", type=int, default=sys.maxsize, help="fail if more of them survive"
    )
    parser.add_argument("--record", action="store_true", help="only record what tests reach")
    given = parser.parse_args()
    seed = secrets.randbelow(10**9) if given.seed is None else given.seed
    reach = recorded(_arguments(given), lanes=given.jobs)
    if given.record:
        return 0
    print(f"mutate: {given.count} bugs, drawn with SEED={seed}", flush=True)
    search = _Search(
        seed=seed,
        count=given.count,
        jobs=given.jobs,
        at_most=given.at_most,
        bugs=Bugs({file: text for file, text in product().items() if given.only in str(file)}),
        reach=reach,
    )
    return with_collected(_arguments(given), search.run)


if __name__ == "__main__":
    sys.exit(main())
