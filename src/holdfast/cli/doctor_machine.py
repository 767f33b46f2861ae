"""What `holdfast doctor` checks of machines: packages here, and what executors see."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from holdfast._version import __version__
from holdfast.errors import HoldfastError
from holdfast.model.report import counted, readable_size, readable_time
from holdfast.storage.port import Storage
from holdfast.worker.reports import CheckupPlan

# ---- A finding: what one check saw, and how to fix it

Level = Literal["ok", "warning", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one check."""

    check: str
    level: Level
    seen: str
    # How to fix it; empty if there is nothing to do.
    fix: str = ""


def ok(check: str, seen: str) -> Finding:
    """Return a finding that all is well."""
    return Finding(check=check, level="ok", seen=seen)


def warning(check: str, seen: str, fix: str) -> Finding:
    """Return a finding that may cause trouble later, or in some jobs."""
    return Finding(check=check, level="warning", seen=seen, fix=fix)


def failed(check: str, seen: str, fix: str) -> Finding:
    """Return a finding that no job can work with."""
    return Finding(check=check, level="failed", seen=seen, fix=fix)


def failed_by(check: str, error: HoldfastError) -> Finding:
    """Return a Holdfast error as a finding, in its own words."""
    lines = str(error).splitlines()
    fix = lines[-1].strip().removeprefix("What to do: ").removesuffix(".")
    return failed(check, lines[0], fix)


# ---- Checks of what is installed on this machine: Python, packages, Java, disk space

_PYTHON_TESTED = ((3, 10), (3, 13))
_PYSPARK_BELOW = (5,)
# Spark 4 runs on Java 17 and newer, Spark 3.5 on 8, 11 and 17.
_JAVA_OF_SPARK_4, _JAVA_OF_SPARK_3 = 17, 8
_DISK_LOW_BYTES, _DISK_FULL_BYTES = 5_000_000_000, 200_000_000
_JAVA_TIMEOUT_S = 20
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^\]]*\])?([<>=!~,.\d\s]*)")
_EXTRA = re.compile(r"extra\s*==\s*['\"]([\w-]+)['\"]")
# What is unavailable without an extra.
_EXTRAS = {
    "spark": "jobs on Spark",
    "iceberg": "Iceberg tables",
    "lance": "Lance datasets",
    "cli": "this command line",
}


def check_packages() -> Iterator[Finding]:
    """Compare Python and each package with Holdfast's requirements."""
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
    yield ok(
        "packages", ", ".join(fine) or "holdfast is not installed, so its requirements are unknown"
    )
    for extra, names in missing.items():
        use = _EXTRAS.get(extra, extra)
        fix = f'for {use}, in a checkout of Holdfast: pip install ".[{extra}]"'
        yield warning(f"extra {extra}", f"not installed: {', '.join(names)}", fix)


def check_java(*, is_needed: bool) -> Iterator[Finding]:
    """Look for Java, which Spark needs unless it is used only through Spark Connect.

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
        where = f"JAVA_HOME is {home!r}, but no Java runs there" if home else "no Java on the PATH"
        say = failed if is_needed else warning
        yield say("java", where, f"{fix}; set JAVA_HOME" if home else fix)
    elif version < least:
        yield failed("java", f"Java {version}, but PySpark {spark} needs {least} or newer", fix)
    else:
        yield ok("java", f"Java {version}")


def check_workers() -> Iterator[Finding]:
    """Check the Python that Spark starts its workers with on this machine."""
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
    """Check the space for temporary files, where Spark spills."""
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
    """Return the installed version of a package, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _requirements() -> list[str]:
    """Return Holdfast's requirements; empty if only its source is on the path."""
    try:
        return metadata.requires("holdfast") or []
    except metadata.PackageNotFoundError:
        return []


def _python(version: Sequence[int]) -> Finding:
    found = f"Python {version[0]}.{version[1]}"
    oldest, newest = ("{}.{}".format(*tested) for tested in _PYTHON_TESTED)
    if tuple(version) < _PYTHON_TESTED[0]:
        return failed("python", found, f"use Python {oldest} to {newest}")
    if tuple(version) > _PYTHON_TESTED[1]:
        return warning("python", f"{found} is untested", f"use Python {oldest} to {newest}")
    return ok("python", found)


def _trouble(name: str, installed: str, limits: str) -> Finding | None:
    if not _fits(installed, limits):
        seen = f"{installed} is installed, but {limits} is needed"
        return failed(name, seen, f'pip install "{name}{limits}"')
    if name == "pyspark" and _numbers(installed) >= _PYSPARK_BELOW:
        return warning(name, f"{installed} is untested", "use PySpark 3.5 to 4.x")
    return None


def _read(requirement: str) -> tuple[str, str, str]:
    """Return a requirement's package, its limits, and its extra."""
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
    """Return the leading numbers of a version, for comparison."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(number) for number in found[0].split(".")) if found else ()


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
    # Up to Java 8, versions began with 1.
    return int(found[2]) if found[1] == "1" and found[2] else int(found[1])


# ---- Checks on the executors: they import Holdfast, and reach the store

_CLOCK_OFF_S = 10.0
# Default ports: Spark Connect, and a standalone master.
_PORTS = {"sc": 15002, "spark": 7077}
_CONNECT_S = 10.0


def check_executors(url: str, store: str | None, storage: Storage | None) -> Iterator[Finding]:
    """Start a session, run a task in each of its slots, and examine their reports.

    Args:
        url: A master, or a Spark Connect server.
        store: The ledger's location, if known.
        storage: How it is reached.
    """
    if store is not None:
        yield from check_store_is_shared(url, store)
    if (silent := _silence(url)) is not None:
        yield silent
        return
    try:
        from holdfast.spark.jobs import checkups, session_at  # noqa: PLC0415 - it is optional.

        with session_at(url) as session:
            yield ok("spark session", f"Spark {session.version} at {_shown(url)}")
            began_at = time.time()
            found = checkups(session, CheckupPlan(store=store, storage=storage))
            yield from judge(found, began_at, time.time())
    except HoldfastError as error:
        yield failed_by("spark job", error)
    except ImportError as error:
        seen = f"PySpark cannot be imported ({error})"
        yield failed("spark job", seen, 'in a checkout of Holdfast: pip install ".[spark]"')


def _silence(url: str) -> Finding | None:
    """Return a finding if no server listens at the address: Spark itself would try for minutes."""
    scheme, _, rest = url.partition("://")
    if scheme not in _PORTS:
        return None
    host, _, port = re.split("[;,/]", rest)[0].rpartition(":")
    try:
        address = (host or port, int(port) if host else _PORTS[scheme])
        socket.create_connection(address, timeout=_CONNECT_S).close()
    except (OSError, ValueError) as error:
        fix = "check the address, and that the server runs and can be reached from here"
        return failed("spark answers", f"{_shown(url)}: no answer ({error})", fix)
    return None


def _shown(url: str) -> str:
    """Return an address without its parameters, which may include a token."""
    return url.partition(";")[0]


def check_store_is_shared(url: str, store: str) -> Iterator[Finding]:
    """Refuse a local folder as the store of a cluster."""
    if store.startswith("file://") and not url.startswith("local"):
        yield failed(
            "store and cluster",
            f"the store is a local folder, but executors of {_shown(url)} run on other machines",
            "use an object store (s3://, gs://, abfss://), or a folder that all machines mount",
        )


def judge(found: list[dict[str, Any]], began_at: float, ended_at: float) -> Iterator[Finding]:
    """Examine the tasks' reports.

    Args:
        found: One report for each task.
        began_at: When the job began, by our clock.
        ended_at: When it ended.
    """
    broken = {
        report["problem"]["host"]: report["problem"]["facts"]
        for report in found
        if "problem" in report
    }
    for host, facts in broken.items():
        yield failed("executor python", f"{host}: {facts['what']}", facts["cure"])
    seen = [report for report in found if "problem" not in report]
    if not seen:
        return
    hosts = sorted({report["host"] for report in seen})
    where = f"{counted(len(seen), 'task')} on {', '.join(hosts[:3])}"
    versions = sorted({f"Python {report['python'].split()[0]}" for report in seen})
    arrows = sorted({f"pyarrow {report['pyarrow']}" for report in seen})
    what = ", ".join([f"holdfast {__version__}", *versions, *arrows])
    yield ok("executor python", f"{what}; {where}")
    yield _reach(seen)
    yield _clocks(seen, began_at, ended_at)


def _reach(seen: list[dict[str, Any]]) -> Finding:
    cut_off = {report["host"]: report["store_error"] for report in seen if report["store_error"]}
    if not cut_off:
        return ok("executors reach the store", "all of them listed it")
    host, error = next(iter(cut_off.items()))
    return failed(
        "executors reach the store",
        f"{counted(len(cut_off), 'host')} of {len({report['host'] for report in seen})} cannot, "
        f"such as {host}: {error}",
        "give executors the same network access and credentials as the driver; serverless Spark "
        "without a network path to the store cannot run Holdfast",
    )


def _clocks(seen: list[dict[str, Any]], began_at: float, ended_at: float) -> Finding:
    off = {
        report["host"]: max(began_at - report["at"], report["at"] - ended_at, 0.0)
        for report in seen
    }
    host = max(off, key=lambda name: off[name])
    if off[host] <= _CLOCK_OFF_S:
        return ok("executor clocks", "they agree with this machine's clock")
    return warning(
        "executor clocks",
        f"{host} is {readable_time(off[host])} off this machine's clock",
        "synchronise the clocks of all machines with a time server (NTP)",
    )
