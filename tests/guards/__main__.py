"""Take each guard away, and show that the test named beside it fails: make guards."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from tests.guards.guard import ROOT, copied_product, environment_of
from tests.guards.listed import GUARDS

_TEST_S = 300


def _passes(source: Path, test: str) -> bool:
    """Run a test on the product in a folder; say whether it passed.

    Raises:
        RuntimeError: It came to no result.
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


def main() -> int:
    """Try each guard, or those whose name has the given words."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="?", default="")
    words = parser.parse_args().words
    missed = []
    chosen = [guard for guard in GUARDS if words in guard.name]
    with copied_product() as source:
        for test in sorted({guard.test for guard in chosen}):
            if not _passes(source, test):
                raise RuntimeError(f"{test} fails although every guard is there")
        for guard in chosen:
            before = guard.take_away(source)
            is_noticed = not _passes(source, guard.test)
            (source / "holdfast" / guard.file).write_text(before, encoding="utf-8")
            missed += [] if is_noticed else [guard.name]
            sys.stdout.write(f"{'noticed' if is_noticed else 'MISSED '}  {guard.name}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{len(chosen) - len(missed)} of {len(chosen)} guards are noticed missing\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
