"""Indices on columns that are computed again: none answers with the values from before.

Lance's merge takes a fragment out of an index if a file names the indexed column's number. Files of
format 2.1 and newer name neither a list nor the children of a packed struct, a fragment that others
appended without the column names nothing, and an index build under way is not looked at.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from holdfast.errors import TableChangedError
from holdfast.sinks.base import Outcome
from tests.fakes.column_rig import ColumnRig

ROWS = 40
# A vector index needs some rows to be trained on.
VECTORS = 300
_NEAR = 1e-3


@dataclass(frozen=True, kw_only=True)
class Kind:
    """An indexed column: its type, its values before (0) and after (1), and a search."""

    type: pa.DataType
    value: Callable[[int, int], Any]
    build: Callable[[Any], object]
    search: Callable[[Any, Any], list[int]]
    metadata: dict[str, str] | None = None
    rows: int = ROWS


def _filtered(text: str) -> Callable[[Any, Any], list[int]]:
    def search(dataset: Any, value: Any) -> list[int]:  # noqa: ANN401 - Lance ships no types.
        shown = value["a"] if isinstance(value, dict) else value[0]
        found: list[int] = dataset.to_table(filter=text.format(shown))["id"].to_pylist()
        return found

    return search


def _with_words(dataset: Any, value: Any) -> list[int]:  # noqa: ANN401
    found: list[int] = dataset.to_table(columns=["id"], full_text_query=value[0])["id"].to_pylist()
    return found


def _nearest(dataset: Any, value: Any) -> list[int]:  # noqa: ANN401
    query = {"column": "c", "q": np.array(value, "f4"), "k": 1, "nprobes": 4}
    row = dataset.to_table(columns=["id"], nearest=query).to_pylist()[0]
    return [row["id"]] if row["_distance"] < _NEAR else []


def _vectors(number: int, after: int) -> list[list[float]]:
    found: list[float] = (np.random.default_rng(number).random(8) * (1 - 2 * after)).tolist()
    return [found]


def _labels(number: int, after: int) -> list[str]:
    return [f"{'new' if after else 'old'}{number}"]


KINDS = {
    "labels": Kind(
        type=pa.list_(pa.string()),
        value=_labels,
        build=lambda dataset: dataset.create_scalar_index("c", "LABEL_LIST"),
        search=_filtered("array_has_any(c, ['{}'])"),
    ),
    "texts": Kind(
        type=pa.list_(pa.string()),
        value=_labels,
        build=lambda dataset: dataset.create_scalar_index("c", "INVERTED"),
        search=_with_words,
    ),
    "packed struct": Kind(
        type=pa.struct([pa.field("a", pa.int64()), pa.field("b", pa.int32())]),
        value=lambda number, after: {"a": number + 1000 * after, "b": 1},
        build=lambda dataset: dataset.create_scalar_index("c.a", "BTREE"),
        search=_filtered("c.a = {}"),
        metadata={"lance-encoding:packed": "true"},
    ),
    "vectors": Kind(
        type=pa.list_(pa.list_(pa.float32(), 8)),
        value=_vectors,
        build=lambda dataset: dataset.create_index(
            "c", "IVF_FLAT", num_partitions=4, metric="cosine"
        ),
        search=_nearest,
        rows=VECTORS,
    ),
}


@pytest.fixture
def rig(tmp_path: Path) -> ColumnRig:
    """Return a folder for a dataset whose columns are computed again."""
    return ColumnRig(str(tmp_path / "t.lance"), mode="update_columns")


def made(
    rig: ColumnRig,
    kind: Kind,
    version: Any,  # noqa: ANN401 - a literal.
    **how: Any,  # noqa: ANN401 - of Lance's writer.
) -> None:
    """Make a dataset of two fragments with the column."""
    column = pa.array([kind.value(number, 0) for number in range(kind.rows)], kind.type)
    fields = [pa.field("id", pa.int64()), pa.field("c", kind.type, metadata=kind.metadata)]
    rows = pa.table([pa.array(range(kind.rows), pa.int64()), column], schema=pa.schema(fields))
    half = kind.rows // 2
    lance.write_dataset(rows, rig.uri, max_rows_per_file=half, data_storage_version=version, **how)


def again(rig: ColumnRig, kind: Kind) -> Callable[[pa.RecordBatch], dict[str, Any]]:
    """Return the transform that computes the column again, which notes its rows."""

    def compute(batch: pa.RecordBatch) -> dict[str, Any]:
        ids = batch["id"].to_pylist()
        rig.computed += ids
        return {"c": pa.array([kind.value(number, 1) for number in ids], kind.type)}

    return compute


def assert_answers(rig: ColumnRig, kind: Kind) -> None:
    """Search for the new values, and for the old ones."""
    for number in (3, kind.rows - 1):
        assert kind.search(rig.dataset(), kind.value(number, 1)) == [number]
        assert kind.search(rig.dataset(), kind.value(number, 0)) == []


@pytest.mark.parametrize("version", ["2.1", "2.2"])
@pytest.mark.parametrize("name", KINDS)
def test_an_index_on_a_nested_column_answers_rightly(
    rig: ColumnRig, name: str, version: str
) -> None:
    """It lacks the rows that were computed again, and the report says so."""
    kind = KINDS[name]
    made(rig, kind, version)
    kind.build(rig.dataset())
    report = rig.start(again(rig, kind))
    assert report.outcome == "committed"
    assert_answers(rig, kind)
    assert list(rig.sink().unindexed_rows().values()) == [kind.rows]


@pytest.mark.parametrize("index", ["BTREE", "BITMAP"])
def test_an_index_over_rows_without_the_column_answers_rightly(rig: ColumnRig, index: str) -> None:
    """Rows that others appended before the column was computed for them are found by it."""
    rig.make()
    rig.mode = "add_columns"
    rig.start()
    rig.append(30, 31)
    rig.dataset().create_scalar_index("double", index)
    rig.mode, rig.run_id = "update_columns", "fill"
    rig.start(
        lambda batch: {"double": pc.multiply(batch["id"], 2)}, where=pc.field("double").is_null()
    )
    assert rig.dataset().to_table(filter="double = 62")["id"].to_pylist() == [31]
    assert rig.dataset().to_table(filter="double is null").num_rows == 0


@pytest.mark.parametrize("name", ["labels", "texts", "vectors"])
def test_an_index_build_that_began_before_the_post_answers_rightly(
    rig: ColumnRig, name: str
) -> None:
    """It has read the old values, and is committed after the new ones."""
    kind = KINDS[name]
    made(rig, kind, "2.1")
    before = rig.dataset()
    rig.start(again(rig, kind))
    kind.build(before)
    assert_answers(rig, kind)


@pytest.mark.parametrize("kind", ["BTREE", "BITMAP"])
def test_an_optimized_index_that_began_before_the_post_answers_rightly(
    rig: ColumnRig, kind: str
) -> None:
    """What it adds to the index has the old values."""
    rig.make()
    rig.dataset().create_scalar_index("id", kind)
    rig.append(30, 31)
    before = rig.dataset()
    rig.start(lambda batch: {"id": pc.multiply(batch["id"], -1)}, columns=["v", "id"])
    before.optimize.optimize_indices()
    assert rig.dataset().to_table(filter="id = 31")["v"].to_pylist() == []
    assert rig.dataset().to_table(filter="id = -31")["v"].to_pylist() == ["v31"]


@pytest.mark.parametrize("index", ["BTREE", "BITMAP"])
def test_an_index_that_is_built_again_answers_rightly(rig: ColumnRig, index: str) -> None:
    """Also one of several parts, in which Lance's `optimize_indices` brings old answers back."""
    rig.make()
    rig.dataset().create_scalar_index("id", index)
    rig.append(30, 31)
    rig.dataset().optimize.optimize_indices(num_indices_to_merge=0)
    rig.start(
        lambda batch: {"id": pc.multiply(batch["id"], -1)},
        columns=["id"],
        where=pc.field("id") < 10,
    )
    rig.dataset().create_scalar_index("id", index, replace=True)
    assert rig.sink().unindexed_rows() == {}
    for asked, found in ((3, []), (-3, ["v3"]), (31, ["v31"])):
        assert rig.dataset().to_table(filter=f"id = {asked}")["v"].to_pylist() == found


@pytest.mark.parametrize("changes", [1, 2])
def test_an_index_made_between_look_and_post_answers_rightly(rig: ColumnRig, changes: int) -> None:
    """Also if it was begun after the fragments had been taken out of the others."""
    kind = KINDS["labels"]
    made(rig, kind, "2.1")
    left = [lambda: None] * (changes - 1)
    rig.start_while(*left, lambda: kind.build(rig.dataset()), transform=again(rig, kind))
    assert rig.posts == [Outcome.UNSENT] * changes + [Outcome.LANDED]
    assert_answers(rig, kind)


def test_a_version_that_changes_no_value_makes_no_row_be_computed_again(rig: ColumnRig) -> None:
    """Rows with stable ids that are moved after it are still known by their ids."""
    kind = KINDS["labels"]
    made(rig, kind, "2.1", enable_stable_row_ids=True)
    rig.dataset().delete("id = 5")
    report = rig.start_while(
        lambda: None, rig.compact, transform=again(rig, kind), schema=_schema(kind)
    )
    assert rig.posts[:2] == [Outcome.UNSENT, Outcome.UNSENT]
    assert (report.rows_again, len(rig.computed)) == (0, ROWS - 1)
    assert_answers(rig, kind)


def test_a_busy_table_sees_one_such_version(rig: ColumnRig) -> None:
    """Rows that others append between it and the post do not make it be repeated."""
    kind = KINDS["labels"]
    made(rig, kind, "2.1")

    def append() -> None:
        row = pa.table({"id": [ROWS], "c": pa.array([["x"]], kind.type)})
        lance.write_dataset(row, rig.uri, mode="append")

    rig.start_while(lambda: None, append, transform=again(rig, kind))
    assert rig.posts == [Outcome.UNSENT, Outcome.UNSENT, Outcome.LANDED]
    dataset = rig.dataset()
    kinds = [
        type(dataset.read_transaction(version).operation).__name__
        for version in range(2, dataset.version + 1)
    ]
    assert kinds == ["Update", "Append", "Merge"]


def _delete(rig: ColumnRig) -> None:
    rig.dataset().delete("id = 3")


def _clean_up(rig: ColumnRig) -> None:
    _delete(rig)
    rig.dataset().update_config({"team": "us"})
    rig.dataset().cleanup_old_versions(older_than=timedelta(0))


def _make_again(rig: ColumnRig) -> None:
    shutil.rmtree(rig.uri)
    made(rig, KINDS["labels"], "2.1")


def at_the_last_moment(
    rig: ColumnRig, monkeypatch: pytest.MonkeyPatch, change: Callable[[ColumnRig], None]
) -> None:
    """Let others change the dataset right before Lance is asked for the first version."""
    left = [change]

    def change_there(step: str) -> None:
        if step == "before-lance-commit" and left:
            left.pop()(rig)

    monkeypatch.setattr("holdfast.sinks.lance.post.failpoint", change_there)


@pytest.mark.parametrize("change", [_delete, ColumnRig.compact])
def test_a_change_at_the_last_moment_is_not_undone(
    rig: ColumnRig, monkeypatch: pytest.MonkeyPatch, change: Callable[[ColumnRig], None]
) -> None:
    """Lance refuses the version that takes fragments out of indices, as it would the columns."""
    kind = KINDS["labels"]
    made(rig, kind, "2.1")
    kind.build(rig.dataset())
    at_the_last_moment(rig, monkeypatch, change)
    rig.start_with([lambda: None], transform=again(rig, kind))
    gone = {3} if change is _delete else set()
    assert set(rig.rows()) == set(range(ROWS)) - gone
    assert rig.posts[0] is Outcome.UNSENT
    assert kind.search(rig.dataset(), kind.value(4, 1)) == [4]
    assert kind.search(rig.dataset(), kind.value(4, 0)) == []


@pytest.mark.parametrize("change", [_clean_up, _make_again])
def test_a_change_that_lance_does_not_see_is_an_error(
    rig: ColumnRig, monkeypatch: pytest.MonkeyPatch, change: Callable[[ColumnRig], None]
) -> None:
    """Versions that were cleaned up meanwhile, and a dataset that was made again."""
    kind = KINDS["labels"]
    made(rig, kind, "2.1")
    at_the_last_moment(rig, monkeypatch, change)
    with pytest.raises(TableChangedError, match="restore version"):
        rig.start(again(rig, kind))


def _schema(kind: Kind) -> pa.Schema:
    return pa.schema([pa.field("c", kind.type)])
