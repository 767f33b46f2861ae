"""A Parquet scan: what it pins, and what its reader returns on an executor."""

from __future__ import annotations

import datetime as dt
import os
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.errors import InputChangedError, SettingsError
from holdfast.ledger.layout import RunLayout
from holdfast.ledger.parts import read_pins, write_pins
from holdfast.model.coverage import Ranges
from holdfast.reading.parquet_file import OpenFile, UnreadableFileError
from holdfast.sources.parquet import scan_parquet
from holdfast.storage import runtime
from tests.fakes.memory_storage import MemoryStorage
from tests.fakes.parquet_scans import on_disk, read, read_slices, whole_file, write_parquet


def test_rows_arrive_in_file_order_with_their_numbers(tmp_path: Path) -> None:
    """Files are sorted by name; files without rows do not affect the numbers."""
    write_parquet(tmp_path / "b.parquet", {"id": [4, 5]})
    write_parquet(tmp_path / "a.parquet", {"id": [1, 2, 3]}, row_group_size=2)
    write_parquet(tmp_path / "aa.parquet", {"id": pa.array([], pa.int64())})
    schema = pa.schema([("id", pa.int64())])
    with pq.ParquetWriter(tmp_path / "ab.parquet", schema):
        pass  # No row group at all.
    scan = on_disk(tmp_path)
    pins = scan.pin()
    assert [file.group_rows for file in pins.files] == [(2, 1), (0,), (), (2,)]
    found = read(scan, pins)
    assert [row["id"] for row in found.rows] == [1, 2, 3, 4, 5]
    assert found.tags == [(number, number + 1) for number in range(5)]
    assert found.schema == scan.schema(pins) == schema


def test_a_scan_without_rows_can_be_read(tmp_path: Path) -> None:
    """There is nothing to distribute."""
    write_parquet(tmp_path / "a.parquet", {"id": pa.array([], pa.int64())})
    scan = on_disk(tmp_path)
    assert scan.pin().whole == Ranges()
    assert read(scan).rows == []


def test_a_slice_may_start_and_end_inside_row_groups(tmp_path: Path) -> None:
    """Only its own rows are handed on, with unchanged numbers."""
    write_parquet(tmp_path / "a.parquet", {"id": list(range(100))}, row_group_size=30)
    write_parquet(tmp_path / "b.parquet", {"id": list(range(100, 140))}, row_group_size=30)
    scan = on_disk(tmp_path)
    pins = scan.pin()
    rows = Ranges.of([(5, 7), (29, 31), (95, 131)])
    found = read(scan, pins, rows)
    wanted = [5, 6, 29, 30, *range(95, 131)]
    assert [row["id"] for row in found.rows] == wanted
    assert found.accounted == wanted


def test_a_reader_can_be_sent_to_an_executor(tmp_path: Path) -> None:
    """It is pickled with its slices, and reads the same."""
    write_parquet(tmp_path / "day=1" / "a.parquet", {"id": [1, 2, 3]})
    scan = on_disk(tmp_path, where=[("id", ">", 1)])
    pins = scan.pin()
    reader, slices = pickle.loads(  # noqa: S301 - the test's own.
        pickle.dumps((scan.reader(pins), [whole_file(pins.files[0])]))
    )
    (batch,) = reader.read(slices, [])
    assert batch.column("id").to_pylist() == [2, 3]
    assert batch.column("day").to_pylist() == [1, 1]


def test_columns_of_the_path_have_the_types_of_their_values(tmp_path: Path) -> None:
    """Numbers, texts, NULL and percent-encoding work; the ledger returns them unchanged."""
    null = "__HIVE_DEFAULT_PARTITION__"
    write_parquet(tmp_path / "day=1" / "name=a%20b%2Fc" / "x.parquet", {"id": [1]})
    write_parquet(tmp_path / f"day={null}" / "name=d" / "x.parquet", {"id": [2]})
    write_parquet(tmp_path / "x.parquet", {"id": [3]})
    scan = on_disk(tmp_path)
    storage, layout = MemoryStorage(), RunLayout.of("s3://b", "r")
    pins = read_pins(storage, layout, write_pins(storage, layout, "p", scan.pin()))
    assert pins.schema == pa.schema(
        [("id", pa.int64()), ("day", pa.int64()), ("name", pa.string())]
    )
    assert read(scan, pins).rows == [
        {"id": 1, "day": 1, "name": "a b/c"},
        {"id": 2, "day": None, "name": "d"},
        {"id": 3, "day": None, "name": None},
    ]


def test_a_column_in_some_files_and_some_paths_has_the_files_type(tmp_path: Path) -> None:
    """A value in the file takes precedence over one in its path."""
    day = dt.date(2026, 11, 15)
    write_parquet(tmp_path / "a.parquet", {"id": [1], "day": [day]})
    write_parquet(tmp_path / "day=2026-11-16" / "b.parquet", {"id": [2]})
    write_parquet(tmp_path / "day=2026-11-17" / "c.parquet", {"id": [3], "day": [day]})
    scan = on_disk(tmp_path)
    storage, layout = MemoryStorage(), RunLayout.of("s3://b", "r")
    pins = read_pins(storage, layout, write_pins(storage, layout, "p", scan.pin()))
    days = [row["day"] for row in read(scan, pins).rows]
    assert days == [day, dt.date(2026, 11, 16), day]


def test_a_path_column_is_not_mistaken_for_a_part_of_a_nested_one(tmp_path: Path) -> None:
    """Lists have an inner name (`element`) that a partition may have too."""
    write_parquet(tmp_path / "element=7" / "a.parquet", {"tags": [[1, 2]]})
    assert read(on_disk(tmp_path)).rows == [{"tags": [1, 2], "element": 7}]


def test_only_columns_of_the_path_may_be_requested(tmp_path: Path) -> None:
    """Only the file's footer is read then, and each row still counts."""
    write_parquet(tmp_path / "day=1" / "a.parquet", {"id": list(range(5))}, row_group_size=2)
    found = read(on_disk(tmp_path, columns=["day"]))
    assert found.rows == [{"day": 1}] * 5
    assert found.accounted == list(range(5))


def test_drifted_files_are_read_in_the_wider_type(tmp_path: Path) -> None:
    """The order of the files does not matter; a column that a file lacks is NULL."""
    small = pa.table({"n": pa.array([1], pa.int32()), "t": pa.array([5], pa.timestamp("ms"))})
    large = pa.table(
        {"n": pa.array([2**40]), "t": pa.array([6], pa.timestamp("ns")), "more": ["x"]}
    )
    for first, second in ((small, large), (large, small)):
        write_parquet(tmp_path / "a.parquet", first)
        write_parquet(tmp_path / "b.parquet", second)
        scan = on_disk(tmp_path)
        schema = scan.pin().schema
        assert schema.field("n").type == pa.int64()
        assert schema.field("t").type == pa.timestamp("ns")
        rows = sorted(read(scan).rows, key=lambda row: int(row["n"]))
        assert [(row["n"], row["more"]) for row in rows] == [(1, None), (2**40, "x")]
        assert [row["t"].value for row in rows] == [5_000_000, 6]


def test_bytes_of_fixed_length_become_bytes_of_any_length(tmp_path: Path) -> None:
    """Otherwise a worker would fail at the first longer value."""
    write_parquet(tmp_path / "a.parquet", {"b": pa.array([b"abcd"], pa.binary())})
    write_parquet(tmp_path / "b.parquet", {"b": pa.array([b"xy"], pa.binary(2))})
    assert [row["b"] for row in read(on_disk(tmp_path)).rows] == [b"abcd", b"xy"]


def test_a_required_column_is_nullable_if_a_file_lacks_it(tmp_path: Path) -> None:
    """The common schema must not declare such a column as required."""
    strict = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    write_parquet(tmp_path / "a.parquet", pa.table({"id": [1]}, schema=strict))
    assert not on_disk(tmp_path).pin().schema.field("id").nullable
    write_parquet(tmp_path / "b.parquet", {"other": [1]})
    scan = on_disk(tmp_path)
    assert scan.pin().schema.field("id").nullable
    assert [row["id"] for row in read(scan).rows] == [1, None]


def test_types_that_do_not_fit_are_an_error_that_names_both_files(tmp_path: Path) -> None:
    """The user can then look at both."""
    write_parquet(tmp_path / "a.parquet", {"n": [1]})
    write_parquet(tmp_path / "b.parquet", {"n": ["x"]})
    with pytest.raises(SettingsError, match=r"'n' is int64 in .*a\.parquet and string in .*b\.pa"):
        on_disk(tmp_path).pin()


def test_a_duplicate_column_name_in_a_file_is_refused(tmp_path: Path) -> None:
    """Read by its name, such a column would silently be NULL."""
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["n", "n"])
    write_parquet(tmp_path / "a.parquet", twice)
    with pytest.raises(SettingsError, match="two columns 'n'"):
        on_disk(tmp_path).pin()


def test_nested_and_dictionary_columns_arrive_whole(tmp_path: Path) -> None:
    """A dictionary is only an encoding: its values are handed on."""
    kind = pa.struct([("b", pa.list_(pa.struct([("c", pa.int64())]))), ("d", pa.string())])
    first = pa.table(
        {
            "a": pa.array([{"b": [{"c": 1}, None], "d": "x"}, None], kind),
            "m": pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int64())),
            "text": pa.array(["u", "v"]).dictionary_encode(),
        }
    )
    write_parquet(tmp_path / "a.parquet", first)
    write_parquet(tmp_path / "b.parquet", first.slice(0, 1).set_column(2, "text", [["w"]]))
    found = read(on_disk(tmp_path))
    assert found.rows == [*first.to_pylist(), {**first.to_pylist()[0], "text": "w"}]
    assert found.schema is not None
    assert found.schema.field("text").type == pa.string()
    assert read(on_disk(tmp_path, columns=["a"])).rows[0] == {"a": first.to_pylist()[0]["a"]}


def test_inner_fields_may_differ_in_how_they_are_declared(tmp_path: Path) -> None:
    """Spark and pandas differ in what may be NULL; an inner type widens like an outer one."""
    strict = pa.struct([pa.field("x", pa.int32(), nullable=False)])
    loose = pa.struct([pa.field("x", pa.int64())])
    write_parquet(tmp_path / "a.parquet", {"s": pa.array([{"x": 1}], strict)})
    write_parquet(tmp_path / "b.parquet", {"s": pa.array([{"x": None}], loose)})
    assert [row["s"]["x"] for row in read(on_disk(tmp_path)).rows] == [1, None]


def test_a_dot_in_a_name_is_not_a_path(tmp_path: Path) -> None:
    """This holds even next to a nested column with the same path."""
    write_parquet(tmp_path / "a.parquet", {"a": [{"b": 1}], "a.b": [5], "c.d": [6]})
    assert read(on_disk(tmp_path)).rows == [{"a": {"b": 1}, "a.b": 5, "c.d": 6}]
    assert read(on_disk(tmp_path, columns=["c.d", "a.b"])).rows == [{"c.d": 6, "a.b": 5}]


def test_columns_are_returned_in_the_requested_order(tmp_path: Path) -> None:
    """The error for a missing name lists the names that exist."""
    write_parquet(tmp_path / "a.parquet", {"x": [1], "y": [2], "z": [3]})
    found = read(on_disk(tmp_path, columns=["z", "x"]))
    assert [list(row.items()) for row in found.rows] == [[("z", 3), ("x", 1)]]
    with pytest.raises(SettingsError, match=r"(?s)no column 'q'.*\['x', 'y', 'z'\]"):
        on_disk(tmp_path, columns=["q"]).pin()


@pytest.mark.parametrize("columns", [[], ["x", "x"], "x"])
def test_columns_that_make_no_sense_are_refused_at_once(columns: list[str]) -> None:
    """They are refused before anything is read."""
    with pytest.raises(SettingsError, match="columns="):
        scan_parquet("/in", columns=columns)


def test_only_the_requested_columns_are_read(tmp_path: Path) -> None:
    """A file whose other columns are destroyed can still be read."""
    rows = 3_000
    uri = write_parquet(
        tmp_path / "a.parquet",
        {"x": [1] * rows, "wide": [os.urandom(800) for _ in range(rows)]},
        use_dictionary=["x"],
        compression="none",
    )
    path = Path(uri.removeprefix("file://"))
    chunk = pq.read_metadata(path).row_group(0).column(1)
    with path.open("r+b") as file:
        file.seek(chunk.data_page_offset)
        file.write(b"\xff" * chunk.total_compressed_size)
    assert len(read(on_disk(tmp_path, columns=["x"])).rows) == rows
    with pytest.raises(UnreadableFileError, match=r"a\.parquet: row group 0 cannot be read"):
        read(on_disk(tmp_path, columns=["wide"]))


@pytest.mark.parametrize("content", [b"", b"PAR1", b"id\n1\n", b"PAR1" + b"\xff" * 8 + b"PAR1"])
def test_a_file_that_is_not_a_parquet_file_is_named(tmp_path: Path, content: bytes) -> None:
    """The content does not matter."""
    (tmp_path / "bad.parquet").write_bytes(content)
    with pytest.raises(SettingsError, match=r"bad\.parquet"):
        on_disk(tmp_path).pin()


def test_a_folder_without_parquet_files_is_named(tmp_path: Path) -> None:
    """It may be the wrong folder."""
    (tmp_path / "a.csv").touch()
    with pytest.raises(SettingsError, match=str(tmp_path)):
        on_disk(tmp_path).pin()


def test_a_footer_longer_than_the_first_read_is_read_whole(tmp_path: Path) -> None:
    """Wide tables have long footers."""
    write_parquet(tmp_path / "a.parquet", {f"column {n}": [n] for n in range(1500)})
    found = read(on_disk(tmp_path))
    assert list(found.rows[0].values()) == list(range(1500))


def test_a_file_changed_since_is_an_error_at_the_next_start_and_on_the_worker(
    tmp_path: Path,
) -> None:
    """This holds even if the size is the same, and however far the reader is."""
    write_parquet(tmp_path / "a.parquet", {"id": [1, 2]})
    changed = write_parquet(tmp_path / "b.parquet", {"id": [3, 4]})
    scan = on_disk(tmp_path)
    pins = scan.pin()
    reading = scan.reader(pins).read([whole_file(file) for file in pins.files], [])
    write_parquet(tmp_path / "b.parquet", {"id": [5, 6]})
    with pytest.raises(InputChangedError, match=f"{changed} was rewritten"):
        scan.compare(pins)
    with pytest.raises(InputChangedError, match=f"{changed} was rewritten"):
        list(reading)


def test_a_file_deleted_since_is_an_error_at_the_next_start_and_on_the_worker(
    tmp_path: Path,
) -> None:
    """The error names the file."""
    uri = write_parquet(tmp_path / "a.parquet", {"id": [1, 2]})
    scan = on_disk(tmp_path)
    pins = scan.pin()
    (tmp_path / "a.parquet").unlink()
    with pytest.raises(InputChangedError, match=f"{uri} is gone"):
        scan.compare(pins)
    with pytest.raises(InputChangedError, match=f"{uri} is gone"):
        read_slices(scan, pins, [whole_file(pins.files[0])])


def test_a_file_deleted_while_it_is_read_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The footer was there, but the rows are not."""
    uri = write_parquet(
        tmp_path / "a.parquet", {"id": list(range(9))}, row_group_size=3, compression="none"
    )
    monkeypatch.setattr(runtime, "AHEAD_BYTES", 1)  # Otherwise it would already be fetched.
    scan = on_disk(tmp_path)
    pins = scan.pin()
    reading = scan.reader(pins).read([whole_file(pins.files[0])], [])
    next(reading)
    (tmp_path / "a.parquet").unlink()
    with pytest.raises(InputChangedError, match=f"{uri} is gone"):
        list(reading)


@pytest.mark.parametrize(
    ("ahead_bytes", "begun"),
    [
        (1, [["a0", "a1"], ["a0", "a1", "a2"], ["a0", "a1", "a2", "b0"]]),
        (1 << 20, [["a0", "a1", "a2", "b0"]] * 3),
    ],
)
def test_row_groups_are_fetched_while_others_are_at_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead_bytes: int, begun: list[list[str]]
) -> None:
    """As many are fetched as fit; a worker holds at most two large ones."""
    write_parquet(tmp_path / "a.parquet", {"id": list(range(9))}, row_group_size=3)
    write_parquet(tmp_path / "b.parquet", {"id": [9]})
    monkeypatch.setattr(runtime, "AHEAD_BYTES", ahead_bytes)
    asked: list[str] = []
    fetch = OpenFile.fetch

    def watched(self: OpenFile, number: int) -> Any:  # noqa: ANN401 - futures.
        asked.append(f"{self.file.uri[-9]}{number}")
        return fetch(self, number)

    monkeypatch.setattr(OpenFile, "fetch", watched)
    scan = on_disk(tmp_path)
    pins = scan.pin()
    (item,) = pins.items(pins.whole, slots=1, item_bytes=1 << 40)
    seen = [list(asked) for _ in scan.reader(pins).read(item, [])]
    assert seen == [*begun, begun[-1]]


def test_new_files_are_refused_or_left(tmp_path: Path) -> None:
    """`new_files` decides which."""
    write_parquet(tmp_path / "a.parquet", {"id": [1]})
    pins = on_disk(tmp_path).pin()
    write_parquet(tmp_path / "b.parquet", {"id": [1]})
    assert "b.parquet" in on_disk(tmp_path).compare(pins)
    assert on_disk(tmp_path, new_files="leave").compare(pins) == ""
    with pytest.raises(SettingsError, match="new_files="):
        on_disk(tmp_path, new_files="read")


def test_a_scan_does_not_show_its_options() -> None:
    """They hold credentials."""
    assert "hunter2" not in repr(scan_parquet("/in", options={"s3.secret-access-key": "hunter2"}))


def test_old_timestamps_of_spark_are_in_utc(tmp_path: Path) -> None:
    """Spark writes INT96 by default, in UTC; years beyond the range of nanoseconds work."""
    utc = dt.timezone.utc
    moments = [dt.datetime(2026, 11, 15, 12, tzinfo=utc), dt.datetime(1600, 1, 1, tzinfo=utc), None]
    written = [moment and moment.replace(tzinfo=None) for moment in moments]
    table = pa.table({"at": pa.array(written, pa.timestamp("us"))})
    pq.write_table(table, tmp_path / "a.parquet", use_deprecated_int96_timestamps=True)
    scan = on_disk(tmp_path)
    assert scan.schema(scan.pin()).field("at").type == pa.timestamp("us", "UTC")
    assert [row["at"] for row in read(scan).rows] == moments


def test_large_rows_are_decoded_a_few_at_a_time(tmp_path: Path) -> None:
    """A row group of a thousand images is never entirely in memory."""
    write_parquet(tmp_path / "a.parquet", {"image": [os.urandom(1 << 20) for _ in range(40)]})
    scan = on_disk(tmp_path)
    pins = scan.pin()
    sizes = [batch.num_rows for batch in scan.reader(pins).read([whole_file(pins.files[0])], [])]
    assert sum(sizes) == 40
    assert max(sizes) <= 16


def test_a_file_without_a_tag_is_known_by_its_row_groups(tmp_path: Path) -> None:
    """Not every store has tags: other row groups under the same name mean another file."""
    write_parquet(tmp_path / "a.parquet", {"id": [1, 2, 3, 4]}, row_group_size=2)
    scan = on_disk(tmp_path)
    pins = scan.pin()
    (file,) = pins.files
    other = replace(file, tag="", group_rows=(3, 1))
    with pytest.raises(InputChangedError, match="was rewritten"):
        list(scan.reader(pins).read([whole_file(other)], []))
