"""Scans of a Lance dataset without Spark."""

from __future__ import annotations

import datetime as dt
import shutil
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa

from holdfast.sinks.lance.dataset import DatasetPlace
from holdfast.sources.lance import PinnedLanceScan
from holdfast.sources.scans import scan_lance


class Dataset:
    """A dataset on disk, and scans of it."""

    def __init__(self, folder: Path) -> None:
        """Name its place; nothing is there yet."""
        self.path = folder / "rows.lance"

    def write(self, rows: pa.Table, **options: Any) -> int:  # noqa: ANN401 - Lance's own.
        """Write rows, and return the version."""
        return int(lance.write_dataset(rows, str(self.path), **options).version)

    def append(self, *ids: int, **options: Any) -> int:  # noqa: ANN401 - Lance's own.
        """Add rows of these ids as fragments, and return the version."""
        rows = {"id": pa.array(ids, pa.int64()), "name": [f"name {id_}" for id_ in ids]}
        mode = "append" if self.path.exists() else "create"
        return self.write(pa.table(rows), mode=mode, **options)

    def load(self) -> Any:  # noqa: ANN401 - Lance ships no types.
        """Return the newest version."""
        return lance.dataset(str(self.path))

    def delete(self, where: str) -> None:
        """Delete rows."""
        self.load().delete(where)

    def clean_up(self) -> None:
        """Clean up all versions but the newest."""
        self.load().cleanup_old_versions(older_than=dt.timedelta(0))

    def drop(self) -> None:
        """Delete the folder, which is how a dataset is dropped."""
        shutil.rmtree(self.path)

    def scan(self, **options: Any) -> PinnedLanceScan:  # noqa: ANN401 - those of `scan_lance`.
        """Return a scan of the dataset."""
        scan = scan_lance(str(self.path), **options)
        return PinnedLanceScan(scan, DatasetPlace(uri=scan.uri, options={}))
