"""Through real Spark: the owner of a table changes its columns between the starts of one run."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.errors import TransformError
from tests.integration.process_watched import ROWS, WatchedTable

pytestmark = [pytest.mark.spark, pytest.mark.stack, pytest.mark.rest]
WARNS = pytest.mark.filterwarnings("ignore:run .* code has changed:UserWarning")

ALL = list(range(ROWS))
# A row of each task, so that neither task ends before the last start.
FIRST_STOP, SECOND_STOP = (4, 14), (8, 18)


class Scored:
    """Gives each row a score once the table has the column, and fails at some rows."""

    def __init__(self, key: str, *, fails_at: Collection[int] = (), column: str = "") -> None:
        """Take the key's name, the rows to fail at, and the column to fill."""
        self.key, self.fails_at, self.column = key, fails_at, column

    def __call__(self, batch: pa.RecordBatch) -> dict[str, Any]:
        """Return the rows."""
        keys = batch[self.key].to_pylist()
        if bad := set(self.fails_at).intersection(keys):
            raise LookupError(f"no answer for {sorted(bad)}")
        more: dict[str, Any] = {self.column: [f"paid-{key}" for key in keys]} if self.column else {}
        if self.key == "n":  # The Iceberg table has a narrow column, by which it is partitioned.
            more["v"] = pa.array([key % 3 for key in keys], pa.int32())
        return {self.key: keys, **more}


def fail(append: Any, transform: Scored) -> None:  # noqa: ANN401 - of either desk.
    """Start the job, which keeps what it has done before it fails."""
    with pytest.raises(TransformError):
        append(transform=transform)


def three_starts_of_iceberg(watched: WatchedTable, last_change: list[str]) -> hf.Report:
    """Start, add a column, start and fill it, change the table again, then run to the end."""
    watched.lake.sql(
        f"CREATE TABLE {watched.name} (n BIGINT, v INT) USING iceberg PARTITIONED BY (v)"
    )
    fail(watched.append, Scored("n", fails_at=FIRST_STOP))
    watched.lake.sql(f"ALTER TABLE {watched.name} ADD COLUMN score STRING")
    fail(watched.append, Scored("n", fails_at=SECOND_STOP, column="score"))
    for change in last_change:
        watched.lake.sql(f"ALTER TABLE {watched.name} {change}")
    return watched.append(transform=Scored("n", column="score"))


@WARNS
def test_a_column_that_is_added_and_one_that_is_widened_between_starts_do_not(
    watched: WatchedTable,
) -> None:
    """Spark reads every value that was computed, and NULL where the column did not exist yet."""
    report = three_starts_of_iceberg(watched, ["ALTER COLUMN v TYPE BIGINT"])
    table = watched.lake.table(watched.name)
    rows = table.orderBy("n").collect()
    assert [(row["n"], row["v"]) for row in rows] == [(n, n % 3) for n in ALL]
    for value in range(3):  # From what the manifests say about partitions and bounds.
        found = sorted(row["n"] for row in table.where(f"v = {value}L").collect())
        assert found == [n for n in ALL if n % 3 == value]
    without = [row["n"] for row in rows if row["score"] is None]
    assert 0 < len(without) < ROWS
    assert all(row["score"] in (None, f"paid-{row['n']}") for row in rows)
    assert report.kept_rows > len(without) > 0
