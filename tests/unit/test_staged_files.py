"""Which staged files may be deleted: plain paths inside the table's folders, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.errors import LedgerDamagedError
from holdfast.sinks.staged_files import is_root, refuse_outside

TABLE = "s3://lake/wh/t"


@pytest.mark.parametrize("folder", [TABLE, f"{TABLE}/", "file:///wh/t", "/wh/t"])
@pytest.mark.parametrize(
    "rest",
    [
        "data/x.parquet",
        "data/p=%2F..%2F..%2F..%2Fx/a.parquet",  # The partition of the value "/../../../x".
        "data/p=../a.parquet",
        "data/a%20b=%2E%2E/a.parquet",
        "data/0110/1001/x.parquet",
        "x.lance",
        "data/..x.parquet",
        "data/x..parquet",
        "data/.hidden/100%.parquet",
    ],
)
def test_a_plain_path_inside_the_folder_passes(folder: str, rest: str) -> None:
    """Whatever a writer makes can be deleted, partitions of hostile values as well."""
    refuse_outside("t", [folder], [f"{folder.rstrip('/')}/{rest}"])


@pytest.mark.parametrize("folder", [TABLE, f"{TABLE}/"])
@pytest.mark.parametrize(
    "path",
    [
        "s3://lake/wh/t2/data/x.parquet",
        "s3://lake/wh/t-old/data/x.parquet",
        "s3://lake/wh/x.parquet",
        "s3://other/wh/t/data/x.parquet",
        "s3a://lake/wh/t/data/x.parquet",
        "/wh/t/data/x.parquet",
        "s3://lake/wh/T/data/x.parquet",
        f"prefix/{TABLE}/data/x.parquet",
        "",
        TABLE,
        f"{TABLE}/",
        f"{TABLE}/data/",
        f"{TABLE}/../victim/x.parquet",
        f"{TABLE}/data/../../victim/x.parquet",
        f"{TABLE}/data/..",
        f"{TABLE}/data/../data/x.parquet",  # It ends inside, but no writer names a file so.
        f"{TABLE}/./x.parquet",
        f"{TABLE}//x.parquet",
        f"{TABLE}//../victim/x.parquet",
        f"{TABLE}/%2e%2e/victim/x.parquet",
        f"{TABLE}/%2E./victim/x.parquet",
        f"{TABLE}/%252e%252e/victim/x.parquet",
        f"{TABLE}/..%2fvictim%2fx.parquet",
        f"{TABLE}/data%2F..%2F..%2Fvictim/x.parquet",
        f"{TABLE}/data/..\\..\\victim\\x.parquet",
        f"{TABLE}/data/..%5c..%5cvictim",
        f"{TABLE}/data/x\0.parquet",
        f"{TABLE}/data/p=1\0/x.parquet",
    ],
)
def test_any_other_path_is_refused(folder: str, path: str) -> None:
    """The error names the path, wherever in the list it is."""
    good = f"{TABLE}/data/x.parquet"
    for paths in ([path], [good, path], [path, good], [good, path, good]):
        with pytest.raises(LedgerDamagedError, match=r"outside of lake\.t") as caught:
            refuse_outside("lake.t", [folder], paths)
        assert caught.value.uri == path


def test_each_folder_of_the_table_counts() -> None:
    """A table's data and metadata may be in folders of their own."""
    folders = [TABLE, "s3://data/t", "s3://data/t/deeper"]
    refuse_outside("t", folders, ["s3://data/t/deeper/x.parquet", f"{TABLE}/metadata/x.avro"])
    with pytest.raises(LedgerDamagedError):
        refuse_outside("t", folders, ["s3://data/t2/x.parquet"])


def test_no_folder_means_no_file() -> None:
    """Where nothing is known to be the table's, nothing is deleted; an empty list asks nothing."""
    refuse_outside("t", [], [])
    with pytest.raises(LedgerDamagedError):
        refuse_outside("t", [], [f"{TABLE}/data/x.parquet"])


@pytest.mark.parametrize("name", ["link/x.parquet", "link/deeper/x.parquet", "x.parquet"])
@pytest.mark.parametrize("scheme", ["", "file:", "file://"])
def test_a_path_through_a_link_is_refused(tmp_path: Path, scheme: str, name: str) -> None:
    """It leads out of the table, though its text does not."""
    outside, data = tmp_path / "outside", tmp_path / "t" / "data"
    (outside / "deeper").mkdir(parents=True)
    data.mkdir(parents=True)
    (data / "link").symlink_to(outside)
    (data / "x.parquet").symlink_to(outside / "x.parquet")
    folder = f"{scheme}{tmp_path}/t"
    good = f"{folder}/data/y.parquet"
    refuse_outside("t", [folder], [good])
    for paths in ([f"{folder}/data/{name}"], [good, f"{folder}/data/{name}", good]):
        with pytest.raises(LedgerDamagedError, match="may lead there"):
            refuse_outside("t", [folder], paths)


def test_a_table_may_itself_be_behind_a_link(tmp_path: Path) -> None:
    """Its folder is where the table says that it is; only what is below it counts."""
    (tmp_path / "disk" / "t" / "data").mkdir(parents=True)
    (tmp_path / "warehouse").symlink_to(tmp_path / "disk")
    for name in ("x.parquet", f"{'x' * 300}.parquet"):  # No file system has the second.
        folder = f"file://{tmp_path}/warehouse/t"
        refuse_outside("t", [folder], [f"{folder}/data/{name}"])


@pytest.mark.parametrize(
    ("folder", "found"),
    [
        *((one, True) for one in ("file:///", "file:/", "/", "", "s3://", "s3://b", "s3://b/")),
        *((one, True) for one in ("file:///home", "/home/", "file:/home", "gs://b", "data")),
        *((one, False) for one in ("s3://b/t", "file:///wh/t", "/wh/t/", "abfss://c@a/t")),
    ],
)
def test_a_root_is_no_folder_of_a_tables_own(folder: str, *, found: bool) -> None:
    """A bucket and the top of a file system hold more than one table."""
    assert is_root(folder) is found
