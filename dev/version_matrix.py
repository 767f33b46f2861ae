"""Run tests on each PySpark with each Python that it supports; write the table of docs/versions.md.

`make test-matrix` runs all tests that need Spark and no server, apart from those of examples, for
each pair; `make test-matrix ARGS="4.3.0 --python 3.11"` does so for some pairs, and leaves the
other rows of the table as they are. Needs uv, Java, and the Pythons; a Python that is missing is
said in the table. Environments are kept outside the repository.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TypeAlias

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "versions.md"
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
# Of each PySpark: the Pythons that it does not support, and why.
VERSIONS = {
    "3.5.9": dict.fromkeys(("3.12", "3.13"), "PySpark needs `distutils`"),
    "4.0.5": {},
    "4.1.4": {},
    "4.3.0": {"3.10": "PySpark needs Python 3.11"},
}
TESTS = (
    *("-m", "(spark or connect) and not (stack or example or crash or slow or bench)"),
    *("tests/spark", "tests/integration"),
)
# Fewer would say little about a version: most of them were left out, or not found.
PASSED_MIN = 60
_BLOCK = re.compile(r"(<!-- pyspark: [^>]*-->\n).*?(<!-- end -->\n)", re.DOTALL)
_ROW = re.compile(r"^\| (\d[\d.]*) \| (\d[\d.]*) \| (.*) \|$", re.MULTILINE)
_PIN = re.compile(r"^([a-z0-9-]+(?:\[[a-z,-]+\])?)==", re.MULTILINE)
_SKIPPED = re.compile(r"^SKIPPED \[(\d+)\] \S+: (.*)$", re.MULTILINE)
_CACHE = Path(os.environ.get("HOLDFAST_CACHE", Path.home() / ".cache" / "holdfast"))
_TIMEOUT_S = 3600.0

Rows: TypeAlias = dict[tuple[str, str], str]


def main() -> int:
    """Run the pairs; return 1 if one of them failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("versions", nargs="*", default=list(VERSIONS))
    parser.add_argument("--python", action="append", choices=PYTHONS, help="by default each")
    given = parser.parse_args()
    failed = False
    for spark in given.versions:
        for python in given.python or PYTHONS:
            row = outcome_of(spark, python)
            failed |= row.startswith("FAILED")
            PAGE.write_text(with_rows(PAGE.read_text(), {(spark, python): row}))
    return int(failed)


def outcome_of(spark: str, python: str) -> str:
    """Return how the tests ended with a pair of versions, and print it."""
    if why := VERSIONS[spark].get(python):
        found = f"no: {why}"
    elif (interpreter := find_python(python)) is None:
        found = "not run: no such Python here"
    else:
        folder = _CACHE / "matrix" / f"spark-{spark}-python-{python}"
        found = install(spark, python, interpreter, folder)
        found = found or run(folder / "bin" / "python")
    sys.stdout.write(f"PySpark {spark}, Python {python}: {found}\n")
    sys.stdout.flush()
    return found


def find_python(version: str) -> str | None:
    """Return an interpreter that runs: a version manager leaves names that only complain."""
    own = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    named = shutil.which(f"python{version}")
    candidates = [*([named] if named else []), *map(str, own.glob(f"{version}.*/bin/python"))]
    for candidate in candidates:
        done = subprocess.run([candidate, "--version"], check=False, capture_output=True)
        if done.returncode == 0:
            return candidate
    return None


def install(spark: str, version: str, interpreter: str, folder: Path) -> str:
    """Install everything with a PySpark for a Python; return why not, or an empty string."""
    folder.mkdir(parents=True, exist_ok=True)
    override = folder / "override.txt"
    # What is pinned for development has no release for the oldest Python: there the newest it has.
    pinned = _PIN.findall((ROOT / "requirements" / "dev.in").read_text())
    free = [name for name in pinned if name != "pyspark" and version == PYTHONS[0]]
    override.write_text("\n".join([*free, f"pyspark=={spark}", ""]))
    python = str(folder / "bin" / "python")
    into = ["uv", "pip", "install", "--quiet", "--python", python]
    commands = (
        ["uv", "venv", "--quiet", "--allow-existing", "--python", interpreter, str(folder)],
        [*into, "-r", "requirements/dev.in", "--override", str(override)],
        [*into, "--no-deps", "--no-build-isolation", "--editable", "."],
    )
    for command in commands:
        done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            sys.stderr.write(done.stderr)
            return "FAILED: it could not be installed"
    return ""


def run(python: Path) -> str:
    """Run the tests in an environment; return how they ended."""
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": str(python),
        "PYSPARK_DRIVER_PYTHON": str(python),
        "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    done = subprocess.run(
        [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS],
        check=False,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
    )
    found = outcome(done.returncode, done.stdout)
    if found.startswith("FAILED"):
        sys.stderr.write(done.stdout)
    return found


def outcome(code: int, printed: str) -> str:
    """Return what pytest printed in a few words: how many tests passed, and why others did not."""
    counts = printed.strip().splitlines()[-1:]
    said = re.sub(r", \d+ deselected| in .*", "", counts[0]) if counts else "it did not start"
    passed = re.search(r"\b(\d+) passed", said)
    if code:
        return f"FAILED: {said}"
    if passed is None or int(passed[1]) < PASSED_MIN:
        return f"FAILED: fewer than {PASSED_MIN} tests passed: {said}"
    reasons: Counter[str] = Counter()
    for number, why in _SKIPPED.findall(printed):
        reasons[why.replace("|", "/")] += int(number)
    return said + "".join(f"; {number} skipped: {why}" for why, number in sorted(reasons.items()))


def with_rows(page: str, rows: Rows) -> str:
    """Return the page with other rows in its table; those of other pairs stay.

    Raises:
        ValueError: The page has no place for them.
    """
    if (block := _BLOCK.search(page)) is None:
        raise ValueError(f"{PAGE} has no table to write to")
    known = {(found[1], found[2]): found[3] for found in _ROW.finditer(block[0])} | rows
    lines = ["| PySpark | Python | tests |", "|---|---|---|"]
    lines += [
        f"| {spark} | {python} | {known.get((spark, python), 'not run yet')} |"
        for spark in VERSIONS
        for python in PYTHONS
    ]
    text = "\n".join([*lines, ""])
    return _BLOCK.sub(lambda found: f"{found[1]}\n{text}\n{found[2]}", page)


if __name__ == "__main__":
    sys.exit(main())
