"""Remove each guard, and show that the test named with it fails: make guards."""

from __future__ import annotations

import argparse
import os
import random
import secrets
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue

from tests.guards.guard import ROOT, Guard, copied_product, environment_of
from tests.guards.listed import GUARDS

_TEST_S = 300


def _passes(source: Path, test: str) -> bool:
    """Run a test on the product in a folder; return whether it passed.

    Raises:
        RuntimeError: The test gave no result.
    """
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *test.split()]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment_of(source),
        capture_output=True,
        text=True,
        timeout=_TEST_S,
        check=False,
    )
    if done.returncode not in {0, 1}:
        raise RuntimeError(f"{test}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.returncode == 0


def _shown(sources: SimpleQueue[Path], test: str, guards: Sequence[Guard]) -> list[str]:
    """Remove the guards of a test, one after the other; return the names of those missed.

    Args:
        sources: Copies of the product that nothing else works on.
        test: The test to run, also with every guard in place.
        guards: The guards that it should notice.

    Raises:
        RuntimeError: The test fails although every guard is there, or gave no result.
    """
    source = sources.get()
    try:
        if not _passes(source, test):
            raise RuntimeError(f"{test} fails although every guard is there")
        missed = []
        for guard in guards:
            before = guard.take_away(source)
            is_noticed = not _passes(source, guard.test)
            (source / "holdfast" / guard.file).write_text(before, encoding="utf-8")
            missed += [] if is_noticed else [guard.name]
            # In one piece: other threads write too.
            sys.stdout.write(f"{'noticed' if is_noticed else 'MISSED '}  {guard.name}\n")
            sys.stdout.flush()
        return missed
    finally:
        sources.put(source)


def _chosen(words: str, sample: int | None, seed: int | None) -> list[Guard]:
    """Return the guards whose name has the words, or a random sample of them; print the seed."""
    found = [guard for guard in GUARDS if words in guard.name]
    if sample is None:
        return found
    seed = secrets.randbelow(10**9) if seed is None else seed
    sys.stdout.write(f"guards: {sample} of {len(found)}, drawn with --seed {seed}\n")
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
    tests = {
        guard.test: [other for other in chosen if other.test == guard.test] for guard in chosen
    }
    sources: SimpleQueue[Path] = SimpleQueue()
    with ExitStack() as block:
        for _ in range(given.jobs):
            sources.put(block.enter_context(copied_product()))
        pool = block.enter_context(ThreadPoolExecutor(given.jobs))
        shown = [pool.submit(_shown, sources, *item) for item in tests.items()]
        missed = [name for job in shown for name in job.result()]
    sys.stdout.write(f"{len(chosen) - len(missed)} of {len(chosen)} guards are noticed missing\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
