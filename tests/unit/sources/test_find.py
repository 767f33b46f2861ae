"""Paths, folders and globs become objects; paths may hold columns."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.errors import InputChangedError, SettingsError
from holdfast.model.coverage import PinnedFile, Pins
from holdfast.sources.find import compare_files, find_files, path_schema, path_values, typed
from holdfast.storage.objects import ObjectStorage
from tests.fakes.memory_storage import MemoryStorage

# ---- Paths, folders and globs become objects, and later starts are compared with them
STORAGE = ObjectStorage({})
FILES = (
    "a.parquet",
    "b.csv",
    "_SUCCESS",
    "_hidden.parquet",
    ".crc.parquet",
    "day=1/c.parquet",
    "day=1/_temporary/0/d.parquet",
    "day=2/deep/e.parquet",
    "_day=3/f.parquet",
    "odd [1].parquet",
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder of files with all kinds of names."""
    for name in FILES:
        file = tmp_path / "in" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name)
    (tmp_path / "in2").mkdir()
    (tmp_path / "in2" / "other.parquet").touch()
    return tmp_path / "in"


def found(folder: Path, *paths: str, suffix: str = "") -> list[str]:
    """Return the names of the files that these paths below the folder match."""
    files = find_files(STORAGE, [f"{folder}{path}" for path in paths], suffix)
    return [file.uri.removeprefix(f"file://{folder}/") for file in files]


def test_a_folder_means_all_files_in_it_except_hidden_ones(folder: Path) -> None:
    """A folder whose name has the same beginning is another folder; `_day=3` is a column."""
    names = ["_day=3/f.parquet", "a.parquet", "day=1/c.parquet", "day=2/deep/e.parquet"]
    assert found(folder, "", suffix=".parquet") == [*names, "odd [1].parquet"]
    assert found(folder, "/", suffix=".csv") == ["b.csv"]


@pytest.mark.parametrize(
    ("glob", "names"),
    [
        ("/*.parquet", ["a.parquet", "odd [1].parquet"]),
        ("/?.*", ["a.parquet", "b.csv"]),
        ("/[!b].parquet", ["a.parquet"]),
        ("/day=[12]/*", ["day=1/c.parquet"]),
        (
            "/**/*.parquet",
            ["_day=3/f.parquet", *FILES[:1], "day=1/c.parquet", "day=2/deep/e.parquet", FILES[-1]],
        ),
        ("/day=*/**", ["day=1/c.parquet", "day=2/deep/e.parquet"]),
        ("/day=*/**/e.parquet", ["day=2/deep/e.parquet"]),
        ("/_*.parquet", ["_hidden.parquet"]),
        ("/odd [[]1].parquet", ["odd [1].parquet"]),
    ],
)
def test_a_glob_stays_within_one_folder_unless_it_is_a_double_star(
    folder: Path, glob: str, names: list[str]
) -> None:
    """Half-written files in `_temporary` are not included by accident."""
    assert found(folder, glob) == names


def test_an_object_may_be_named_directly_and_counts_once(folder: Path) -> None:
    """This holds whatever its name is, and however many paths match it."""
    assert found(folder, "/_hidden.parquet", suffix=".parquet") == ["_hidden.parquet"]
    assert found(folder, "/a.parquet", "/*.parquet", "/a.parquet")[0] == "a.parquet"
    assert len(found(folder, "/a.parquet", "/*.parquet")) == 2


def test_an_empty_object_that_marks_a_folder_is_not_a_file() -> None:
    """Some tools leave one for each folder; an empty file elsewhere is a file."""
    storage = MemoryStorage()
    for name, content in {"a": b"", "a/b": b"x", "a/empty": b""}.items():
        storage.put(f"s3://b/in/{name}", content)
    assert [file.uri[-5:] for file in find_files(storage, ["s3://b/in"])] == ["n/a/b", "empty"]


@pytest.mark.parametrize("path", ["/none.parquet", "/none/*.x", "/[z-a].parquet"])
def test_a_path_that_names_nothing_is_an_error(folder: Path, path: str) -> None:
    """The error shows it; on a resume the comparison reports it instead."""
    with pytest.raises(SettingsError, match=r"none|z-a"):
        found(folder, path)


def test_a_relative_path_is_refused() -> None:
    """Driver and workers may run in different folders."""
    with pytest.raises(SettingsError, match="an absolute path"):
        find_files(STORAGE, ["in/*.parquet"])


def pins_of(folder: Path, *names: str) -> Pins:
    """Return pins of files as they are now."""
    files = [
        PinnedFile(uri=o.uri, size_bytes=o.size_bytes, tag=o.tag, group_rows=(), group_bytes=())
        for o in find_files(STORAGE, [f"{folder}/{name}" for name in names])
    ]
    return Pins(files=tuple(files), schema=pa.schema([]))


def compared(folder: Path, pins: Pins, *, may_grow: bool = False) -> str:
    """Compare pins with all files of the folder."""
    now = find_files(STORAGE, [f"{folder}"], must_exist=False)
    return compare_files(STORAGE, now, pins, may_grow=may_grow)


def test_new_files_are_named_or_left(folder: Path) -> None:
    """The message names both ways to go on."""
    pins = pins_of(folder, "*", "day=1", "day=2", "_day=3")
    assert compared(folder, pins) == ""
    (folder / "z.parquet").touch()
    difference = compared(folder, pins)
    assert "1 files were added" in difference
    assert "z.parquet" in difference
    assert 'new_files="leave"' in difference
    assert compared(folder, pins, may_grow=True) == ""


def test_a_changed_or_deleted_file_is_an_error_that_names_it(folder: Path) -> None:
    """This includes the case that no file is left."""
    pins = pins_of(folder, "a.parquet")
    (folder / "a.parquet").write_text("a.parquex")
    with pytest.raises(InputChangedError, match=r"a\.parquet was rewritten"):
        compared(folder, pins)
    (folder / "a.parquet").unlink()
    with pytest.raises(InputChangedError, match=r"a\.parquet is gone"):
        compared(folder, pins)
    with pytest.raises(InputChangedError, match=r"a\.parquet is gone"):
        compared(folder / "none", pins)


def test_a_pinned_file_that_this_start_does_not_name_is_not_a_deleted_file(folder: Path) -> None:
    """Other paths make another job; the input itself is unchanged."""
    pins = pins_of(folder, "day=1", "a.parquet")
    difference = compared(folder / "day=1", pins)
    assert "1 files of the run are not named by this start" in difference
    assert "a.parquet" in difference


# ---- Columns in paths, as Hive and Spark write them
def test_a_path_gives_its_columns() -> None:
    """They may be percent-encoded or NULL; values and file names may hold an equals sign."""
    path = "s3://b/day=2026-11-15/a%3Db=x%2Fy%25=z/n=__HIVE_DEFAULT_PARTITION__/=x/f=1.parquet"
    assert path_values(path) == {"day": "2026-11-15", "a=b": "x/y%=z", "n": None}


@pytest.mark.parametrize(
    ("texts", "kind"),
    [
        (["1", "-20", "0", None], pa.int64()),
        (["007", "1"], pa.string()),
        (["-0"], pa.string()),
        (["1", "x"], pa.string()),
        (["1" * 19], pa.string()),
        (["1.5"], pa.string()),
        (["٣"], pa.string()),
        ([""], pa.string()),
        ([None], pa.string()),
    ],
)
def test_only_whole_numbers_are_numbers(texts: list[str | None], kind: pa.DataType) -> None:
    """A value that would not print the same again stays text."""
    assert path_schema([{"n": text} for text in texts]) == pa.schema([("n", kind)])


def test_a_text_is_cast_to_the_type_that_files_have() -> None:
    """If that fails, the error names the file."""
    assert typed("s3://b/x", "day", "2026-11-15", pa.date32()).as_py().day == 15
    assert typed("s3://b/x", "day", None, pa.date32()).as_py() is None
    with pytest.raises(SettingsError, match="s3://b/x: column 'day' is int32"):
        typed("s3://b/x", "day", "monday", pa.int32())
