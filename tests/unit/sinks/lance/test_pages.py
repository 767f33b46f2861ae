"""Pages of Lance files: put together they are one file, in which Lance finds each value."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import lance.file
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lance.fragment import write_fragments

from holdfast.sinks.lance import pages as lance_pages
from holdfast.sinks.lance.pages import (
    OtherPagesError,
    Page,
    Pages,
    end_of,
    joined,
    read_pages,
    write_joined,
)
from holdfast.storage.joined import size_of
from holdfast.storage.objects import ObjectStorage

STORAGE = ObjectStorage()
_WORDS = ["", "word", "Ünïcode", "a" * 300]


def _columns(chance: random.Random, rows: int) -> dict[str, pa.Array]:
    """Return values of many types, some of them NULL."""

    def some(make: Any) -> list[Any]:  # noqa: ANN401 - a function of any values.
        return [None if chance.random() < 0.2 else make() for _ in range(rows)]

    def number() -> int:
        return chance.randint(-(10**9), 10**9)

    return {
        "int": pa.array(some(number), pa.int64()),
        "full": pa.array(range(rows), pa.int32()),
        "flag": pa.array(some(lambda: chance.random() < 0.5), pa.bool_()),
        "real": pa.array(some(lambda: chance.choice([chance.random(), float("nan")]))),
        "text": pa.array(some(lambda: chance.choice(_WORDS)), pa.string()),
        "bytes": pa.array(some(lambda: bytes(chance.randint(0, 3000))), pa.large_binary()),
        "none": pa.nulls(rows, pa.float64()),
        "same": pa.array(["same"] * rows),
        "code": pa.array(some(lambda: chance.choice("abc")), pa.string()).dictionary_encode(),
        "vector": pa.array(some(lambda: [chance.random()] * 16), pa.list_(pa.float32(), 16)),
        "wide": pa.array(some(lambda: [chance.random()] * 700), pa.list_(pa.float32(), 700)),
        "list": pa.array(some(lambda: [7] * chance.randint(0, 5)), pa.list_(pa.int16())),
        "deep": pa.array(
            some(
                lambda: [{"a": chance.choice([None, number()]), "b": ["x"] * chance.randint(0, 3)}]
            ),
            pa.list_(pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))])),
        ),
        "pair": pa.array(
            some(lambda: {"x": number(), "y": chance.choice(_WORDS)}),
            pa.struct([("x", pa.int64()), ("y", pa.string())]),
        ),
        "when": pa.array(
            some(lambda: datetime.fromtimestamp(chance.randint(0, 2**31), tz=timezone.utc)),
            pa.timestamp("us", "UTC"),
        ),
        "money": pa.array(some(lambda: Decimal(number()) / 100), pa.decimal128(20, 2)),
        "half": pa.array(some(lambda: float(chance.randint(0, 99))), pa.float16()),
    }


def written(folder: Path, table: pa.Table, version: str) -> tuple[str, int]:
    """Write a file, and return its URI and its size."""
    how: Any = {"mode": "create", "data_storage_version": version, "max_rows_per_file": 1 << 30}
    (made,) = write_fragments(table, str(folder), **how)
    (file,) = made.files
    return f"file://{folder}/data/{file.path}", int(file.file_size_bytes or 0)


@pytest.mark.slow_unit
@pytest.mark.parametrize("version", ["2.1", "2.2"])
@pytest.mark.parametrize("seed", range(4))
def test_values_of_all_types_are_those_of_the_files(
    version: str, seed: int, tmp_path: Path
) -> None:
    """Read all of them, and single rows, as Lance reads any file."""
    chance = random.Random(seed)
    tables = [pa.table(_columns(chance, chance.choice([1, 70, 700]))) for _ in range(3)]
    files = [written(tmp_path / str(number), table, version) for number, table in enumerate(tables)]
    (tmp_path / "data").mkdir()
    made = write_joined(STORAGE, f"file://{tmp_path}/data", files, 0)
    assert made is not None
    path, size_bytes = made
    assert Path(path.removeprefix("file://")).stat().st_size == size_bytes
    reader, wanted = lance.file.LanceFileReader(path), pa.concat_tables(tables)
    # As text, in which a NaN is the same as another.
    assert repr(reader.read_all().to_table().to_pylist()) == repr(wanted.to_pylist())
    some = sorted(chance.sample(range(len(wanted)), min(20, len(wanted))))
    found = reader.take_rows(some).to_table().to_pylist()
    assert repr(found) == repr(wanted.take(some).to_pylist())
    first = chance.randrange(len(wanted))
    found = reader.read_range(first, len(wanted) - first).to_table().to_pylist()
    assert repr(found) == repr(wanted.slice(first).to_pylist())


def test_a_column_of_several_pages_keeps_its_order(tmp_path: Path) -> None:
    """A large file has many pages, and each knows the number of its first row."""
    batches = [
        pa.record_batch({"n": np.arange(start, start + 500_000, dtype=np.float64)})
        for start in range(0, 4_000_000, 500_000)
    ]
    tables = [pa.Table.from_batches(batches[:5]), pa.Table.from_batches(batches[5:])]
    files = [written(tmp_path / str(number), table, "2.2") for number, table in enumerate(tables)]
    (tmp_path / "data").mkdir()
    made = write_joined(STORAGE, f"file://{tmp_path}/data", files, 0)
    assert made is not None
    pages = read_pages(STORAGE, *made)
    assert pages.count > 2
    assert pages.rows == 4_000_000
    reader = lance.file.LanceFileReader(made[0])
    assert reader.read_all(batch_size=1 << 20).to_table().equals(pa.concat_tables(tables))
    edge = [2_499_999, 2_500_000]
    assert reader.take_rows(edge).to_table()["n"].to_pylist() == edge


def test_a_joined_file_can_be_joined_again(tmp_path: Path) -> None:
    """It is a file like any other, and its end is read like that of one."""
    table = pa.table({"n": range(100), "t": ["word"] * 100})
    file = written(tmp_path / "a", table, "2.2")
    (tmp_path / "data").mkdir()
    once = write_joined(STORAGE, f"file://{tmp_path}/data", [file, file], 0)
    assert once is not None
    twice = write_joined(STORAGE, f"file://{tmp_path}/data", [once, file], 0)
    assert twice is not None
    found = lance.file.LanceFileReader(twice[0]).read_all().to_table()
    assert found.equals(pa.concat_tables([table] * 3))


def test_the_end_that_is_written_is_the_end_that_is_read(tmp_path: Path) -> None:
    """Nothing of it is lost on the way, and Lance has written nothing that is not understood."""
    path, size = written(tmp_path / "a", pa.table(_columns(random.Random(1), 500)), "2.2")
    pages = read_pages(STORAGE, path, size)
    data = Path(path.removeprefix("file://")).read_bytes()
    (tmp_path / "b").write_bytes(data[: pages.size_bytes] + end_of(pages))
    again = f"file://{tmp_path}/b"
    assert read_pages(STORAGE, again, (tmp_path / "b").stat().st_size) == pages


def test_a_long_end_is_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of thousands of pages has more to say than what is read first."""
    monkeypatch.setattr(lance_pages, "_END_BYTES", 1400)
    path, size = written(tmp_path / "a", pa.table(_columns(random.Random(1), 50)), "2.2")
    assert read_pages(STORAGE, path, size).rows == 50


# ---- What is not known is left to Lance


def test_metadata_in_another_order_is_the_same(tmp_path: Path) -> None:
    """Lance writes two entries in either order: files of one column are still alike."""
    column = pa.field("c", pa.int64(), metadata={"team": "us", "unit": "m"})
    rows = pa.table([pa.array(range(9), pa.int64())], pa.schema([column]))
    files = [written(tmp_path / str(number), rows, "2.1") for number in range(16)]
    found = [(path, read_pages(STORAGE, path, size_bytes)) for path, size_bytes in files]
    assert len({pages.schema for _, pages in found}) > 1
    assert joined(found)


def test_metadata_that_differs_is_not_the_same(tmp_path: Path) -> None:
    """The columns of a file put together are described as those of the first."""
    files = []
    for unit in ("m", "km"):
        column = pa.field("c", pa.int64(), metadata={"team": "us", "unit": unit})
        rows = pa.table([pa.array(range(9), pa.int64())], pa.schema([column]))
        files.append(written(tmp_path / unit, rows, "2.1"))
    found = [(path, read_pages(STORAGE, path, size_bytes)) for path, size_bytes in files]
    with pytest.raises(OtherPagesError, match="other columns"):
        joined(found)


def test_a_description_that_cannot_be_read_is_not_joined(tmp_path: Path) -> None:
    """It is left to Lance."""
    path, size_bytes = written(tmp_path, pa.table({"c": range(9)}), "2.1")
    pages = read_pages(STORAGE, path, size_bytes)
    with pytest.raises(OtherPagesError, match="not known"):
        joined([(path, pages), (path, replace(pages, schema=b"\x0d"))])


def test_other_columns_or_another_format_are_not_joined(tmp_path: Path) -> None:
    """Their values would be read as something else."""
    numbers = pa.table({"n": pa.array([1, 2], pa.int64())})
    files = [
        written(tmp_path / "a", numbers, "2.2"),
        written(tmp_path / "b", pa.table({"n": pa.array([1, 2], pa.int32())}), "2.2"),
        written(tmp_path / "c", pa.table({"m": pa.array([1, 2], pa.int64())}), "2.2"),
        written(tmp_path / "d", numbers, "2.1"),
    ]
    for other in files[1:]:
        assert write_joined(STORAGE, f"file://{tmp_path}/data", [files[0], other], 0) is None
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    "other", [{"version": (2, 1)}, {"schema": b"other"}, {"encodings": (b"other",)}], ids=str
)
def test_pages_that_another_end_describes_are_not_joined(
    other: dict[str, Any], tmp_path: Path
) -> None:
    """One end describes the pages of all files: format, columns, and how these are encoded."""
    path, size = written(tmp_path / "a", pa.table({"n": range(5000)}), "2.2")
    pages = read_pages(STORAGE, path, size)
    with pytest.raises(OtherPagesError, match="columns"):
        joined([("a", pages), ("b", replace(pages, **other))])


@pytest.mark.parametrize("version", ["2.0", "2.3"])
def test_other_versions_of_the_format_are_not_known(version: str, tmp_path: Path) -> None:
    """In the first, pages of lists count items; the newest is not settled."""
    path, size = written(tmp_path / "a", pa.table({"n": [1]}), version)
    with pytest.raises(OtherPagesError, match="file format"):
        read_pages(STORAGE, path, size)


def test_blobs_are_not_known(tmp_path: Path) -> None:
    """Their pages say where in the file the values are."""
    kind = pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    table = pa.table({"b": [b"x" * 100_000]}, schema=pa.schema([kind]))
    path, size = written(tmp_path / "a", table, "2.1")
    with pytest.raises(OtherPagesError, match="layout"):
        read_pages(STORAGE, path, size)


def test_small_pages_are_not_copied(tmp_path: Path) -> None:
    """Many of them would be slow to read for ever after."""
    file = written(tmp_path / "a", pa.table({"n": [1]}), "2.2")
    assert write_joined(STORAGE, f"file://{tmp_path}", [file, file], 1 << 20) is None


@given(st.data())
def test_a_broken_end_is_refused(data: st.DataObject) -> None:
    """It is read without an error of another kind, whatever its bytes are."""
    place = data.draw(st.tuples(st.integers(0, 300), st.integers(0, 300)))
    page = Page(buffers=(place,), rows=3, encoding=b"\x12\x00", first=0)
    made = Pages(
        version=(2, 2),
        rows=3,
        size_bytes=640,
        schema=b"s",
        columns=((page,),),
        encodings=(b"e",),
    )
    end = bytearray(end_of(made))
    for at in data.draw(st.lists(st.integers(0, len(end) - 1), min_size=1, max_size=4)):
        end[at] = data.draw(st.integers(0, 255))
    with pytest.raises(OtherPagesError):
        read_pages(_Bytes(bytes(640) + bytes(end)), "file:///x", 640 + len(end))  # type: ignore[arg-type]


def test_an_end_without_columns_is_refused() -> None:
    """One broken byte makes it: it says how many rows there are, and none of their values."""
    made = Pages(version=(2, 2), rows=3, size_bytes=8, schema=b"s", columns=(), encodings=())
    end = end_of(made)
    with pytest.raises(OtherPagesError, match="no columns"):
        read_pages(_Bytes(bytes(8) + end), "file:///x", 8 + len(end))  # type: ignore[arg-type]


class _Bytes:
    """A storage of one object."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def get_range(self, _uri: str, start: int, stop: int) -> bytes:
        return self._data[start:stop]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rows": 4}, "a column without all rows"),
        ({"size_bytes": 64}, "a page that is elsewhere"),
        ({"version": (9, 9)}, "file format"),
    ],
)
def test_an_end_that_contradicts_itself_is_refused(
    change: dict[str, Any], said: str, tmp_path: Path
) -> None:
    """Each page has a place among those of the file, and each row is in a page."""
    path, size = written(tmp_path / "a", pa.table({"n": range(5000)}), "2.2")
    pages = read_pages(STORAGE, path, size)
    values = {name: getattr(pages, name) for name in Pages.__dataclass_fields__}
    lies = Pages(**{**values, **change})
    data = bytes(lies.size_bytes) + end_of(lies)
    with pytest.raises(OtherPagesError, match=said):
        read_pages(_Bytes(data), "file:///x", len(data))  # type: ignore[arg-type]


def test_pages_out_of_order_are_refused(tmp_path: Path) -> None:
    """Lance reads pages one after the other."""
    path, size = written(tmp_path / "a", pa.table({"n": range(5000)}), "2.2")
    pages = joined_pages(read_pages(STORAGE, path, size), path)
    swapped = Pages(
        version=pages.version,
        rows=pages.rows,
        size_bytes=pages.size_bytes,
        schema=pages.schema,
        columns=(pages.columns[0][::-1],),
        encodings=pages.encodings,
    )
    data = bytes(swapped.size_bytes) + end_of(swapped)
    with pytest.raises(OtherPagesError, match="not in order"):
        read_pages(_Bytes(data), "file:///x", len(data))  # type: ignore[arg-type]


def joined_pages(pages: Pages, path: str) -> Pages:
    """Return the pages of a file, twice."""
    *before, end = joined([(path, pages), (path, pages)])
    assert isinstance(end, bytes)
    data = bytes(sum(map(size_of, before))) + end
    return read_pages(_Bytes(data), path, len(data))  # type: ignore[arg-type]
