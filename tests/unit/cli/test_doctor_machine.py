"""`holdfast doctor` on what is installed: each fault is found, and the right fix is named."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from holdfast.cli import doctor_machine
from holdfast.cli.doctor_machine import Finding
from holdfast.errors import JobFailedError
from tests.fakes.cli_lake import CliLake, lake
from tests.fakes.doctor_findings import found

__all__ = ["lake"]


def installed(monkeypatch: pytest.MonkeyPatch, **versions: str | None) -> None:
    """Pretend that packages have another version or are missing; `_` means `-`."""
    real = metadata.version

    def version(name: str) -> str:
        given = versions.get(name.replace("-", "_"), "as it is")
        if given is None:
            raise metadata.PackageNotFoundError(name)
        return real(name) if given == "as it is" else given

    monkeypatch.setattr(metadata, "version", version)


def java(folder: Path, version: str) -> str:
    """Return a JAVA_HOME whose Java reports a version."""
    program = folder / "java-home" / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(0o755)
    return str(folder / "java-home")


def test_a_local_store_for_a_cluster(
    lake: CliLake, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The executors are on other machines; no session is needed to know that."""
    monkeypatch.setattr("holdfast.spark.jobs.session_at", _refuses)
    finding = found(lake, capsys, "--spark", "spark://head:7077")["store and cluster"]
    assert finding["level"] == "failed"
    assert "object store" in finding["fix"]


@pytest.mark.parametrize(
    ("package", "version", "cure"),
    [
        ("pyarrow", "17.0.0", 'pip install "pyarrow>=19.0.1"'),
        ("pyiceberg", "0.11.1", 'pip install "pyiceberg<0.13,>=0.12"'),
        ("pyiceberg", "0.13.0", 'pip install "pyiceberg<0.13,>=0.12"'),
        ("pandas", "3.0.0", 'pip install "pandas<3,>=2.2"'),
        ("pyspark", "3.4.1", 'pip install "pyspark>=3.5"'),
    ],
)
def test_a_package_of_an_unsupported_version(
    monkeypatch: pytest.MonkeyPatch, package: str, version: str, cure: str
) -> None:
    """It names the installed version, and the required one as a pip command."""
    installed(monkeypatch, **{package: version})
    finding = next(
        finding for finding in doctor_machine.check_packages() if finding.check == package
    )
    assert finding.level == "failed"
    assert version in finding.seen
    assert finding.fix == cure


def test_an_extra_that_is_not_installed(
    lake: CliLake, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is only a warning: not every job needs it."""
    installed(monkeypatch, pylance=None)
    finding = found(lake, capsys, code=0)["extra lance"]
    assert finding["level"] == "warning"
    assert 'pip install ".[lance]"' in finding["fix"]


def test_a_package_that_every_job_needs(
    lake: CliLake, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without obstore there is no ledger."""
    installed(monkeypatch, obstore=None)
    finding = found(lake, capsys)["obstore"]
    assert (finding["level"], finding["fix"]) == ("failed", "pip install obstore")


@pytest.mark.parametrize(("version", "level"), [((3, 9), "failed"), ((3, 14), "warning")])
def test_a_python_that_is_not_supported(
    monkeypatch: pytest.MonkeyPatch, version: tuple[int, int], level: str
) -> None:
    """A version that is too old does not work; one that is too new may."""
    monkeypatch.setattr(doctor_machine, "sys", SimpleNamespace(version_info=(*version, 0)))
    finding = next(doctor_machine.check_packages())
    assert (finding.check, finding.level) == ("python", level)
    assert "3.10 to 3.13" in finding.fix


def test_java_that_is_too_old(
    lake: CliLake, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """PySpark 4 does not start on Java 8."""
    installed(monkeypatch, pyspark="4.1.4")
    monkeypatch.setenv("JAVA_HOME", java(lake.folder, "1.8.0_412"))
    finding = found(lake, capsys)["java"]
    assert (finding["level"], finding["seen"][:7]) == ("failed", "Java 8,")
    assert "Java 17 or newer" in finding["fix"]


@pytest.mark.parametrize(("is_needed", "level"), [(True, "failed"), (False, "warning")])
def test_no_java(monkeypatch: pytest.MonkeyPatch, is_needed: bool, level: str) -> None:  # noqa: FBT001
    """Spark Connect does not need Java."""
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    (finding,) = doctor_machine.check_java(is_needed=is_needed)
    assert finding.level == level
    assert "JAVA_HOME" in finding.fix
    assert "sc://" in finding.fix


def test_workers_of_another_python(
    lake: CliLake, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would lack our packages."""
    monkeypatch.setenv("PYSPARK_PYTHON", "/bin/sh")
    finding = found(lake, capsys, code=0)["worker python"]
    assert finding["level"] == "warning"
    assert f"PYSPARK_PYTHON={sys.executable}" in finding["fix"]
    monkeypatch.setenv("PYSPARK_PYTHON", "/nowhere/python")
    assert found(lake, capsys)["worker python"]["level"] == "failed"


@pytest.mark.parametrize(("free", "level"), [(1_000_000_000, "warning"), (10_000_000, "failed")])
def test_a_disk_without_room(monkeypatch: pytest.MonkeyPatch, free: int, level: str) -> None:
    """Spark spills to this disk."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: SimpleNamespace(free=free))
    (finding,) = doctor_machine.check_disk()
    assert finding.level == level
    assert "SPARK_LOCAL_DIRS" in finding.fix


def test_a_spark_that_does_not_start(
    lake: CliLake, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason is Spark's own."""
    monkeypatch.setattr("holdfast.spark.jobs.session_at", _refuses)
    finding = found(lake, capsys, "--spark")["spark job"]
    assert finding["level"] == "failed"
    assert "no such master" in finding["seen"]


@pytest.mark.parametrize(
    "url", ["sc://127.0.0.1:9", "sc://127.0.0.1:9/;token=x", "spark://127.0.0.1:9"]
)
def test_a_server_that_is_not_running(
    lake: CliLake, capsys: pytest.CaptureFixture[str], url: str
) -> None:
    """It is reported at once: Spark's own client would retry for minutes."""
    finding = found(lake, capsys, "--spark", url)["spark answers"]
    assert finding["level"] == "failed"
    assert "that the server runs" in finding["fix"]
    assert "token" not in finding["seen"]


def judged(*reports: Mapping[str, Any]) -> dict[str, Finding]:
    """Judge what tasks have reported."""
    return {
        finding.check: finding
        for finding in doctor_machine.judge([dict(given) for given in reports], 100.0, 101.0)
    }


def report(**changes: Any) -> dict[str, Any]:  # noqa: ANN401 - any field of a checkup.
    """Return what a sound executor reports."""
    sound = {"host": "node-1", "python": "3.11.7 (python)", "holdfast": "0.1.0"}
    return {**sound, "pyarrow": "26.0.1", "at": 100.5, "store_error": "", **changes}


def test_sound_executors_pass() -> None:
    """They have Holdfast, reach the store, and know the time."""
    assert {finding.level for finding in judged(report(), report(host="node-2")).values()} == {"ok"}


def test_an_executor_without_holdfast() -> None:
    """It names the host, and how to install Holdfast there."""
    facts = {"what": "this Python has no holdfast", "cure": "install it there"}
    broken = {"place": 0, "problem": {"kind": "setup", "host": "node-2", "facts": facts}}
    finding = judged(broken)["executor python"]
    assert (finding.level, finding.fix) == ("failed", "install it there")
    assert "node-2" in finding.seen


def test_an_executor_that_cannot_reach_the_store() -> None:
    """Serverless Spark without a network fails here."""
    finding = judged(report(), report(host="node-2", store_error="timed out"))[
        "executors reach the store"
    ]
    assert finding.level == "failed"
    assert "node-2: timed out" in finding.seen
    assert "network" in finding.fix


def test_an_executor_whose_clock_is_off() -> None:
    """It is off by a minute."""
    finding = judged(report(at=160.0))["executor clocks"]
    assert finding.level == "warning"
    assert "NTP" in finding.fix


def _refuses(_url: str) -> NoReturn:
    raise JobFailedError(reason="no such master")
