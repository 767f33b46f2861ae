"""A table column that the output lacks: an error that names it, unless NULL is requested."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import ListType, LongType, MapType, NestedField, StringType, StructType

from holdfast.engine.drive import Driver
from holdfast.engine.options import WriteOptions
from holdfast.errors import (
    LedgerDamagedError,
    SchemaMismatchError,
    SettingsError,
    TooManyErrorsError,
    TransformError,
)
from holdfast.ledger.ledger import Ports, TaskPorts
from holdfast.sinks.base import ColumnPath, MayLack, Sink
from holdfast.sinks.conform import Conformer
from holdfast.sinks.iceberg.schemas import added_columns, schema_json
from holdfast.sinks.lance.post import added_columns as added_to_lance
from holdfast.sinks.lance.post import schema_json as lance_schema_json
from holdfast.worker.row_steps import lacking
from holdfast.worker.transforms import per_row
from tests.fakes.cli_lake import CliLake, lake
from tests.fakes.iceberg_tables import rows_of, write, writer_spec
from tests.fakes.lance_rig import LanceRig
from tests.fakes.manual_ports import manual_ports
from tests.fakes.memory_submitter import MemorySubmitter
from tests.fakes.rig import Rig
from tests.fakes.unpinned import Unpinned

__all__ = ["lake"]

NONE: MayLack = frozenset()
CHILD = pa.struct([("x", pa.int64()), ("y", pa.int64())])
TABLE = pa.schema(
    [
        ("id", pa.int64()),
        ("price", pa.int64()),
        ("place", CHILD),
        ("tags", pa.list_(CHILD)),
        ("by", pa.map_(pa.string(), CHILD)),
    ]
)


def without(schema: pa.Schema, name: str) -> pa.Schema:
    """Return the schema without a column."""
    return schema.remove(schema.get_field_index(name))


def with_type(name: str, kind: pa.DataType) -> pa.Schema:
    """Return the table's schema with another type for a column."""
    return TABLE.set(TABLE.get_field_index(name), pa.field(name, kind))


X_ONLY = pa.struct([("x", pa.int64())])


@pytest.mark.parametrize(
    ("output", "path"),
    [
        (without(TABLE, "price"), ("price",)),
        (with_type("place", X_ONLY), ("place", "y")),
        (with_type("tags", pa.list_(X_ONLY)), ("tags", "element", "y")),
        (with_type("by", pa.map_(pa.string(), X_ONLY)), ("by", "value", "y")),
    ],
    ids=["a column", "of a struct", "below a list", "below a map"],
)
def test_a_column_that_the_output_lacks_is_named_unless_it_may_be_missing(
    output: pa.Schema, path: ColumnPath
) -> None:
    """This holds at any depth, and the error says how to request NULL."""
    with pytest.raises(SchemaMismatchError, match='pass missing_columns="null"') as caught:
        Conformer("t", output, TABLE)
    assert caught.value.column == ".".join(path)
    some = pa.RecordBatch.from_pylist([{"id": 1}], schema=output)
    for may_lack in (frozenset({path}), None):
        (row,) = Conformer("t", output, TABLE, may_lack=may_lack)(some).to_pylist()
        assert row["id"] == 1


def test_a_dot_in_a_name_is_not_a_step_down() -> None:
    """A column `a.b` that may be missing does not excuse the child `b` of a struct `a`."""
    table = pa.schema([("a", pa.struct([("x", pa.int64()), ("b", pa.int64())]))])
    output = pa.schema([("a", pa.struct([("x", pa.int64())]))])
    with pytest.raises(SchemaMismatchError, match=r"'a\.b'"):
        Conformer("t", output, table, may_lack=frozenset({("a.b",)}))


def test_a_required_column_is_never_filled_with_null() -> None:
    """This holds even if NULL is requested."""
    table = pa.schema([pa.field("a", pa.int64(), nullable=False), pa.field("b", pa.int64())])
    with pytest.raises(SchemaMismatchError, match="required, but missing"):
        Conformer("t", without(table, "a"), table, may_lack=None)


PRICED = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "price", LongType(), required=False),
)
IDS = pa.RecordBatch.from_pydict({"id": pa.array([1, 2])})


def test_the_iceberg_writer_refuses_or_fills(tmp_path: Path) -> None:
    """It does what its spec says, which the driver made."""
    with pytest.raises(SchemaMismatchError, match="'price'"):
        write(writer_spec(tmp_path, PRICED, may_lack=NONE), IDS)
    (file,) = write(writer_spec(tmp_path, PRICED, may_lack=frozenset({("price",)})), IDS)
    assert rows_of(file) == [{"id": 1, "price": None}, {"id": 2, "price": None}]


def test_the_lance_writer_refuses_or_fills(tmp_path: Path) -> None:
    """It does what its spec says, which the driver made."""
    sink: Sink = LanceRig(str(tmp_path / "t.lance")).sink()
    view = sink.load()
    with pytest.raises(SchemaMismatchError, match="'label'"):
        sink.writer_spec(view).open("task").fit(IDS)
    filled = sink.writer_spec(view, None).open("task").fit(IDS)
    assert filled.to_pylist() == [{"id": 1, "label": None}, {"id": 2, "label": None}]


def struct_of(first: int, *names: str) -> StructType:
    """Return a struct of optional numbers with ascending ids."""
    fields = [
        NestedField(first + at, name, LongType(), required=False) for at, name in enumerate(names)
    ]
    return StructType(*fields)


def test_added_columns_of_iceberg_are_found_by_their_ids() -> None:
    """A renamed column is not new; a column added below a list or a map counts too."""
    began = Schema(
        NestedField(1, "id", LongType(), required=False),
        NestedField(2, "old", LongType(), required=False),
        NestedField(3, "tags", ListType(4, struct_of(5, "x"), element_required=False)),
        NestedField(6, "by", MapType(7, StringType(), 8, struct_of(9, "x"), value_required=False)),
    )
    tags = StructType(*struct_of(5, "x").fields, *struct_of(20, "y").fields)
    by = StructType(*struct_of(9, "x").fields, *struct_of(21, "y").fields)
    now = Schema(
        NestedField(1, "id", LongType(), required=False),
        NestedField(2, "new", LongType(), required=False),
        NestedField(3, "tags", ListType(4, tags, element_required=False)),
        NestedField(6, "by", MapType(7, StringType(), 8, by, value_required=False)),
        NestedField(22, "a.b", LongType(), required=False),
    )
    assert added_columns(schema_json(began), schema_json(now)) == {
        ("tags", "element", "y"),
        ("by", "value", "y"),
        ("a.b",),
    }


def test_added_columns_of_lance_are_found_by_their_ids(tmp_path: Path) -> None:
    """The names for list elements are the same as in errors about the output."""
    uri = str(tmp_path / "t.lance")
    rows = pa.table({"id": [1], "tags": pa.array([[{"x": 1}]], pa.list_(X_ONLY))})
    began = lance_schema_json(lance.write_dataset(rows, uri))
    renaming: Any = {"path": "id", "name": "key"}  # Lance declares another type for it.
    lance.dataset(uri).alter_columns(renaming)
    lance.dataset(uri).add_columns(pa.field("more", pa.list_(CHILD)))
    now = lance_schema_json(lance.dataset(uri))
    below = {("more", "element"), ("more", "element", "x"), ("more", "element", "y")}
    assert added_to_lance(began, now) == {("more",), *below}
    mapped: dict[str, Any] = {
        "fields": [
            _lance("m", 9, "map", _lance("e", 10, "struct", _lance("k", 11), _lance("v", 12)))
        ]
    }
    assert added_to_lance({"fields": []}, mapped) == {("m",), ("m", "key"), ("m", "value")}


def _lance(name: str, number: int, kind: str = "int64", *below: dict[str, Any]) -> dict[str, Any]:
    return {"id": number, "name": name, "type": kind, "nullable": True, "children": list(below)}


def test_a_first_plan_without_a_schema_is_damage(lake: CliLake, tmp_path: Path) -> None:
    """It comes from a ledger: a column that it omits must not count as added later."""
    sinks: list[Sink] = [lake.make_table(), LanceRig(str(tmp_path / "t.lance")).sink()]
    for sink in sinks:
        with pytest.raises(LedgerDamagedError):
            sink.columns_since(sink.load(), {"fields": [{"id": "x"}]})


class Paid:
    """A transform that returns only the given columns, and counts its calls."""

    def __init__(self, *names: str) -> None:
        """Start without calls."""
        self.names, self.calls, self.rows = names, 0, 0

    def __call__(self, batch: pa.RecordBatch) -> dict[str, Any]:
        """Return these columns."""
        self.calls += 1
        self.rows += batch.num_rows
        return dict.fromkeys(self.names, batch["id"])


@pytest.fixture
def priced() -> Rig:
    """Return a rig whose table has a second column."""
    rig = Rig()
    rig.table.schema = {"columns": ["id", "price"]}
    return rig


def timed(rig: Rig) -> Ports:
    """Return ports whose tasks use the rig's clock too."""
    return replace(manual_ports(rig.time), tasks=TaskPorts(now=rig.time.now))


PARTS = (range(100), range(100, 200), range(200, 300))


@pytest.mark.parametrize("on_error", ["raise", "quarantine"])
def test_a_transform_that_returns_too_few_columns_costs_one_small_batch(
    priced: Rig, on_error: str
) -> None:
    """This is per task at work; later tasks call it for none. No batch is halved to find a row."""
    transform, rows = Paid("id"), MemorySubmitter(*PARTS, range(300, 400))
    rows.before_task[2] = lambda: priced.time.sleep(3.0)  # The first two start with the job.
    with pytest.raises(SchemaMismatchError, match="'price'"):
        priced.start(rows, ports=timed(priced), transform=transform, on_error=on_error)
    assert (transform.calls, transform.rows) == (2, 16)
    assert priced.table.data_snapshots == []
    assert "Intent" not in priced.kinds()


@pytest.mark.filterwarnings("ignore:run .* code has changed:UserWarning")
def test_after_the_error_the_same_run_goes_on_with_null_or_with_the_column(priced: Rig) -> None:
    """Only the current start's options count; the run does not store them."""
    with pytest.raises(SchemaMismatchError, match="'price'"):
        priced.start(transform=Paid("id"))
    priced.start(transform=Paid("id"), missing_columns="null")
    rows = [row for file in priced.table.files.values() for row in file.to_pylist()]
    assert sorted(row["id"] for row in rows) == list(range(20))
    assert {row["price"] for row in rows} == {None}
    mended = Rig()
    mended.table.schema = {"columns": ["id", "price"]}
    with pytest.raises(SchemaMismatchError, match="'price'"):
        mended.start(transform=Paid("id"))
    assert mended.start(transform=Paid("id", "price")).outcome == "committed"


def test_output_without_rows_need_not_have_columns(priced: Rig) -> None:
    """A batch with no output rows says nothing about the others."""

    def none_of_the_first(batch: pa.RecordBatch) -> Any:  # noqa: ANN401 - two kinds of output.
        if batch["id"][0].as_py() < 10:
            return pa.table({"other": pa.array([], pa.int64())})
        return {"id": batch["id"], "price": batch["id"]}

    for on_error in ("raise", "quarantine"):
        rig = Rig()
        rig.table.schema = dict(priced.table.schema)
        rig.start(transform=none_of_the_first, one_to_one=False, on_error=on_error)
        rows = [row for file in rig.table.files.values() for row in file.to_pylist()]
        assert sorted(row["id"] for row in rows) == list(range(10, 20))


def test_the_check_before_any_task_knows_what_may_be_missing(priced: Rig) -> None:
    """Without a transform the output is checked against the same columns as with one."""
    seen: list[MayLack] = []
    for choice in (WriteOptions(), WriteOptions(missing_columns="null")):
        driver = Driver(
            ledger=priced.ledger(),
            sink=priced.table,
            input=Unpinned(MemorySubmitter([])),
            check_output=lambda spec: seen.append(spec.may_lack),
        )
        priced = Rig()
        driver.write(priced.table.load(), priced.identity(), choice)
    # Each is checked twice: before the run exists, and once it is claimed.
    assert seen == [frozenset(), frozenset(), None, None]


def test_the_choice_is_checked() -> None:
    """Any value other than the two is refused."""
    with pytest.raises(SettingsError, match=r'give "error" or "null"'):
        WriteOptions(missing_columns="fill")  # type: ignore[arg-type]


def answers(*lacks: int) -> Any:  # noqa: ANN401 - a row function.
    """Return a row function that leaves a key out of some of its answers."""

    async def answer(row: Mapping[str, Any]) -> dict[str, Any]:
        found = {"id": row["id"], "price": None}
        if row["id"] in lacks:
            del found["price"]
        return found

    return per_row(answer, concurrency=1)


def ids_of(rig: Rig) -> list[int]:
    """Return the ids in the table."""
    return sorted(row["id"] for file in rig.table.files.values() for row in file.to_pylist())


@pytest.mark.parametrize("on_error", ["raise", "quarantine"])
def test_a_key_that_no_answer_has_fails_the_job(priced: Rig, on_error: str) -> None:
    """It is not the fault of one row: the error names the column, and few rows are paid for."""
    called: list[int] = []

    async def answer(row: Mapping[str, Any]) -> dict[str, Any]:
        called.append(row["id"])
        return {"id": row["id"]}

    rows, function = MemorySubmitter(*PARTS), per_row(answer, concurrency=1)
    rows.before_task[1] = lambda: priced.time.sleep(3.0)
    with pytest.raises(SchemaMismatchError, match="'price'"):
        priced.start(
            rows, ports=timed(priced), transform=function, on_error=on_error, max_errors=1000
        )
    assert len(called) <= {"raise": 2, "quarantine": 9}[on_error]


def test_a_key_that_some_answers_lack_fails_only_those_rows(priced: Rig) -> None:
    """They are quarantined, not filled with NULL; None is a valid answer."""
    driven = priced.start(transform=answers(0, 3, 12), on_error="quarantine", max_errors=3)
    assert driven.quarantined_rows == 3
    assert ids_of(priced) == [number for number in range(20) if number not in {0, 3, 12}]


@pytest.mark.filterwarnings("ignore:run .* code has changed:UserWarning")
def test_all_rows_left_of_a_run_may_lack_a_key(priced: Rig) -> None:
    """They are quarantined: earlier answers were complete, although none of this start is."""
    with pytest.raises(TransformError):
        priced.start(MemorySubmitter(range(20)), transform=answers(10), retries=0)
    rest = answers(*range(40))
    driven = priced.start(
        MemorySubmitter(range(40)), transform=rest, on_error="quarantine", max_errors=40
    )
    assert driven.quarantined_rows == 21
    assert ids_of(priced) == [number for number in range(20) if number != 10]


def test_a_row_whose_answer_lacks_a_key_is_named(priced: Rig) -> None:
    """If failing rows end the job, the error names the row and the column."""
    with pytest.raises(TransformError, match=r"'price'(.|\n)*id=3"):
        priced.start(transform=answers(3), retries=0)


def test_too_many_rows_without_a_key_end_the_job(priced: Rig) -> None:
    """They count like any other failing rows, and the error names the column."""
    with pytest.raises(TooManyErrorsError, match="'price'"):
        priced.start(transform=answers(3, 4), on_error="quarantine", max_errors=1)


def test_null_may_be_requested_for_answers_too(priced: Rig) -> None:
    """A missing key is then NULL."""
    priced.start(transform=answers(3), missing_columns="null")
    assert ids_of(priced) == list(range(20))


NESTED = pa.schema([("id", pa.int64()), ("place", CHILD), ("tags", pa.list_(CHILD))])
WHOLE: dict[str, Any] = {"id": 1, "place": {"x": 1, "y": None}, "tags": [{"x": 1, "y": 2}]}


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({}, None),
        ({"place": None, "tags": None}, None),
        ({"tags": [None, {"x": 1, "y": 2}]}, None),
        ({"place": {"x": 1}}, ("place", "y")),
        ({"tags": [{"x": 1, "y": 2}, {"y": 2}]}, ("tags", "element", "x")),
        ({"by": {"k": {"x": 1}}}, ("by", "value", "y")),
        ({"by": [("k", {"x": 1})]}, ("by", "value", "y")),
        ({"by": [("k", {"x": 1, "y": None}), None]}, None),
        ({"tags": np.array([{"y": 2}], dtype=object)}, ("tags", "element", "x")),
        ({"place": "no struct"}, None),
    ],
)
def test_a_key_that_an_answer_lacks_is_found_at_any_depth(
    changes: dict[str, Any], wanted: Sequence[str] | None
) -> None:
    """Arrow would fill the child of a struct with NULL by itself."""
    table = NESTED.append(TABLE.field("by")) if "by" in changes else NESTED
    assert lacking({**WHOLE, **changes}, table, frozenset()) == wanted
    if wanted is not None:
        assert lacking({**WHOLE, **changes}, table, frozenset({tuple(wanted)})) is None
