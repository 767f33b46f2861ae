"""Remove each guard, and show that the test named with it fails: make guards."""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import secrets
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.guards.guard import Guard
from tests.guards.listed import GUARDS
from tests.mutants.cache import cache_folder
from tests.mutants.forks import Forks, Judge, with_collected

# Which test noticed each guard last time: it is run first.
_KILLERS = cache_folder() / "guard-killers.json"


@dataclass(slots=True)
class _Trials:
    """The guards to try, and what has been found."""

    guards: Sequence[Guard]
    jobs: int
    missed: list[str] = field(default_factory=list)

    def run(self, forks: Forks) -> int:
        """Try each guard; return the exit code."""
        killers: dict[str, str] = {}
        with suppress(FileNotFoundError, ValueError):
            killers = json.loads(_KILLERS.read_text(encoding="utf-8"))
        forks.run((self._try(forks, guard, killers) for guard in self.guards), self.jobs)
        _KILLERS.parent.mkdir(parents=True, exist_ok=True)
        _KILLERS.write_text(json.dumps(killers, indent=0), encoding="utf-8")
        noticed = len(self.guards) - len(self.missed)
        print(f"{noticed} of {len(self.guards)} guards are noticed missing")
        return 1 if self.missed or forks.unfit else 0

    def _try(self, forks: Forks, guard: Guard, killers: dict[str, str]) -> Judge:
        tests = _selected(forks, guard.test)
        tests.sort(key=lambda name: name != killers.get(guard.name))
        verdict = yield from forks.judged(guard.removed(), tests)
        if not verdict.is_noticed:  # What the guard does may have been used at import.
            verdict = yield from forks.judged(guard.removed(), tests, is_fresh=True)
        if verdict.is_noticed:
            print(f"noticed  {guard.name}", flush=True)
            killers[guard.name] = verdict.by
        else:
            print(f"MISSED   {guard.name}: {verdict}", flush=True)
            self.missed.append(guard.name)


def _files(test: str) -> list[str]:
    """Return the files, or single tests, that a guard's test names, without its `-k`."""
    return test.partition(" -k ")[0].split()


def _selected(forks: Forks, test: str) -> list[str]:
    """Return the collected tests that pytest would run."""
    files, expression = _files(test), test.partition(" -k ")[2]
    named = re.compile("|".join(rf"{re.escape(file)}(?:$|::|\[)" for file in files))
    items = [item for name, item in forks.items.items() if named.match(name)]
    return [item.nodeid for item in matching(items, expression)]


def matching(items: Sequence[pytest.Item], expression: str) -> list[pytest.Item]:
    """Return the tests that pytest's own `-k` selects."""
    found = list(items)
    for item in items[:1]:
        item.config.option.keyword = expression
        plugin: Any = item.config.pluginmanager.get_plugin("mark")
        plugin.pytest_collection_modifyitems(found, item.config)
    return found


def _chosen(words: str, sample: int | None, seed: int | None) -> list[Guard]:
    """Return the guards whose name has the words, or a random sample of them; print the seed."""
    found = [guard for guard in GUARDS if words in guard.name]
    if sample is None:
        return found
    seed = secrets.randbelow(10**9) if seed is None else seed
    print(f"guards: {sample} of {len(found)}, drawn with --seed {seed}")
    return random.Random(seed).sample(found, min(sample, len(found)))


def main() -> int:
    """Try each guard, those whose name has the given words, or a random sample."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="?", default="")
    parser.add_argument("--sample", type=int, metavar="N", help="only a random sample of N")
    parser.add_argument("--seed", type=int, help="the sample's seed; by default a new one")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    chosen = _chosen(given.words, given.sample, given.seed)
    # Each file once: pytest may collect one that is named twice only in part.
    files = {file.partition("::")[0] for guard in chosen for file in _files(guard.test)}
    return with_collected(sorted(files), _Trials(chosen, given.jobs).run)


if __name__ == "__main__":
    sys.exit(main())
