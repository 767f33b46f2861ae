"""Position deletes: files that name rows of other files."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from holdfast.errors import InputChangedError
from holdfast.model.pins import PinnedFile
from holdfast.sources.tagging import Numbers
from holdfast.storage.port import Storage

# Many files of one partition share a delete file.
_FILES_HELD = 8


@dataclass(frozen=True, kw_only=True)
class PositionDeletes:
    """Reads the delete files that apply to a file. Pickled with a task."""

    storage: Storage
    _held: dict[str, pa.Table] = field(default_factory=dict, compare=False, repr=False)

    def numbers(self, file: PinnedFile) -> Numbers | None:
        """Return the numbers of a file's deleted rows, in order; None if there are none.

        Raises:
            InputChangedError: A delete file is gone.
        """
        found = [
            positions
            for uri in file.deletes
            if len(positions := _positions(self._read(uri), file.uri))
        ]
        return np.unique(np.concatenate(found)) if found else None

    def _read(self, uri: str) -> pa.Table:
        if uri in self._held:
            return self._held[uri]
        try:
            data = self.storage.get(uri)
        except FileNotFoundError as error:
            raise InputChangedError(what=f"{uri} is gone") from error
        with pq.ParquetFile(pa.BufferReader(data), read_dictionary=["file_path"]) as deletes:
            table = deletes.read(columns=["file_path", "pos"])
        if len(self._held) == _FILES_HELD:
            self._held.pop(next(iter(self._held)))
        self._held[uri] = table
        return table


def _positions(deletes: pa.Table, uri: str) -> Numbers:
    named: Numbers = deletes.filter(pc.field("file_path") == uri)["pos"].to_numpy()
    return named
