"""A lake whose store and tables are in an object store of an emulator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from holdfast.storage.objects import ObjectStorage
from tests.fakes.cli_lake import CliLake


@dataclass(frozen=True)
class CloudLake(CliLake):
    """Store and tables in one bucket; where it is, the environment says. The catalog is a file."""

    root: str = ""

    @property
    def store(self) -> str:
        """The store's URI."""
        return f"{self.root}/store"

    @property
    def properties(self) -> Mapping[str, str]:
        """What PyIceberg needs to open the catalog."""
        return {**super().properties, "warehouse": f"{self.root}/warehouse"}

    def objects(self, folder: str) -> set[str]:
        """Return the names of all objects below a folder."""
        return {uri for uri, _ in ObjectStorage().walk(f"{self.root}/{folder}")}

    def data_names(self) -> set[str]:
        """Return the data files in the table's folder, landed or not."""
        return {uri for uri in self.objects("warehouse") if uri.endswith(".parquet")}

    def ids(self) -> list[int]:
        """Return what is in the table, as PyIceberg reads it."""
        found: pa.Table = self.make_table().load().handle.scan().to_arrow()
        return sorted(found["id"].to_pylist())
