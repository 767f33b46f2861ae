"""Schemas over time: which changes staged files survive, and how they map to Arrow."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    UUIDType,
)

from holdfast.sinks.iceberg.schemas import arrow_schema, parquet_schema, schema_changes, schema_json

ID = NestedField(1, "id", IntegerType(), required=True)
NAME = NestedField(2, "name", StringType())
INNER = NestedField(4, "x", IntegerType())
NESTED = NestedField(3, "s", StructType(INNER))
BEGAN = Schema(ID, NAME, NESTED)


def field(number: int, name: str, kind: IcebergType, *, required: bool = False) -> NestedField:
    """Return a field."""
    return NestedField(number, name, kind, required=required)


HARMLESS: list[tuple[str, Schema]] = [
    ("the same", BEGAN),
    ("an optional column", Schema(ID, NAME, NESTED, field(9, "new", LongType()))),
    (
        "an optional nested field",
        Schema(ID, NAME, field(3, "s", StructType(INNER, field(9, "y", LongType())))),
    ),
    (
        "an optional list",
        Schema(ID, NAME, NESTED, field(9, "l", ListType(10, LongType(), element_required=True))),
    ),
    (
        "an optional map",
        Schema(ID, NAME, NESTED, field(9, "m", MapType(10, StringType(), 11, LongType()))),
    ),
    (
        "an optional struct with a required field",
        Schema(
            ID, NAME, NESTED, field(9, "t", StructType(field(10, "r", LongType(), required=True)))
        ),
    ),
    ("another order", Schema(NESTED, ID, NAME)),
    (
        "a comment",
        Schema(ID, NestedField(2, "name", StringType(), doc="what it is called"), NESTED),
    ),
    ("another schema id", Schema(ID, NAME, NESTED, schema_id=7)),
    ("int to long", Schema(field(1, "id", LongType(), required=True), NAME, NESTED)),
    ("a column need not be filled", Schema(field(1, "id", IntegerType()), NAME, NESTED)),
    (
        "int to long in a struct",
        Schema(ID, NAME, field(3, "s", StructType(field(4, "x", LongType())))),
    ),
]


@pytest.mark.parametrize("now", [now for _, now in HARMLESS], ids=[what for what, _ in HARMLESS])
def test_changes_that_staged_files_survive(now: Schema) -> None:
    """An added optional column reads as NULL in files without it."""
    assert schema_changes(schema_json(BEGAN), schema_json(now)) == []


HARMFUL: list[tuple[Schema, str]] = [
    (Schema(ID, NESTED), "column 'name' was dropped"),
    (Schema(ID, NAME), "column 's' was dropped"),
    (Schema(ID, field(2, "label", StringType()), NESTED), "column 'name' was renamed to 'label'"),
    (
        Schema(field(1, "id", StringType(), required=True), NAME, NESTED),
        "column 'id' was int and is now string",
    ),
    (
        Schema(ID, field(2, "name", StringType(), required=True), NESTED),
        "column 'name' is now required",
    ),
    (
        Schema(ID, NAME, NESTED, field(9, "new", LongType(), required=True)),
        "required column 'new' was added",
    ),
    (Schema(ID, field(9, "name", StringType()), NESTED), "column 'name' was dropped"),
    (
        Schema(ID, NAME, field(3, "s", StructType(field(4, "x", FloatType())))),
        "column 's.x' was int and is now float",
    ),
    (
        Schema(
            ID, NAME, field(3, "s", StructType(INNER, field(9, "y", LongType(), required=True)))
        ),
        "required column 's.y' was added",
    ),
]


@pytest.mark.parametrize(("now", "said"), HARMFUL, ids=[said for _, said in HARMFUL])
def test_changes_that_staged_files_do_not_survive_are_named(now: Schema, said: str) -> None:
    """Each names the column, nested ones by their path."""
    assert any(said in text for text in schema_changes(schema_json(BEGAN), schema_json(now)))


@pytest.mark.parametrize(
    ("began", "now", "is_fine"),
    [
        (FloatType(), DoubleType(), True),
        (DecimalType(9, 2), DecimalType(18, 2), True),
        (LongType(), IntegerType(), False),
        (DoubleType(), FloatType(), False),
        (DecimalType(18, 2), DecimalType(9, 2), False),
        (DecimalType(9, 2), DecimalType(18, 3), False),
        (IntegerType(), DoubleType(), False),
        (StringType(), BinaryType(), False),
    ],
)
def test_types_change_only_as_the_format_allows(
    began: IcebergType, now: IcebergType, *, is_fine: bool
) -> None:
    """A column may get a wider type, as for files already in the table, but no other."""
    found = schema_changes(
        schema_json(Schema(ID, field(2, "v", began))), schema_json(Schema(ID, field(2, "v", now)))
    )
    assert found == ([] if is_fine else [f"column 'v' was {began} and is now {now}"])


def test_all_changes_are_named_at_once() -> None:
    """The user can fix them all at once."""
    now = Schema(field(1, "key", LongType(), required=True))
    assert len(schema_changes(schema_json(BEGAN), schema_json(now))) >= 4


def test_the_arrow_schema_is_that_of_sparks_batches() -> None:
    """It has small offsets at every depth, so that Spark's batches are not copied, and no ids."""
    schema = Schema(
        ID,
        NAME,
        field(3, "l", ListType(4, StructType(field(5, "t", StringType())), element_required=True)),
        field(6, "m", MapType(7, StringType(), 8, StringType())),
        field(9, "u", UUIDType()),
    )
    inner = pa.struct([("t", pa.string())])
    assert arrow_schema(schema) == pa.schema(
        [
            pa.field("id", pa.int32(), nullable=False),
            pa.field("name", pa.string()),
            pa.field("l", pa.list_(pa.field("element", inner, nullable=False))),
            pa.field("m", pa.map_(pa.string(), pa.field("value", pa.string(), nullable=False))),
            pa.field("u", pa.uuid()),
        ]
    )


def test_the_files_schema_has_ids_and_names_that_avro_allows() -> None:
    """Readers find columns by id; the names are only for people."""
    found = parquet_schema(Schema(field(7, "a-b", LongType())))
    assert found.names == ["a_x2Db"]
    assert found.field(0).metadata[b"PARQUET:field_id"] == b"7"
