"""The real servers, as tests see them: endpoints from stack.json, and settings made from them.

`make stack` starts the servers (dev/stack/). The fixture `stack` skips a test when they do not run.
In CI, or when HOLDFAST_REQUIRE_STACK is set, it fails the test, so that no run passes by skipping.
"""

from __future__ import annotations

import json
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

import pyspark
import pytest

HOW_TO_START = "the stack is not running: make stack"


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Endpoint:
    """An S3 server on loopback, with its one bucket."""

    endpoint: str
    access_key: str
    secret_key: str
    region: str
    bucket: str

    def obstore_config(self) -> dict[str, str]:
        """Return the keyword arguments of obstore's S3Store; add client_options for plain HTTP."""
        return {
            "bucket": self.bucket,
            "endpoint": self.endpoint,
            "access_key_id": self.access_key,
            "secret_access_key": self.secret_key,
            "region": self.region,
        }

    def iceberg_properties(self) -> dict[str, str]:
        """Return the file settings that PyIceberg and Spark's Iceberg share."""
        return {
            "s3.endpoint": self.endpoint,
            "s3.access-key-id": self.access_key,
            "s3.secret-access-key": self.secret_key,
            "s3.path-style-access": "true",
        }

    def store_options(self) -> dict[str, str]:
        """Return what a ledger on this server needs: `store_options` of `hf.Run`."""
        return {**self.iceberg_properties(), "s3.region": self.region}

    def lance_options(self) -> dict[str, str]:
        """Return the storage options of a Lance dataset on this server, in Lance's own names."""
        return {
            "aws_endpoint": self.endpoint,
            "aws_access_key_id": self.access_key,
            "aws_secret_access_key": self.secret_key,
            "aws_region": self.region,
            "allow_http": "true",
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Postgres:
    """PostgreSQL, with the database that the REST catalog uses."""

    host: str
    port: int
    user: str
    password: str
    database: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RestCatalog:
    """An Iceberg REST catalog."""

    uri: str
    warehouse: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkCluster:
    """A standalone master with two workers of one core each, and the jars for its sessions."""

    master: str
    master_ui: str
    python: str
    jars: tuple[str, ...]

    def session_conf(self) -> dict[str, str]:
        """Return the settings of a session on the cluster, without any catalog.

        Set `session_env` before the session starts: settings cannot name the interpreter.
        """
        return {
            "spark.master": self.master,
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
        }

    def reads_iceberg(self) -> bool:
        """Return whether the jars hold Iceberg's runtime for the PySpark that is installed."""
        minor = ".".join(pyspark.__version__.split(".")[:2])
        return any(f"/iceberg-spark-runtime-{minor}_" in jar for jar in self.jars)

    def session_env(self) -> dict[str, str]:
        """Return the environment of a driver: PySpark takes the executors' Python from it."""
        return {"PYSPARK_PYTHON": self.python, "SPARK_LOCAL_IP": "127.0.0.1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """All servers. `nessie` and `minio` are there when the stack was started with them."""

    s3: S3Endpoint
    s3_nometa: S3Endpoint
    s3_via_toxiproxy: S3Endpoint
    toxiproxy_api: str
    postgres: Postgres
    rest: RestCatalog
    rest_via_toxiproxy: RestCatalog
    spark: SparkCluster
    connect_remote: str
    nessie: RestCatalog | None
    minio: S3Endpoint | None

    def rest_catalog_properties(self, *, via_toxiproxy: bool = False) -> dict[str, str]:
        """Return PyIceberg's properties for the reference REST catalog."""
        catalog = self.rest_via_toxiproxy if via_toxiproxy else self.rest
        return self._pyiceberg(catalog)

    def nessie_catalog_properties(self) -> dict[str, str]:
        """Return PyIceberg's properties for Nessie; skip the test if it does not run."""
        return self._pyiceberg(self._wanted_nessie())

    def spark_catalog_conf(self, name: str) -> dict[str, str]:
        """Return Spark's settings for the reference REST catalog under a catalog name."""
        return self._spark(name, self.rest)

    def nessie_spark_conf(self, name: str) -> dict[str, str]:
        """Return Spark's settings for Nessie; skip the test if it does not run."""
        return self._spark(name, self._wanted_nessie())

    def wanted_minio(self) -> S3Endpoint:
        """Return MinIO; skip the test if it does not run."""
        if self.minio is None:
            missing("MinIO is not part of the running stack: make stack WITH=minio")
        return self.minio

    def _wanted_nessie(self) -> RestCatalog:
        if self.nessie is None:
            missing("Nessie is not part of the running stack: make stack WITH=nessie")
        return self.nessie

    def _pyiceberg(self, catalog: RestCatalog) -> dict[str, str]:
        return {
            "type": "rest",
            "uri": catalog.uri,
            "warehouse": catalog.warehouse,
            **self.s3.store_options(),
        }

    def _spark(self, name: str, catalog: RestCatalog) -> dict[str, str]:
        settings = {
            "type": "rest",
            "uri": catalog.uri,
            "warehouse": catalog.warehouse,
            "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
            "client.region": self.s3.region,
            **self.s3.iceberg_properties(),
        }
        prefix = f"spark.sql.catalog.{name}"
        return {
            prefix: "org.apache.iceberg.spark.SparkCatalog",
            **{f"{prefix}.{key}": value for key, value in settings.items()},
            "spark.jars": ",".join(self.spark.jars),
            "spark.sql.extensions": (
                "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
            ),
        }


def stack_file() -> Path:
    """Return where dev/stack/stack.py describes the running servers."""
    default = Path.home() / ".cache" / "holdfast" / "stack"
    return Path(os.environ.get("HOLDFAST_STACK_DIR") or default) / "stack.json"


def load_stack() -> Stack | None:
    """Return the running stack; None if it was not started or a server does not listen."""
    try:
        found: dict[str, Any] = json.loads(stack_file().read_text("utf-8"))
    except FileNotFoundError:
        return None
    stack = Stack(
        s3=S3Endpoint(**found["s3"]),
        s3_nometa=S3Endpoint(**found["s3_nometa"]),
        s3_via_toxiproxy=S3Endpoint(**found["s3_via_toxiproxy"]),
        toxiproxy_api=found["toxiproxy"]["api"],
        postgres=Postgres(**found["postgres"]),
        rest=RestCatalog(**found["rest"]),
        rest_via_toxiproxy=RestCatalog(**found["rest_via_toxiproxy"]),
        spark=SparkCluster(**{**found["spark"], "jars": tuple(found["spark"]["jars"])}),
        connect_remote=found["connect"]["remote"],
        nessie=RestCatalog(**found["nessie"]) if "nessie" in found else None,
        minio=S3Endpoint(**found["minio"]) if "minio" in found else None,
    )
    return stack if all(_listens(url) for url in _urls(stack)) else None


def _urls(stack: Stack) -> list[str]:
    """Return the address of each server, without the proxies, which a test may have cut."""
    urls = [stack.s3.endpoint, stack.s3_nometa.endpoint, stack.toxiproxy_api, stack.rest.uri]
    urls += [stack.spark.master, stack.connect_remote]
    urls.append(f"postgresql://{stack.postgres.host}:{stack.postgres.port}")
    urls += [stack.nessie.uri] if stack.nessie else []
    return urls + ([stack.minio.endpoint] if stack.minio else [])


def _listens(url: str) -> bool:
    """Return whether something accepts connections at an address."""
    address = urlsplit(url)
    try:
        with socket.create_connection((address.hostname or "", address.port or 0), timeout=2.0):
            return True
    except OSError:
        return False


def missing(reason: str) -> NoReturn:
    """Skip the test because a server is missing; fail it where the servers must run.

    Raises:
        pytest.fail.Exception: CI or HOLDFAST_REQUIRE_STACK is set.
        pytest.skip.Exception: Neither is set.
    """
    if os.environ.get("CI") or os.environ.get("HOLDFAST_REQUIRE_STACK"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def stack() -> Stack:
    """Return the running servers, or skip (fail in CI) with the command that starts them."""
    found = load_stack()
    if found is None:
        missing(HOW_TO_START)
    return found
