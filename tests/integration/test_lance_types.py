"""Vectors, binaries, dictionaries and blobs: from a real Spark into a Lance dataset and back.

Each run is stopped half-way once, so that values also go through chunks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.engine import resolve
from holdfast.errors import SchemaMismatchError, TransformError
from tests.integration.lance_desk import ROWS, LanceDesk

pytestmark = [pytest.mark.spark, pytest.mark.lance]

Columns = Callable[[list[int]], dict[str, Any]]
ID = pa.field("id", pa.int64(), nullable=False)
LEGACY_BLOB = pa.field("blob", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
# Kept in the data file, in a file with others, and in a file of its own.
BLOB_SIZES = (10, 100_000, 5_000_000)


@pytest.fixture
def desk(lance_desk: LanceDesk) -> LanceDesk:
    """Return a place without a dataset, on each kind of storage."""
    return lance_desk


def transform(columns: Columns, fails_at: int | None = None) -> Any:  # noqa: ANN401 - a transform.
    """Return a transform that gives the columns to rows, and may fail at one."""

    def call(batch: pa.RecordBatch) -> dict[str, Any]:
        ids = batch["id"].to_pylist()
        if fails_at in ids:
            raise LookupError("no answer")
        return {"id": batch["id"], **columns(ids)}

    return call


def append_in_two_starts(desk: LanceDesk, columns: Columns, **options: Any) -> hf.Report:  # noqa: ANN401
    """Append, stopped once by a row that fails; return the report of the second start."""
    with pytest.raises(TransformError):
        desk.append(transform=transform(columns, ROWS - 3), **options)
    with pytest.warns(UserWarning, match="code has changed"):
        report = desk.append(transform=transform(columns), **options)
    assert report.kept_rows > 0
    return report


def plain(ids: list[int]) -> dict[str, Any]:
    """Return vectors, bytes and a dictionary; a NULL in each."""

    def array(kind: pa.DataType, value: Callable[[int], Any]) -> pa.Array:
        return pa.array([None if id_ == 5 else value(id_) for id_ in ids], kind)

    return {
        "single": array(pa.list_(pa.float32(), 2), lambda id_: [id_, id_ + 0.5]),
        "half": array(pa.list_(pa.float16(), 2), lambda id_: np.array([id_, 0.5], np.float16)),
        "data": array(pa.large_binary(), lambda id_: bytes([id_]) * 1000),
        "color": array(pa.string(), lambda id_: ("red", "green")[id_ % 2]).dictionary_encode(),
    }


def test_vectors_binaries_and_dictionaries_come_back_as_they_were(desk: LanceDesk) -> None:
    """The dataset's types are those of its schema, and every value is the same."""
    schema = pa.schema(
        [
            ID,
            ("single", pa.list_(pa.float32(), 2)),
            ("half", pa.list_(pa.float16(), 2)),
            ("data", pa.large_binary()),
            ("color", pa.dictionary(pa.int32(), pa.string())),
        ]
    )
    append_in_two_starts(desk, plain, create=hf.Create(schema=schema))
    found = desk.dataset().to_table().sort_by("id")
    assert found.schema.remove_metadata() == schema
    ids = list(range(ROWS))
    wanted = pa.table({"id": ids, **plain(ids)})
    assert found.to_pylist() == wanted.to_pylist()


def test_an_array_of_spark_becomes_a_vector(desk: LanceDesk) -> None:
    """A DataFrame's array<float> fits a vector of its length, and no other."""
    schema = pa.schema([ID, ("vector", pa.list_(pa.float32(), 3))])
    desk.make(schema.empty_table())
    vector = "IF(id = 5, NULL, array(CAST(id AS FLOAT), 0.5F, CAST(-id AS FLOAT))) AS vector"
    desk.append(desk.ids().selectExpr("id", vector), transform=None)
    found = dict(desk.rows())
    assert found == {id_: None if id_ == 5 else [id_, 0.5, -id_] for id_ in range(ROWS)}
    short = desk.ids().selectExpr("id", "array(1.0F, 2.0F) AS vector")
    with pytest.raises(SchemaMismatchError, match="2 elements instead of 3") as caught:
        desk.append(short, transform=None, run_id="short")
    assert caught.value.column == "vector"
    wide = desk.ids().selectExpr("id", "array(1.0D, 2.0D, 3.0D) AS vector")
    with pytest.raises(SchemaMismatchError, match=r"vector\.element"):
        desk.append(wide, transform=None, run_id="wide")
    assert len(desk.rows()) == ROWS


def blob_of(number: int) -> bytes | None:
    """Return the content of a row's blob; a NULL and an empty one are among them."""
    if number in {5, 6}:
        return None if number == 5 else b""
    return bytes([number]) * BLOB_SIZES[number % len(BLOB_SIZES)]


def blobs(ids: list[int]) -> dict[str, Any]:
    """Return plain bytes, as a user has them."""
    return {"blob": [blob_of(id_) for id_ in ids]}


def check_blobs(desk: LanceDesk) -> None:
    """Read all blobs with Lance, as files."""
    dataset = desk.dataset()
    ids = dataset.to_table(columns=["id"])["id"].to_pylist()
    assert sorted(ids) == list(range(ROWS))
    for position, number in enumerate(ids):
        wanted = blob_of(number)
        found = dataset.take_blobs("blob", indices=[position])
        if wanted is None:
            assert not found or found[0] is None or found[0].read() == b""
        else:
            assert found[0].read() == wanted, number


def test_blobs_beside_the_rows_are_bytes_to_a_user(desk: LanceDesk) -> None:
    """Lance keeps them in files of their own, all of which land, and none is left by a sweep."""
    schema = pa.schema([ID, lance.blob_field("blob")])
    append_in_two_starts(desk, blobs, create=hf.Create(schema=schema))
    check_blobs(desk)
    assert len(desk.files()) > len(desk.live_files())  # There are some beside the data files.
    before = desk.files()
    desk.run().sweep(to=desk.to)
    assert desk.files() <= before
    check_blobs(desk)


def test_blobs_that_have_waited_for_long_are_copied_with_their_rows(
    desk: LanceDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copies are read, whatever happens to the originals."""
    monkeypatch.setattr(resolve, "_OLD_AFTER_S", 0.0)
    schema = pa.schema([ID, lance.blob_field("blob")])
    report = append_in_two_starts(desk, blobs, create=hf.Create(schema=schema))
    assert report.copied_files > len(desk.live_files())
    before = len(desk.files())
    assert desk.run().sweep(to=desk.to).data_files > 0
    assert len(desk.files()) < before
    check_blobs(desk)


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
def test_blobs_inside_the_data_file(desk: LanceDesk, version: str) -> None:
    """The older kind of blob, in every format of files that has it."""
    desk.make(pa.schema([ID, LEGACY_BLOB]).empty_table(), data_storage_version=version)
    append_in_two_starts(desk, blobs, create=None)
    assert desk.dataset().data_storage_version == version
    check_blobs(desk)


def test_blobs_that_a_user_has_made_are_taken_too(desk: LanceDesk) -> None:
    """A transform may use Lance's own type; a blob that names another file is refused."""
    create = hf.Create(schema=pa.schema([ID, lance.blob_field("blob")]))

    def own(ids: list[int]) -> dict[str, Any]:
        return {"blob": lance.blob_array([blob_of(id_) for id_ in ids])}

    def elsewhere(ids: list[int]) -> dict[str, Any]:
        return {"blob": lance.blob_array(["s3://elsewhere/file" for _ in ids])}

    append_in_two_starts(desk, own, create=create)
    check_blobs(desk)
    with pytest.raises(SchemaMismatchError, match="refers to another file") as caught:
        desk.append(run_id="elsewhere", transform=transform(elsewhere), create=create)
    assert caught.value.column == "blob"
    assert desk.versions("elsewhere") == []
