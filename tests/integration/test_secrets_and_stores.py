"""Credentials stay where they were given, and a store that cannot hold a ledger is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.errors import UnsafeStoreError
from holdfast.storage.objects import ObjectStorage
from tests.conftest import PYTHON_PATH, ROOT
from tests.stack_access import Stack

pytestmark = [pytest.mark.spark, pytest.mark.stack, pytest.mark.versitygw]

CANARY = "canary-5d1f8c"


@pytest.mark.rest
def test_a_store_that_ignores_create_if_absent_is_refused(
    lake: SparkSession, stack: Stack, namespace: str
) -> None:
    """Versitygw without metadata overwrites: the run stops before any work, and says why."""
    lake.sql(f"CREATE TABLE lake.{namespace}.t (id bigint) USING iceberg")
    options = stack.s3_nometa.store_options()
    store = f"s3://{stack.s3_nometa.bucket}/ledger"
    with pytest.raises(UnsafeStoreError, match="create-if-absent"):
        hf.Run("r", store=store, store_options=options).append(
            lake.range(10), to=f"lake.{namespace}.t", key="id"
        )
    assert lake.table(f"lake.{namespace}.t.snapshots").count() == 0
    assert not [uri for uri in ObjectStorage(options).list(store) if "=probe" not in uri]


def cases(stack: Stack) -> list[dict[str, Any]]:
    """Return jobs that succeed, and that fail in every way that could show a credential."""
    catalog = stack.rest_catalog_properties()
    store = stack.s3.store_options()
    wrong = {"s3.access-key-id": f"{CANARY}-id", "s3.secret-access-key": f"{CANARY}-key"}
    nowhere = "http://127.0.0.1:9"
    database = f"postgresql+psycopg2://user:{CANARY}-password@127.0.0.1:9/cat"
    sql = {"type": "sql", "uri": database, "warehouse": "s3://lake/none"}
    return [
        {"run_id": "good", "catalog": catalog, "store_options": store, "create": True},
        {"run_id": "good", "catalog": catalog, "store_options": store},
        {"run_id": "fails", "catalog": catalog, "store_options": store, "fail": True},
        {"run_id": "store login", "catalog": catalog, "store_options": {**store, **wrong}},
        {"run_id": "files login", "catalog": {**catalog, **wrong}, "store_options": store},
        {
            "run_id": "no catalog",
            "catalog": {**catalog, "uri": nowhere, "token": f"{CANARY}-token"},
            "store_options": store,
        },
        {
            "run_id": "catalog login",
            "catalog": {**catalog, "credential": f"{CANARY}-client:{CANARY}-secret"},
            "store_options": store,
        },
        {"run_id": "no database", "catalog": sql, "store_options": store},
        {
            "run_id": "no store",
            "catalog": catalog,
            "store_options": {**store, **wrong, "s3.endpoint": nowhere},
        },
    ]


def test_no_credential_is_in_any_record_log_line_or_error(stack: Stack, tmp_path: Path) -> None:
    """Planted credentials are in nothing that is printed, logged or stored.

    Method: one process runs all cases with every logger at its most talkative; its output,
    Spark's event log, the ledger and all files of the table are searched.
    """
    namespace = f"t{uuid.uuid4().hex[:10]}"
    store = f"s3://{stack.s3.bucket}/ledger-{namespace}"
    order = {
        "event_log": str(tmp_path),
        "table": f"{namespace}.t",
        "store": store,
        "cases": cases(stack),
    }
    make_namespace(stack, namespace)
    done = subprocess.run(
        [sys.executable, "-m", "tests.integration.secret_job"],
        input=json.dumps(order),
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": PYTHON_PATH, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    # The reference catalog lets any client in, so "catalog login" succeeds, beside the other two.
    assert done.stdout.count("ended well") == 3
    assert done.stdout.count("ended in") == len(order["cases"]) - 3  # Each error was seen.
    places = {"stdout": done.stdout.encode(), "stderr": done.stderr.encode()}
    places |= {str(file): file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    storage = ObjectStorage(stack.s3.store_options())
    stored = [*storage.list(store), *storage.list(f"s3://{stack.s3.bucket}/wh/{namespace}")]
    assert any("/log/" in uri for uri in stored)
    assert any("/metadata/" in uri for uri in stored)
    places |= {uri: storage.get(uri) for uri in stored}
    secrets = [CANARY, stack.s3.secret_key]
    shown = [
        (place, data[max(0, data.find(secret.encode()) - 200) :][:300])
        for place, data in places.items()
        for secret in secrets
        if secret.encode() in data
    ]
    assert shown == []


def make_namespace(stack: Stack, namespace: str) -> None:
    """Create a namespace in the REST catalog."""
    from pyiceberg.catalog import load_catalog  # noqa: PLC0415 - slow, and only needed here.

    load_catalog("default", **stack.rest_catalog_properties()).create_namespace(namespace)
