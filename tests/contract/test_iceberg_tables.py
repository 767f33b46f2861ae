"""The sink contract on Iceberg tables, in every kind of catalog under test."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.contract.iceberg_tables import IcebergTable, NessieTable, RestTable, SqlTable
from tests.contract.sink_contract import SinkContract
from tests.fault_proxy import fault_proxy
from tests.stack_access import Stack


class IcebergContract(SinkContract):
    """The contract on the tables that `make` makes; they are closed after each case."""

    make: Callable[..., IcebergTable]
    _closing: contextlib.ExitStack

    @pytest.fixture(autouse=True)
    def closing(self) -> Iterator[None]:
        """Close what the case has opened."""
        with contextlib.ExitStack() as self._closing:
            yield

    def table(self, *, empty: bool = False) -> IcebergTable:
        """Return a new table in a namespace of its own."""
        table = self.make(empty=empty)
        self._closing.callback(table.close)
        return table


class TestSqliteCatalog(IcebergContract):
    """PyIceberg's SQL catalog on SQLite, with files in a local folder: no server."""

    @pytest.fixture(autouse=True)
    def catalog(self, tmp_path: Path) -> None:
        """Keep the catalog in a file, which several connections share."""
        uri, warehouse = f"sqlite:///{tmp_path}/catalog.db", f"file://{tmp_path}/warehouse"
        self.make = partial(SqlTable, "local", {"type": "sql", "uri": uri, "warehouse": warehouse})


@pytest.mark.stack
@pytest.mark.postgres
class TestPostgresCatalog(IcebergContract):
    """PyIceberg's SQL catalog on PostgreSQL, with files in an S3 store."""

    @pytest.fixture(autouse=True)
    def catalog(self, stack: Stack) -> None:
        """Reach the stack's own database and store."""
        database = stack.postgres
        login = f"{database.user}:{database.password}@{database.host}:{database.port}"
        properties = {
            "type": "sql",
            "uri": f"postgresql+psycopg2://{login}/{database.database}",
            "warehouse": "s3://lake/sqlwh",
            **{k: v for k, v in stack.rest_catalog_properties().items() if k.startswith("s3.")},
        }
        self.make = partial(SqlTable, "sqlcat", properties)


@pytest.mark.spark
@pytest.mark.stack
@pytest.mark.rest
class TestRestCatalog(IcebergContract):
    """Iceberg's reference REST catalog."""

    @pytest.fixture(autouse=True)
    def catalog(self, stack: Stack, lake: SparkSession) -> Iterator[None]:
        """Put a proxy in front of the catalog."""
        properties = stack.rest_catalog_properties()
        with fault_proxy(properties["uri"]) as proxy:
            self.make = partial(RestTable, "lake", properties, proxy, lake)
            yield
            assert not proxy.faults  # Every fault was injected, so no case was empty.


@pytest.mark.spark
@pytest.mark.stack
@pytest.mark.nessie
class TestNessieCatalog(IcebergContract):
    """Nessie, which hides a table's history."""

    @pytest.fixture(autouse=True)
    def catalog(self, stack: Stack, lake: SparkSession) -> Iterator[None]:
        """Put a proxy in front of the catalog."""
        properties = stack.nessie_catalog_properties()
        with fault_proxy(properties["uri"]) as proxy:
            self.make = partial(NessieTable, "nessie", properties, proxy, lake)
            yield
            assert not proxy.faults  # Every fault was injected, so no case was empty.
