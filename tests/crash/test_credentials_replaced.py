"""Credentials that end in the middle of a job: new ones are asked for, and no task fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from holdfast.storage.objects import ObjectStorage
from holdfast.storage.port import StorageError
from tests.conftest import PYTHON_PATH
from tests.crash.drivers import until
from tests.crash.given_credentials import VARIABLE
from tests.crash.own_cluster import free_port
from tests.crash.started_jobs import LOCAL, ROOT

pytestmark = [pytest.mark.crash, pytest.mark.spark]

ROWS = 6_000
_WAIT_S = 120.0


@dataclass(frozen=True, kw_only=True)
class Gateway:
    """An S3 server of the test's own, whose users come and go."""

    program: str
    endpoint: str

    def options(self, user: str = "") -> dict[str, str]:
        """Return storage options, with a user's keys if one is named."""
        where = {"s3.endpoint": self.endpoint, "s3.region": "us-east-1"}
        keys = {"s3.access-key-id": user, "s3.secret-access-key": f"{user}-secret"}
        return where | keys if user else where

    def admin(self, *words: str) -> None:
        """Change its users."""
        command = [self.program, "admin", "--access", "root", "--secret", "root-secret"]
        subprocess.run([*command, "--endpoint-url", self.endpoint, *words], check=True, timeout=30)

    def add(self, user: str) -> None:
        """Add a user who may do everything."""
        self.admin("create-user", "--access", user, "--secret", f"{user}-secret", "--role", "admin")


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    """Start the server, with two users; it is gone afterwards."""
    cache = Path(os.environ.get("HOLDFAST_CACHE") or Path.home() / ".cache" / "holdfast")
    found = sorted((cache / "bin").glob("versitygw-*"))
    if not found:
        pytest.skip("versitygw is not installed: make stack")
    (tmp_path / "data" / "lake").mkdir(parents=True)
    (tmp_path / "users").mkdir()
    address = f"127.0.0.1:{free_port('127.0.0.1')}"
    command = [str(found[-1]), "--quiet", "--port", address, "--iam-dir", str(tmp_path / "users")]
    with subprocess.Popen(
        [*command, "--iam-cache-disable", "posix", str(tmp_path / "data")],
        env={**os.environ, "ROOT_ACCESS_KEY": "root", "ROOT_SECRET_KEY": "root-secret"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        server = Gateway(program=str(found[-1]), endpoint=f"http://{address}")
        try:
            until(lambda: can_reach(server, "root"), "the server answers")
            server.add("early")
            server.add("late")
            yield server
        finally:
            process.kill()


def can_reach(server: Gateway, user: str) -> bool:
    """Whether the server knows the user."""
    try:
        ObjectStorage(server.options(user)).put("s3://lake/probe", b"")
    except StorageError:
        return False
    return True


@contextmanager
def started(gateway: Gateway, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start the job as a process of its own."""
    catalog = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": "s3://lake/wh"}
    SqlCatalog("default", **catalog).create_namespace("db")
    job = {"spark": LOCAL, "s3": gateway.options(), "catalog": catalog}
    function = "tests.crash.given_credentials:from_file"
    with (folder / "output").open("wb") as output, (folder / "errors").open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, str(ROOT / "tests" / "crash" / "jobs" / "credentials_job.py")],
            env={
                **os.environ,
                "PYSPARK_PYTHON": sys.executable,
                "PYTHONPATH": PYTHON_PATH,
                "SPARK_LOCAL_IP": "127.0.0.1",
                VARIABLE: str(folder / "credentials"),
                "HOLDFAST_CREDENTIALS": function,
                "HOLDFAST_JOB": json.dumps(job),
            },
            stdout=output,
            stderr=errors,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait(30)


def test_new_credentials_are_asked_for_and_no_task_fails(gateway: Gateway, tmp_path: Path) -> None:
    """The first user is removed while tasks read, write and record; the second takes over.

    Method: a server that forgets the user at once; Spark's own log tells of every lost task.
    """
    buffer = pa.BufferOutputStream()
    pq.write_table(pa.table({"id": range(ROWS)}), buffer, row_group_size=500)
    storage = ObjectStorage(gateway.options("root"))
    storage.put("s3://lake/in/a.parquet", buffer.getvalue().to_pybytes())
    give(tmp_path, "early")
    with started(gateway, tmp_path) as job:
        until(lambda: bool(storage.list("s3://lake/_holdfast/r/tasks")), "tasks write records")
        give(tmp_path, "late")
        gateway.admin("delete-user", "--access", "early")
        assert not can_reach(gateway, "early")
        code = job.wait(_WAIT_S)
    errors = (tmp_path / "errors").read_text()
    assert code == 0, errors
    assert json.loads((tmp_path / "output").read_text()) == {"rows": ROWS, "passes": 1}
    assert "Lost task" not in errors


def give(folder: Path, user: str) -> None:
    """Replace what the job's function gives."""
    part = folder / "credentials.part"
    given = {"access_key_id": user, "secret_access_key": f"{user}-secret"}
    part.write_text(json.dumps(given), encoding="utf-8")
    part.rename(folder / "credentials")
