"""Types of computed columns: how they are found, and which cannot be put together as given."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from holdfast.errors import SettingsError, TransformError
from tests.fakes.column_rig import ColumnRig

FAILS = 7
ROWS = 30


@pytest.fixture
def rig(tmp_path: Path) -> ColumnRig:
    """Return a folder for a dataset; nothing is in it yet."""
    return ColumnRig(str(tmp_path / "t.lance"))


def one_fails(rig: ColumnRig, value: Callable[[int], Any], kind: pa.DataType) -> Any:  # noqa: ANN401
    """Return a transform of one column, which fails for one row."""

    def compute(batch: pa.RecordBatch) -> dict[str, Any]:
        ids = batch["id"].to_pylist()
        if FAILS in ids:
            raise ValueError("a bad row")
        rig.computed += ids
        return {"c": pa.array([value(number) for number in ids], kind)}

    return compute


def values(rig: ColumnRig) -> list[Any]:
    """Return the column by id."""
    rows = rig.rows()
    return [rows[number]["c"] for number in sorted(rows)]


QUARANTINE: dict[str, Any] = {"on_error": "quarantine", "max_errors": 1.0, "batch_rows": 5}


def views() -> Iterator[tuple[str, pa.DataType, Callable[[int], Any]]]:
    """Yield types with views, alone and inside others, with values."""
    text = pa.string_view()
    for version in ("2.0", "2.1", "2.2"):
        yield version, text, lambda number: f"t{number}"
        yield version, pa.binary_view(), lambda number: b"b%d" % number
        yield version, pa.list_(text), lambda number: [f"t{number}"]
        yield version, pa.large_list(text), lambda number: [f"t{number}"]
        if version != "2.0":  # Its files hold no NULL in place of a struct, and no map.
            yield version, pa.struct([pa.field("a", text)]), lambda number: {"a": f"t{number}"}
        if version == "2.2":
            yield version, pa.map_(text, text), lambda number: [("k", f"t{number}")]


@pytest.mark.parametrize(
    ("version", "kind", "value"),
    list(views()),
    ids=[f"{version} {kind}" for version, kind, _ in views()],
)
def test_views_are_put_together(
    rig: ColumnRig,
    version: Any,  # noqa: ANN401 - a literal.
    kind: pa.DataType,
    value: Callable[[int], Any],
) -> None:
    """Also by a start after the one that wrote them, which names the same columns."""
    rig.make(ROWS, data_storage_version=version)
    compute = one_fails(rig, value, kind)
    given = pa.schema([pa.field("c", kind)])
    rig.start_and_die(1, transform=compute, schema=given, **QUARANTINE)
    report = rig.start(compute, schema=given, **QUARANTINE)
    assert report.quarantined_rows == 1
    assert values(rig) == [None if n == FAILS else value(n) for n in range(ROWS)]
    assert len(rig.computed) == ROWS - 1


@pytest.mark.parametrize("version", ["2.0", "2.1"])
@pytest.mark.parametrize("of", [pa.string(), pa.int64()], ids=str)
def test_dictionaries_with_null_are_put_together(
    rig: ColumnRig,
    version: Any,  # noqa: ANN401 - a literal.
    of: pa.DataType,
) -> None:
    """Files of format 2.0 are read with NULL among the values; rows that stay are, too."""
    kind = pa.dictionary(pa.int8(), of)

    def value(number: int) -> Any:  # noqa: ANN401
        return None if number % 3 == 1 else f"s{number % 4}" if of == pa.string() else number % 4

    rig.make(ROWS, data_storage_version=version)
    rig.start(one_fails(rig, value, kind), schema=pa.schema([pa.field("c", kind)]), **QUARANTINE)
    wanted = [None if n == FAILS else value(n) for n in range(ROWS)]
    assert values(rig) == wanted
    rig.mode, rig.run_id = "update_columns", "again"
    again = one_fails(rig, lambda number: value(number + 1), kind)
    rig.start(again, where=pc.field("id") >= ROWS // 2, **QUARANTINE)
    half = ROWS // 2
    assert values(rig) == wanted[:half] + [value(n + 1) for n in range(half, ROWS)]


@pytest.mark.parametrize("mode", ["add_columns", "update_columns"])
def test_a_first_row_that_fails_does_not_hide_the_type(rig: ColumnRig, mode: str) -> None:
    """The first rows show the columns one by one, if those that fail are set aside."""
    ids = pa.array(range(ROWS), pa.int64())
    columns = {"id": ids, "c": ids} if mode == "update_columns" else {"id": ids}
    lance.write_dataset(pa.table(columns), rig.uri, max_rows_per_file=10)
    rig.mode = mode
    report = rig.start(one_fails(rig, lambda number: -number, pa.int64()), **QUARANTINE)
    assert report.quarantined_rows == 1
    kept = FAILS if mode == "update_columns" else None
    assert values(rig) == [kept if n == FAILS else -n for n in range(ROWS)]


def test_first_rows_that_all_fail_end_the_start(rig: ColumnRig) -> None:
    """Which columns there are is not known, also if failing rows are set aside."""
    rig.make(ROWS)

    def fail(_batch: pa.RecordBatch) -> dict[str, Any]:
        raise ValueError("a bad batch")

    with pytest.raises(TransformError, match="a bad batch"):
        rig.start(fail, **QUARANTINE)


def json_types() -> Iterator[pa.DataType]:
    """Yield JSON, alone and inside others."""
    yield pa.json_(pa.string())
    yield pa.list_(pa.json_(pa.string()))
    yield pa.struct([pa.field("a", pa.json_(pa.string()))])


@pytest.mark.parametrize("kind", list(json_types()), ids=str)
def test_a_new_json_column_is_refused_before_a_row_is_computed(
    rig: ColumnRig, kind: pa.DataType
) -> None:
    """Lance reads it in an encoding that it does not write."""
    rig.make(ROWS, data_storage_version="2.1")
    with pytest.raises(SettingsError, match=r"column 'c' is a JSON column.*\n.*\n.*pa\.string"):
        rig.start(
            one_fails(rig, lambda _number: None, kind), schema=pa.schema([pa.field("c", kind)])
        )
    assert rig.computed == []


def test_a_json_column_is_not_computed_again(rig: ColumnRig) -> None:
    """The type is the dataset's."""
    kind = pa.json_(pa.string())
    texts = pa.ExtensionArray.from_storage(kind, pa.array([f"{n}" for n in range(ROWS)]))
    rows = pa.table({"id": pa.array(range(ROWS), pa.int64()), "c": texts})
    lance.write_dataset(rows, rig.uri, data_storage_version="2.1")
    rig.mode = "update_columns"
    calls = itertools.count()

    def compute(batch: pa.RecordBatch) -> dict[str, Any]:
        next(calls)
        return {"c": pa.array(["1"] * batch.num_rows)}

    with pytest.raises(SettingsError, match="column 'c' is a JSON column"):
        rig.start(compute, schema=pa.schema([pa.field("c", pa.string())]))
    assert next(calls) == 0
