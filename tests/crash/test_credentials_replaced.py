"""Credentials that expire in the middle of a job: new ones are asked for, and no task fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog

from holdfast.storage.objects import ObjectStorage
from holdfast.storage.port import StorageError
from tests.conftest import PYTHON_PATH
from tests.crash.drivers import until
from tests.crash.given_credentials import VARIABLE
from tests.crash.own_cluster import free_port
from tests.crash.started_jobs import LOCAL, ROOT
from tests.fault_proxy import Fault, Seen, fault_proxy
from tests.stack_access import Stack

pytestmark = [pytest.mark.crash, pytest.mark.spark]

ROWS = 6_000
_WAIT_S = 120.0
_LOOKS_MAX = 1_000


@dataclass(frozen=True, kw_only=True)
class Gateway:
    """An S3 server of the test's own, whose users come and go."""

    program: str
    endpoint: str
    data: Path

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
    data = tmp_path / "data"
    (data / "lake").mkdir(parents=True)
    (tmp_path / "users").mkdir()
    address = f"127.0.0.1:{free_port('127.0.0.1')}"
    command = [str(found[-1]), "--quiet", "--port", address, "--iam-dir", str(tmp_path / "users")]
    with subprocess.Popen(
        [*command, "--iam-cache-disable", "posix", str(data)],
        env={**os.environ, "ROOT_ACCESS_KEY": "root", "ROOT_SECRET_KEY": "root-secret"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        server = Gateway(program=str(found[-1]), endpoint=f"http://{address}", data=data)
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
def started(
    gateway: Gateway, folder: Path, job: Mapping[str, Any], **environment: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Start the job as a process of its own, with a file to read."""
    buffer = pa.BufferOutputStream()
    pq.write_table(pa.table({"id": range(ROWS)}), buffer, row_group_size=500)
    storage = ObjectStorage(gateway.options("root"))
    storage.put("s3://lake/in/a.parquet", buffer.getvalue().to_pybytes())
    job = {**job, "spark": LOCAL, "s3": gateway.options()}
    with (folder / "output").open("wb") as output, (folder / "errors").open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, str(ROOT / "tests" / "crash" / "jobs" / "credentials_job.py")],
            env={
                **os.environ,
                "PYSPARK_PYTHON": sys.executable,
                "PYTHONPATH": PYTHON_PATH,
                "SPARK_LOCAL_IP": "127.0.0.1",
                VARIABLE: str(folder / "credentials"),
                "HOLDFAST_JOB": json.dumps(job),
                **environment,
            },
            stdout=output,
            stderr=errors,
        )
    try:
        until(lambda: bool(storage.list("s3://lake/_holdfast/r/tasks")), "tasks write records")
        yield process
    finally:
        process.kill()
        process.wait(30)


def refuse_early(gateway: Gateway) -> None:
    """Let the server forget the first user at once."""
    gateway.admin("delete-user", "--access", "early")
    assert not can_reach(gateway, "early")


def check_end(job: subprocess.Popen[bytes], folder: Path) -> None:
    """Wait for the job; it must commit all rows, and Spark's log must show no lost task."""
    code = job.wait(_WAIT_S)
    errors = (folder / "errors").read_text()
    assert code == 0, errors
    assert json.loads((folder / "output").read_text()) == {"rows": ROWS, "passes": 1}
    assert "Lost task" not in errors


def test_new_credentials_are_asked_for_and_no_task_fails(gateway: Gateway, tmp_path: Path) -> None:
    """The first user is removed while tasks read, write and record; the second takes over.

    Method: a server that forgets the user at once; Spark's own log shows every lost task.
    """
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": "s3://lake/wh"}
    SqlCatalog("default", **catalog).create_namespace("db")
    give(tmp_path, "early")
    function = "tests.crash.given_credentials:from_file"
    table = {"table": "db.t", "catalog": catalog}
    with started(gateway, tmp_path, table, HOLDFAST_CREDENTIALS=function) as job:
        give(tmp_path, "late")
        refuse_early(gateway)
        check_end(job, tmp_path)


@pytest.mark.stack
@pytest.mark.rest
def test_keys_that_a_catalog_vends_are_asked_for_and_no_task_fails(
    gateway: Gateway, tmp_path: Path, stack: Stack
) -> None:
    """The catalog first vends the first user's keys with the table, and later the second's.

    Method: a real catalog, which vends none; a proxy adds the keys to its answers. Ledger and
    input are reached by the second user all the time, and only the driver and workers can ask
    for the table's keys: no function is named for them.
    """
    namespace = f"vended_{uuid.uuid4().hex[:8]}"
    where = {"uri": stack.rest.uri, "warehouse": stack.rest.warehouse}
    RestCatalog("lake", **where).create_namespace(namespace)
    (gateway.data / stack.s3.bucket).mkdir(exist_ok=True)  # The catalog names it to us.
    user = ["early"]
    give(tmp_path, "late")

    def is_look(seen: Seen) -> bool:
        return seen.method == "GET" and seen.path.endswith(f"/{namespace}/tables/t")

    def with_keys(body: bytes) -> bytes:
        answer = json.loads(body)
        if "metadata" in answer:  # Otherwise there is no table yet.
            answer["config"] = {**answer.get("config", {}), **gateway.options(user[0])}
        return json.dumps(answer).encode()

    with fault_proxy(stack.rest.uri) as proxy:
        looks = proxy.on(is_look, *[Fault(spoil_answer=with_keys)] * _LOOKS_MAX)
        catalog = {**where, "uri": proxy.uri, "header.Accept-Encoding": "identity"}
        table = {"table": f"{namespace}.t", "catalog": catalog}
        with started(gateway, tmp_path, table) as job:
            before, user[0] = looks.met, "late"
            refuse_early(gateway)
            check_end(job, tmp_path)
    assert looks.met > before


def give(folder: Path, user: str) -> None:
    """Replace the credentials that the job's function returns."""
    part = folder / "credentials.part"
    given = {"access_key_id": user, "secret_access_key": f"{user}-secret"}
    part.write_text(json.dumps(given), encoding="utf-8")
    part.rename(folder / "credentials")
