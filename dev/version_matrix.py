"""Run tests on each PySpark with each Python that it supports; write the table of docs/versions.md.

`make test-matrix` runs the quickstart, which is killed and goes on, and `holdfast doctor`, for each
pair; `make test-matrix ARGS="--all 4.0.5"` all tests that need Spark and no other server, for some
versions. Needs uv, Java, and the Pythons; a Python that is missing is said in the table.
Environments are kept outside the repository.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

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
QUICK = ("tests/spark/test_quickstart.py", "tests/spark/test_doctor.py")
_ALL = ("-m", "spark and not (stack or crash or slow or bench)", "tests")
_BLOCK = re.compile(r"(<!-- pyspark: [^>]*-->\n).*?(<!-- end -->\n)", re.DOTALL)
_PIN = re.compile(r"^([a-z0-9-]+(?:\[[a-z,-]+\])?)==", re.MULTILINE)
_CACHE = Path(os.environ.get("HOLDFAST_CACHE", Path.home() / ".cache" / "holdfast"))
_TIMEOUT_S = 3600.0


def main() -> int:
    """Run the pairs; return 1 if one of them failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("versions", nargs="*", default=list(VERSIONS))
    parser.add_argument("--all", action="store_true", help="all tests that need only Spark")
    given = parser.parse_args()
    tests = _ALL if given.all else QUICK
    cells = {
        (spark, python): outcome_of(spark, python, tests)
        for spark in given.versions
        for python in PYTHONS
    }
    if given.versions == list(VERSIONS) and not given.all:
        PAGE.write_text(with_table(PAGE.read_text(), table(cells)))
    return int(any(cell.startswith("FAILED") for cell in cells.values()))


def outcome_of(spark: str, python: str, tests: Sequence[str]) -> str:
    """Return how the tests ended with a pair of versions, and print it."""
    if why := VERSIONS.get(spark, {}).get(python):
        found = f"no: {why}"
    elif (interpreter := find_python(python)) is None:
        found = "not run: no such Python here"
    else:
        folder = _CACHE / "matrix" / f"spark-{spark}-python-{python}"
        found = install(spark, python, interpreter, folder)
        found = found or run(folder / "bin" / "python", tests)
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


def run(python: Path, tests: Sequence[str]) -> str:
    """Run tests in an environment; return how they ended."""
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": str(python),
        "PYSPARK_DRIVER_PYTHON": str(python),
        "PYTHONPATH": str(ROOT),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(
        command,
        check=False,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
    )
    summary = done.stdout.strip().splitlines()[-1:]
    if done.returncode:
        sys.stderr.write(done.stdout)
    said = re.sub(r" in .*", "", summary[0]) if summary else "pytest did not start"
    return said if done.returncode == 0 else f"FAILED: {said}"


def table(cells: dict[tuple[str, str], str]) -> str:
    """Return how each pair ended, as a table."""
    lines = [f"| PySpark | {' | '.join(f'Python {version}' for version in PYTHONS)} |"]
    lines.append("|---" * (1 + len(PYTHONS)) + "|")
    lines += [
        f"| {spark} | {' | '.join(cells[spark, version] for version in PYTHONS)} |"
        for spark in VERSIONS
    ]
    return "\n".join([*lines, ""])


def with_table(page: str, text: str) -> str:
    """Return the page with another table.

    Raises:
        ValueError: The page has no place for it.
    """
    if not _BLOCK.search(page):
        raise ValueError(f"{PAGE} has no table to replace")
    return _BLOCK.sub(lambda found: f"{found[1]}\n{text}\n{found[2]}", page)


if __name__ == "__main__":
    sys.exit(main())
