"""Files of position deletes: what a task finds in a data file, and what it writes for it."""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.typedef import Record

from holdfast.errors import UnsupportedTableError
from holdfast.sinks.iceberg.position_deletes import (
    LosingFile,
    is_of_deletes,
    parquet_options,
    write_position_deletes,
)
from holdfast.sinks.iceberg.rewrite_rows import RewriteSpec, RewrittenFile, TargetFile
from tests.fakes.iceberg_tables import local_path
from tests.fakes.memory_storage import MemoryStorage
from tests.fakes.position_deletes import delete_positions
from tests.unit.sinks.iceberg.test_rewrite_rows import (
    BY_COUNTRY,
    NAMES,
    Rewriting,
    foreign_file,
    numbered,
    times,
)


class Deleting(Rewriting):
    """A table, of whose files rows are deleted by their numbers."""

    def spec(self, where: str) -> RewriteSpec:
        """Return what a worker gets."""
        given = replace(super().spec(where), by_position=True)
        sent: RewriteSpec = pickle.loads(pickle.dumps(given))  # noqa: S301 - our own.
        return sent

    def positions(self, where: str, target: TargetFile | None = None) -> Sequence[int]:
        """Return the rows of a file that go."""
        return positions(self.rewrite(where, target))


def positions(done: RewrittenFile) -> list[int]:
    """Return what a file of deletes says."""
    assert done.group is not None
    assert is_of_deletes(done.group)
    (file,) = done.group.files
    rows = pq.read_table(local_path(file.path)).to_pydict()
    assert file.rows == len(rows["pos"])
    assert file.size_bytes == local_path(file.path).stat().st_size
    assert len(set(rows["file_path"])) == 1
    found: list[int] = rows["pos"]
    return found


def test_positions_count_through_row_groups(tmp_path: Path) -> None:
    """From the first row of the file on; only the columns of the condition are read."""
    made = Deleting(tmp_path)
    made.append(*numbered(*range(40)))
    (target,) = made.targets()
    old = pq.read_table(local_path(target.path))
    local_path(target.path).unlink()
    pq.write_table(old, local_path(target.path), row_group_size=4)
    target = replace(target, size_bytes=local_path(target.path).stat().st_size)
    gone = [0, 3, 4, 17, 38, 39]
    done = made.rewrite(f"id in ({', '.join(map(str, gone))})", target)
    assert positions(done) == gone
    assert (done.removed_rows, done.kept_rows) == (6, 34)


def test_nothing_is_written_if_no_row_goes_or_none_stays(tmp_path: Path) -> None:
    """A file without rows left is removed instead, whatever was deleted in it before."""
    made = Deleting(tmp_path)
    made.append(*numbered(*range(8)))
    (target,) = made.targets()
    delete_positions(made.table, {target.path: [0, 4]})
    before = sorted(tmp_path.rglob("*.parquet"))
    assert made.rewrite("id = 4") == RewrittenFile(removed_rows=0, kept_rows=6, group=None)
    gone = RewrittenFile(removed_rows=6, kept_rows=0, group=None)
    assert made.rewrite("id != 0 and id != 4") == gone
    assert sorted(tmp_path.rglob("*.parquet")) == before
    assert made.positions("id < 3") == [1, 2]


def test_a_file_without_ids_is_read_by_the_name_mapping(tmp_path: Path) -> None:
    """A column that only the partition has is judged by the partition's value."""
    made = Deleting(tmp_path, spec=BY_COUNTRY, properties=NAMES)
    given = foreign_file(made, pa.table({"id": [1, 2], "n": pa.array([5, None], pa.int32())}))
    in_fi = replace(given, partition=("fi",))
    assert made.positions("c = 'fi' and n = 5", in_fi) == [0]
    assert made.rewrite("c = 'se'", in_fi).removed_rows == 0


def test_other_columns_need_not_be_writable(tmp_path: Path) -> None:
    """INT96, nanoseconds, types that the table does not have: they are not even read."""
    made = Deleting(tmp_path, properties=NAMES)
    for unit, options in (("us", {"use_deprecated_int96_timestamps": True}), ("ns", {})):
        rows = pa.concat_tables([times(unit), times(unit).set_column(0, "id", pa.array([2]))])
        assert made.positions("id = 2", foreign_file(made, rows, **options)) == [1]


@pytest.mark.parametrize(
    ("rows", "options", "problem"),
    [
        (pa.table({"id": ["1", "2"]}), {}, "column 'id' is string, not long"),
        (pa.table({"x": [1, 2]}), {}, None),
    ],
    ids=["a text", "not there"],
)
def test_columns_of_the_condition_must_be_readable(
    tmp_path: Path, rows: pa.Table, options: dict[str, Any], problem: str | None
) -> None:
    """A text is no number; a column that is not there is NULL, which matches nothing."""
    made = Deleting(tmp_path, properties=NAMES)
    given = foreign_file(made, rows, **options)
    if problem is None:
        assert made.rewrite("id = 1", given).removed_rows == 0
        return
    with pytest.raises(UnsupportedTableError, match=problem):
        made.rewrite("id = 1", given)


def test_a_file_without_ids_and_names_is_refused(tmp_path: Path) -> None:
    """Its columns would all be NULL to us, while Spark numbers them by their places."""
    made = Deleting(tmp_path)
    given = foreign_file(made, pa.table({"id": [1, 2]}))
    with pytest.raises(UnsupportedTableError, match="no field-ids"):
        made.rewrite("id = 1", given)


def test_bounds_are_whole_however_long_the_path_is() -> None:
    """Cut short, they would say that the deletes may be for other files."""
    storage, path = MemoryStorage(), f"s3://lake/{'x' * 900}/é.parquet"
    file = write_position_deletes(
        storage,
        "s3://lake/d.parquet",
        of=LosingFile(path=path, spec_id=3, partition=Record("fi")),
        positions=np.arange(5, 200_005, dtype=np.int64),
        parquet=parquet_options("t", {}),
    )
    assert (file.spec_id, file.partition[0], file.record_count) == (3, "fi", 200_000)
    for bounds, at in ((file.lower_bounds, 5), (file.upper_bounds, 200_004)):
        assert list(bounds.values()) == [path.encode(), at.to_bytes(8, "little")]
    data = storage.objects["s3://lake/d.parquet"]
    assert file.file_size_in_bytes == len(data) < 1_000_000
    with pq.ParquetFile(pa.BufferReader(data)) as parquet:
        assert parquet.schema_arrow.types == [pa.string(), pa.int64()]
        statistics = parquet.metadata.row_group(0).column(0).statistics
        assert statistics is None or not statistics.has_min_max or statistics.min == path


def test_deletes_are_encoded_as_the_table_wants(tmp_path: Path) -> None:
    """By properties of their own, or by those of data files."""
    assert parquet_options("t", {})["compression"] == "zstd"
    own = {"write.parquet.compression-codec": "gzip"}
    assert parquet_options("t", own)["compression"] == "gzip"
    own["write.delete.parquet.compression-codec"] = "snappy"
    assert parquet_options("t", own)["compression"] == "snappy"
    made = Deleting(tmp_path, properties=own)
    made.append(*numbered(*range(8)))
    done = made.rewrite("id = 3")
    assert done.group is not None
    with pq.ParquetFile(local_path(done.group.files[0].path)) as parquet:
        assert parquet.metadata.row_group(0).column(0).compression == "SNAPPY"


def test_a_group_of_data_is_none_of_deletes(tmp_path: Path) -> None:
    """Otherwise the old file would stay beside the new one."""
    made = Rewriting(tmp_path)
    made.append(*numbered(*range(8)))
    done = made.spec("id = 1").open(uuid.uuid4().hex).rewrite(made.targets()[0])
    assert done.group is not None
    assert not is_of_deletes(done.group)
