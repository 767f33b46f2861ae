"""Files of position deletes: which rows of a data file are gone, by their numbers.

One file of deletes is for one data file, as its bounds say: both are the data file's whole path.
Readers then apply it to no other file, and compactions drop it with that one. It has the data
file's spec and partition, where readers look for it. It has no sequence number: it gets that of
the snapshot that lists it. Rows that the same snapshot adds are in other files, so they stay.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestContent
from pyiceberg.typedef import Record

from holdfast.failpoints import failpoint
from holdfast.model.work import StagedGroup
from holdfast.reading.parquet_file import Numbers
from holdfast.sinks.iceberg.data_file import WriteOptions
from holdfast.sinks.iceberg.manifests import NewManifest, detail_of, staged_files
from holdfast.storage.port import Storage

# The columns' ids, and their bounds, as Iceberg reserves and encodes them.
_PATH_ID, _POSITION_ID = 2147483546, 2147483545
_POSITION = struct.Struct("<q")
# Properties of files of deletes; without them, those of data files count.
_OWN, _OF_DATA = "write.delete.parquet.", "write.parquet."


@dataclass(frozen=True, slots=True, kw_only=True)
class LosingFile:
    """A data file that stays in the table and loses rows."""

    path: str
    spec_id: int
    partition: Record


def is_of_deletes(group: StagedGroup) -> bool:
    """Whether a group consists of deletes: then the file that they are for stays in the table.

    Raises:
        LedgerDamagedError: The ledger's details of the group are not what was written.
    """
    return detail_of(group).content == ManifestContent.DELETES


def write_position_deletes(
    storage: Storage,
    uri: str,
    *,
    of: LosingFile,
    positions: Numbers,
    parquet: Mapping[str, object],
) -> DataFile:
    """Write the numbers of rows that are gone, and return the file as its manifest lists it.

    Args:
        storage: Where the file is written.
        uri: The file's name.
        of: The data file.
        positions: The rows, in order; at least one.
        parquet: Arguments of pyarrow's writer: see `parquet_options`.

    Raises:
        StorageError: The storage does not answer.
    """
    names = pa.DictionaryArray.from_arrays(
        pa.array(np.zeros(len(positions), dtype=np.int32)), pa.array([of.path])
    )
    columns = pa.schema(
        [_column("file_path", names.type, _PATH_ID), _column("pos", pa.int64(), _POSITION_ID)]
    )
    rows = pa.Table.from_arrays([names, pa.array(positions, pa.int64())], schema=columns)
    encoded = io.BytesIO()
    # Readers get a text, not a dictionary.
    pq.write_table(rows, encoded, store_schema=False, use_dictionary=["file_path"], **parquet)
    data = encoded.getvalue()
    failpoint("before-delete-file")
    storage.put(uri, data)
    failpoint("after-delete-file")
    path = of.path.encode()
    file = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=uri,
        file_format=FileFormat.PARQUET,
        partition=of.partition,
        record_count=len(positions),
        file_size_in_bytes=len(data),
        # Whole, however long: a bound that is cut short would say that other files may be meant.
        lower_bounds={_PATH_ID: path, _POSITION_ID: _POSITION.pack(int(positions[0]))},
        upper_bounds={_PATH_ID: path, _POSITION_ID: _POSITION.pack(int(positions[-1]))},
    )
    file.spec_id = of.spec_id
    return file


def staged_deletes(file: DataFile, made: NewManifest) -> StagedGroup:
    """Return a file of deletes as a group; its entry is carried, however large it is."""
    return StagedGroup(
        path=file.file_path,
        size_bytes=file.file_size_in_bytes,
        files=staged_files([file]),
        detail={**made.detail, **made.carried},
    )


def parquet_options(table: str, properties: Mapping[str, str]) -> Mapping[str, object]:
    """Return how a table wants its files of deletes encoded.

    Raises:
        UnsupportedTableError: A size is not a number.
    """
    own = {
        _OF_DATA + name.removeprefix(_OWN): value
        for name, value in properties.items()
        if name.startswith(_OWN)
    }
    return WriteOptions.of(table, {**properties, **own}).parquet


def _column(name: str, kind: pa.DataType, number: int) -> pa.Field:
    return pa.field(name, kind, nullable=False, metadata={"PARQUET:field_id": str(number)})
