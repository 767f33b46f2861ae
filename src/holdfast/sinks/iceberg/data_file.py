"""One Parquet data file on its way: row groups are written through, nothing is kept."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import parquet_path_to_id_mapping
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema, sanitize_column_names
from pyiceberg.typedef import Record

from holdfast.sinks.iceberg.dictionaries import dictionary_columns
from holdfast.sinks.iceberg.schemas import parquet_schema
from holdfast.sinks.iceberg.statistics import file_statistics, statistics_plan
from holdfast.storage.arrow_file import ArrowFile
from holdfast.storage.port import Storage
from holdfast.storage.runtime import io_runtime


class FileLayout:
    """What all data files of one table have in common, worked out once."""

    def __init__(
        self,
        schema: Schema,
        spec_id: int,
        properties: Mapping[str, str],
        parquet: Mapping[str, Any],
    ) -> None:
        """Work out what PyIceberg takes longer for than a small file takes to encode.

        Args:
            schema: The table's schema.
            spec_id: The partition spec that files are written with.
            properties: The table's.
            parquet: Arguments of pyarrow's ParquetWriter.
        """
        self.spec_id = spec_id
        self.parquet = parquet
        self.schema = parquet_schema(schema)
        # Field ids by Parquet path.
        self.leaf_paths = parquet_path_to_id_mapping(sanitize_column_names(schema))
        self.statistics = statistics_plan(schema, properties)


class OpenDataFile:
    """A data file that is still being written."""

    def __init__(
        self, storage: Storage, uri: str, partition: Record, layout: FileLayout, sample: pa.Table
    ) -> None:
        """Open the upload; nothing is visible before `close`.

        Args:
            storage: Where.
            uri: The file's name.
            partition: The partition that all its rows are in.
            layout: What it shares with all files of the table.
            sample: Its first rows, to judge how to encode them; they are not written here.
        """
        self.uri = uri
        self._partition = partition
        self._layout = layout
        self._row_groups = 0
        self._arrival: Future[None] | None = None
        self._file = ArrowFile(storage.open_sink(uri))
        self._writer = pq.ParquetWriter(
            pa.PythonFile(self._file, mode="w"),
            layout.schema,
            use_dictionary=dictionary_columns(sample, layout.leaf_paths),
            **layout.parquet,
        )

    @property
    def size_bytes(self) -> int:
        """How much was encoded so far."""
        return self._file.size_bytes

    def write_row_group(self, rows: pa.Table) -> None:
        """Encode the rows, which are in the file's schema, as one row group and pass it on."""
        self._writer.write_table(rows, row_group_size=max(1, rows.num_rows))
        self._row_groups += 1

    def close(self, sort_order_id: int | None) -> DataFile:
        """End the file, which has at least one row group, and return its manifest entry.

        What is left of it goes out behind the caller: it is there once `arrived` returns.

        Args:
            sort_order_id: The order that each row group is sorted by, if any. Only a file of a
                single row group is sorted as a whole, so only such a file says so.
        """
        self._writer.close()
        self._arrival = io_runtime().read(self._file.finish, 0)
        data_file = DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=self.uri,
            file_format=FileFormat.PARQUET,
            partition=self._partition,
            file_size_in_bytes=self._file.size_bytes,
            sort_order_id=sort_order_id if self._row_groups == 1 else None,
            equality_ids=None,
            key_metadata=None,
            **file_statistics(
                self._writer.writer.metadata, self._layout.statistics, self._layout.leaf_paths
            ),
        )
        data_file.spec_id = self._layout.spec_id
        return data_file

    def arrived(self) -> None:
        """Wait until the closed file is there.

        Raises:
            StorageError: It is not.
        """
        if self._arrival is not None:
            self._arrival.result()

    def abandon(self) -> None:
        """Give the file up; nothing becomes visible."""
        self._file.discard()
        self._writer.close()
