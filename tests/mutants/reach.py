"""Reach: which tests execute which lines of the product.

It is recorded by one run of the tests under coverage, and kept for the state of src and tests that
it is of.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from coverage import CoverageData

from tests.mutants.cache import cache_folder
from tests.mutants.change import ROOT, SOURCE

_KEPT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """Which tests execute which lines."""

    tests: Sequence[str]
    # By file below src, and by line: the numbers of the tests; -1 is the import of a module.
    files: Mapping[str, Mapping[int, frozenset[int]]]

    def is_run_at_import(self, file: Path, lines: Iterable[int]) -> bool:
        """Return whether a line runs when a module is imported."""
        there = self.files.get(file.as_posix(), {})
        return any(-1 in there.get(line, ()) for line in lines)

    def tests_of(self, file: Path, lines: Iterable[int], at_most: int) -> list[str]:
        """Return tests that execute one of some lines, those that execute least of the file first.

        Tests of different files alternate, because those of one file are often alike.
        """
        there = self.files.get(file.as_posix(), {})
        found = {test for line in lines for test in there.get(line, ()) if test >= 0}
        width = dict.fromkeys(found, 0)
        for reached in there.values():
            for test in reached & found:
                width[test] += 1
        by_file = defaultdict[str, list[str]](list)
        for test in sorted(found, key=lambda test: (width[test], test)):
            name = self.tests[test]
            by_file[name.partition("::")[0]].append(name)
        rounds = zip_longest(*by_file.values())
        return [name for tests in rounds for name in tests if name is not None][:at_most]


def recorded(arguments: Sequence[str], *, lanes: int) -> Reach:
    """Return the reach of the present product and tests, recording it unless that was done.

    Args:
        arguments: What pytest runs.
        lanes: How many tests run at a time.
    """
    file = cache_folder() / "reach" / f"{_digest(arguments)}.json.gz"
    if not file.is_file():
        print("records which tests reach which lines: one run of them, some minutes", flush=True)
        began = time.monotonic()
        reach = _record(arguments, lanes)
        _write(reach, file)
        print(f"recorded {len(reach.tests)} tests in {time.monotonic() - began:.0f} s", flush=True)
    return _read(file)


def _digest(arguments: Sequence[str]) -> str:
    digest = hashlib.sha256(repr(arguments).encode())
    for folder in ("src", "tests", "bench"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if path.parent not in {Path(__file__).parent, ROOT / "tests" / "guards"}:
                digest.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _record(arguments: Sequence[str], lanes: int) -> Reach:
    """Run the tests, and return what they reach.

    Raises:
        RuntimeError: The tests could not be run.
    """
    options = ["-q", "-p", "no:cacheprovider", "-p", "tests.mutants.recorder", "-n", str(lanes)]
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            "HOLDFAST_REACH": folder,
            "PYTHONPATH": f"{SOURCE}{os.pathsep}{ROOT}",
            "COVERAGE_CORE": "ctrace",
        }
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options, "--dist", "worksteal", *arguments],
            cwd=ROOT,
            env=os.environ | environment,
            capture_output=True,
            text=True,
            check=False,
        )
        # 1 is a test that fails: the tests that notice a change are tried without it, too.
        if done.returncode not in {0, 1}:
            raise RuntimeError(f"{done.stdout[-2000:]}{done.stderr[-2000:]}")
        return _combined(Path(folder).glob("*.coverage"))


def _combined(paths: Iterable[Path]) -> Reach:
    numbers: dict[str, int] = {"": -1}
    files = defaultdict[str, dict[int, set[int]]](lambda: defaultdict(set))
    for path in paths:
        data = CoverageData(str(path))
        data.read()
        for name in data.measured_files():
            lines = files[Path(name).relative_to(SOURCE).as_posix()]
            for line, contexts in data.contexts_by_lineno(name).items():
                lines[line] |= {numbers.setdefault(test, len(numbers) - 1) for test in contexts}
        data.close()
    return Reach(
        tests=list(numbers)[1:],
        files={
            name: {line: frozenset(tests) for line, tests in lines.items()}
            for name, lines in files.items()
        },
    )


def _write(reach: Reach, file: Path) -> None:
    """Write a reach, and remove the oldest others. Lines of which the same is true share it."""
    shared = {
        name: [[sorted(lines), sorted(tests)] for tests, lines in _by_tests(lines_of)]
        for name, lines_of in reach.files.items()
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    others = sorted(file.parent.glob("*.json.gz"), key=lambda path: path.stat().st_mtime)
    for path in others[: 1 - _KEPT]:
        path.unlink()
    new = file.with_suffix(".new")
    new.write_bytes(gzip.compress(json.dumps([reach.tests, shared]).encode(), compresslevel=3))
    new.rename(file)


def _by_tests(
    lines_of: Mapping[int, frozenset[int]],
) -> Iterator[tuple[frozenset[int], list[int]]]:
    found = defaultdict[frozenset[int], list[int]](list)
    for line, tests in lines_of.items():
        found[tests].append(line)
    yield from found.items()


def _read(file: Path) -> Reach:
    tests, shared = json.loads(gzip.decompress(file.read_bytes()))
    return Reach(
        tests=tests,
        files={
            name: {
                line: reached
                for lines, numbers in groups
                for reached in [frozenset(numbers)]
                for line in lines
            }
            for name, groups in shared.items()
        },
    )
