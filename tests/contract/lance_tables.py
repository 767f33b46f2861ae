"""Lance datasets for the sink contract; other writers use Lance itself."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

import lance
import pyarrow as pa
import pytest

from holdfast.sinks.lance import post as lance_post
from holdfast.sinks.lance.dataset import DatasetPlace, for_lance
from holdfast.sinks.lance.sink import LanceSink
from tests.contract.table_under_test import TableUnderTest

_SCHEMA = pa.schema([("id", pa.int64())])


class LanceDatasetUnderTest(TableUnderTest):
    """A dataset at a place of its own."""

    counts_versions = True

    def __init__(
        self, uri: str, options: Mapping[str, str], patch: pytest.MonkeyPatch, *, empty: bool
    ) -> None:
        """Create the dataset.

        Args:
            uri: Where.
            options: Storage options, under any of the names that they have.
            patch: Undoes what `lose_next_answer` does.
            empty: Without rows; otherwise with one of another writer's.
        """
        self.uri, self._patch = uri, patch
        self.place = DatasetPlace(uri=uri, options=dict(options))
        self.options = self.lance_options(options)
        self._create()
        if not empty:
            self.foreign_append()

    @staticmethod
    def lance_options(options: Mapping[str, str]) -> dict[str, str]:
        """Return the options as Lance itself takes them."""
        return for_lance(options)

    def sink(self) -> LanceSink:
        """Return a sink of its own."""
        return LanceSink(self.place, rows_per_file=1000, bytes_per_file=10**9)

    def rows(self) -> list[int]:
        """Read with Lance; the column may have been renamed."""
        found: list[int] = self.load().to_table().column(0).to_pylist()
        return found

    def foreign_append(self) -> None:
        """Append one row with Lance."""
        self._write([-1], mode="append")

    def change_schema(self) -> None:
        """Rename the column."""
        change: Any = {"path": "id", "name": "number"}
        self.load().alter_columns(change)

    def drop_and_create(self) -> None:
        """Drop the dataset, and make it again."""
        self.drop()
        self._create()

    def remove_file(self, path: str) -> None:
        """Delete a file without going through the dataset."""
        self.place.storage.delete([path])

    def path_outside(self) -> str:
        """Return a path in a folder whose name begins with the dataset's."""
        return f"{self.place.data}-other/x.lance"

    def drop(self) -> None:
        """Delete the folder, which is how a dataset is dropped."""
        self.place.storage.delete(self.place.storage.list(self.uri))

    def roll_back(self, snapshot_id: int) -> None:
        """Restore an older version."""
        old: Any = lance.dataset(self.uri, version=snapshot_id, storage_options=self.options)
        old.restore()

    def replace(self) -> None:
        """Overwrite the dataset."""
        self._write([-2], mode="overwrite")

    def expire_history(self) -> None:
        """Clean up all versions but the newest."""
        self.load().cleanup_old_versions(older_than=dt.timedelta(0))

    def forget_marks(self) -> None:
        """Remove the schema's metadata."""
        assert self.load().schema.metadata  # The case is not empty.
        self.load().update_schema_metadata({}, replace=True)

    def lose_next_answer(self, *, landed: bool) -> None:
        """Let the next commit of any sink end without an answer."""
        true_commit = lance.LanceDataset.commit

        class Losing:
            """Replaces Lance's class in the sink for one commit."""

            @staticmethod
            def commit(*args: Any, **options: Any) -> lance.LanceDataset:  # noqa: ANN401
                self._patch.setattr(lance_post, "LanceDataset", lance.LanceDataset)
                if landed:
                    true_commit(*args, **options)
                raise OSError("connection reset by peer")

        self._patch.setattr(lance_post, "LanceDataset", Losing)

    def load(self) -> lance.LanceDataset:
        """Return the newest version, as other clients see it."""
        return lance.dataset(self.uri, storage_options=self.options)

    def _create(self) -> None:
        self._write([], mode="create")

    def _write(self, ids: list[int], mode: Any) -> None:  # noqa: ANN401 - Lance's literal.
        table = pa.table({"id": pa.array(ids, pa.int64())}, schema=_SCHEMA)
        lance.write_dataset(table, self.uri, mode=mode, storage_options=self.options)
