"""The desk as a fixture, for the whole matrix and for a sample of it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from holdfast.failpoints import VARIABLE
from tests.crash.drivers import Nursery
from tests.crash.failpoint_desk import Desk
from tests.crash.own_connect import connect_server
from tests.stack_access import Stack


@pytest.fixture(scope="module")
def desk(
    stack: Stack, lake: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Desk]:
    """Start a Connect server with executors of its own, and a nursery of drivers."""
    folder = tmp_path_factory.mktemp("failpoints")
    armed = folder / "armed"
    armed.mkdir()
    namespace = f"f{uuid.uuid4().hex[:10]}"
    lake.sql(f"CREATE NAMESPACE lake.{namespace}")
    settings = {
        # Two executors; of two attempts that are stopped, neither keeps a rival from its cores.
        "spark.master": "local-cluster[2,3,1024]",
        "spark.executor.memory": "768m",
        f"spark.executorEnv.{VARIABLE}": str(armed),
    }
    with (
        connect_server(folder / "server", settings) as remote,
        Nursery.opened(folder, {VARIABLE: str(armed)}) as nursery,
    ):
        yield Desk(
            stack=stack,
            lake=lake,
            namespace=namespace,
            # One session for all drivers: Spark starts new Python workers for each session.
            remote=f"{remote}/;user_id=desk;session_id={uuid.uuid4()}",
            armed=armed,
            nursery=nursery,
        )
