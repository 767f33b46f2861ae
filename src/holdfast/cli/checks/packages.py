"""Checks of what is installed on this machine: Python, packages, Java, room on the disk."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

from holdfast.cli.checks.finding import Finding, failed, ok, warning
from holdfast.model.report import readable_size

_PYTHON_TESTED = ((3, 10), (3, 13))
_PYSPARK_BELOW = (5,)
# Spark 4 runs on Java 17 and newer, Spark 3.5 on 8, 11 and 17.
_JAVA_OF_SPARK_4, _JAVA_OF_SPARK_3 = 17, 8
_DISK_LOW_BYTES, _DISK_FULL_BYTES = 5_000_000_000, 200_000_000
_JAVA_TIMEOUT_S = 20
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^\]]*\])?([<>=!~,.\d\s]*)")
_EXTRA = re.compile(r"extra\s*==\s*['\"]([\w-]+)['\"]")
# What is missing without an extra.
_EXTRAS = {
    "spark": "jobs on Spark",
    "iceberg": "Iceberg tables",
    "lance": "Lance datasets",
    "cli": "this command line",
}


def check_packages() -> Iterator[Finding]:
    """Compare Python and each package with what Holdfast asks for."""
    yield _python(sys.version_info[:2])
    missing: dict[str, list[str]] = {}
    fine = []
    for requirement in _requirements():
        name, limits, extra = _read(requirement)
        installed = installed_version(name)
        if installed is None and extra:
            missing.setdefault(extra, []).append(name)
        elif installed is None:
            yield failed(name, "not installed", f"pip install {name}")
        elif (trouble := _trouble(name, installed, limits)) is not None:
            yield trouble
        else:
            fine.append(f"{name} {installed}")
    yield ok("packages", ", ".join(fine) or "holdfast is not installed, so none is known")
    for extra, names in missing.items():
        use = _EXTRAS.get(extra, extra)
        fix = f'for {use}: pip install "holdfast[{extra}]"'
        yield warning(f"extra {extra}", f"not installed: {', '.join(names)}", fix)


def check_java(*, is_needed: bool) -> Iterator[Finding]:
    """Look for Java, which Spark runs on unless it is only asked through Spark Connect.

    Args:
        is_needed: Whether a session is about to be started here.
    """
    spark = installed_version("pyspark")
    if spark is None:
        return
    least = _JAVA_OF_SPARK_4 if _numbers(spark) >= (4,) else _JAVA_OF_SPARK_3
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home, "bin", "java")) if home else shutil.which("java")
    fix = f"install Java {least} or newer, or use a Spark Connect server (sc://...)"
    version = _java_version(program) if program else None
    if version is None:
        where = f"JAVA_HOME is {home!r}, and no Java runs there" if home else "no Java on the PATH"
        say = failed if is_needed else warning
        yield say("java", where, f"{fix}; set JAVA_HOME" if home else fix)
    elif version < least:
        yield failed("java", f"Java {version}, and PySpark {spark} needs {least} or newer", fix)
    else:
        yield ok("java", f"Java {version}")


def check_workers() -> Iterator[Finding]:
    """Look at the Python that Spark starts its workers with on this machine."""
    if installed_version("pyspark") is None:
        return
    named = os.environ.get("PYSPARK_PYTHON", "")
    found = shutil.which(named or "python3")
    fix = f"set PYSPARK_PYTHON={sys.executable} (on a cluster: an environment with holdfast)"
    if found is None:
        yield failed("worker python", f"PYSPARK_PYTHON is {named!r}, which does not run", fix)
    elif Path(found).absolute().parent != Path(sys.executable).parent:
        seen = f"workers on this machine start {found}, which is not this Python"
        yield warning("worker python", seen, fix)
    else:
        yield ok("worker python", "workers on this machine start this Python")


def check_disk() -> Iterator[Finding]:
    """Look at the room for temporary files: Spark spills there."""
    folder = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or tempfile.gettempdir()
    fix = f"make room in {folder}, or set SPARK_LOCAL_DIRS (spark.local.dir) to a larger disk"
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        yield failed("local disk", f"{folder} cannot be used ({error})", fix)
        return
    seen = f"{readable_size(free)} free in {folder}"
    if free < _DISK_FULL_BYTES:
        yield failed("local disk", seen, fix)
    elif free < _DISK_LOW_BYTES:
        yield warning("local disk", seen, fix)
    else:
        yield ok("local disk", seen)


def installed_version(package: str) -> str | None:
    """Return which version of a package is installed, if any."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _requirements() -> list[str]:
    """Return what Holdfast asks for; nothing where only its source is on the path."""
    try:
        return metadata.requires("holdfast") or []
    except metadata.PackageNotFoundError:
        return []


def _python(version: Sequence[int]) -> Finding:
    found = f"Python {version[0]}.{version[1]}"
    oldest, newest = ("{}.{}".format(*one) for one in _PYTHON_TESTED)
    if tuple(version) < _PYTHON_TESTED[0]:
        return failed("python", found, f"use Python {oldest} to {newest}")
    if tuple(version) > _PYTHON_TESTED[1]:
        return warning("python", f"{found} was never tried", f"use Python {oldest} to {newest}")
    return ok("python", found)


def _trouble(name: str, installed: str, limits: str) -> Finding | None:
    if not _fits(installed, limits):
        seen = f"{installed} is installed, and {limits} is needed"
        return failed(name, seen, f'pip install "{name}{limits}"')
    if name == "pyspark" and _numbers(installed) >= _PYSPARK_BELOW:
        return warning(name, f"{installed} was never tried", "use PySpark 3.5 to 4.x")
    return None


def _read(requirement: str) -> tuple[str, str, str]:
    """Return a requirement's package, its limits, and the extra that it belongs to."""
    found = _REQUIREMENT.match(requirement)
    extra = _EXTRA.search(requirement)
    name, limits = found.groups() if found else (requirement, "")
    return name, limits.replace(" ", ""), extra[1] if extra else ""


def _fits(installed: str, limits: str) -> bool:
    for limit in filter(None, limits.split(",")):
        wanted = _numbers(limit.lstrip("<>=!~"))
        if limit.startswith(">=") and _numbers(installed) < wanted:
            return False
        if limit.startswith("<") and _numbers(installed) >= wanted:
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version, to compare by."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(one) for one in found[0].split(".")) if found else ()


def _java_version(program: str) -> int | None:
    try:
        done = subprocess.run(  # noqa: S603 - the Java that Spark would start.
            [program, "-version"],
            capture_output=True,
            text=True,
            timeout=_JAVA_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(\d+)(?:\.(\d+))?', done.stderr + done.stdout)
    if found is None:
        return None
    # Until Java 8 versions began with 1.
    return int(found[2]) if found[1] == "1" and found[2] else int(found[1])
