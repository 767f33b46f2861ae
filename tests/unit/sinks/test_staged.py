"""Which staged files may be deleted: plain paths inside the table's folders, and no others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import Mock

import lance
import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

from holdfast.errors import LedgerDamagedError, StoreUnavailableError, UnsupportedTableError
from holdfast.model.records import open_json, seal_json
from holdfast.model.work import StagedFile, StagedGroup
from holdfast.sinks.lance.sink import LanceSink
from holdfast.sinks.staged import is_root, missing_paths, refuse_outside
from holdfast.storage.objects import ObjectStorage
from holdfast.storage.port import ForbiddenError, StorageError
from tests.fakes.cli_lake import CliLake, lake
from tests.fakes.iceberg_tables import edit_metadata, local_path, new_table, write, writer_spec
from tests.fakes.lance_rig import IDS, DriverDied, LanceRig
from tests.fakes.memory_storage import MemoryStorage
from tests.fakes.memory_submitter import MemorySubmitter

__all__ = ["lake"]  # A fixture.

TABLE = "s3://lake/wh/t"
SCHEMA = Schema(NestedField(1, "id", LongType()))


def test_no_row_value_leads_out_of_the_tables_folder(tmp_path: Path) -> None:
    """A partition folder is named after a user's value; a sweep must be able to delete it."""
    values = [
        "..",
        ".",
        "/",
        "../../x",
        "/etc/x",
        "a/../../../x",
        "%2e%2e/x",
        "\\..\\x",
        "\0",
        "\n",
    ]
    partition = PartitionField(1, 1000, IdentityTransform(), "p/../../")
    schema = Schema(NestedField(1, "v", StringType()))
    spec = writer_spec(tmp_path, schema, spec=PartitionSpec(partition))
    files = write(spec, pa.RecordBatch.from_pydict({"v": values}))
    assert len(files) == len(values)
    refuse_outside("t", [f"file://{tmp_path}/t"], [file.file_path for file in files])
    here = {path.resolve() for path in (tmp_path / "t" / "data").glob("*/*.parquet")}
    assert here == {local_path(file.file_path).resolve() for file in files}


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
    """All that a writer makes can be deleted, including partitions of hostile values."""
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
        f"{TABLE}/data/../data/x.parquet",  # It ends inside, but no writer uses such a name.
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
    """The error names the path, wherever it is in the list."""
    good = f"{TABLE}/data/x.parquet"
    for paths in ([path], [good, path], [path, good], [good, path, good]):
        with pytest.raises(LedgerDamagedError, match=r"outside lake\.t") as caught:
            refuse_outside("lake.t", [folder], paths)
        assert caught.value.uri == path


def test_each_folder_of_the_table_counts() -> None:
    """A table's data and metadata may be in folders of their own."""
    folders = [TABLE, "s3://data/t", "s3://data/t/deeper"]
    refuse_outside("t", folders, ["s3://data/t/deeper/x.parquet", f"{TABLE}/metadata/x.avro"])
    with pytest.raises(LedgerDamagedError):
        refuse_outside("t", folders, ["s3://data/t2/x.parquet"])


def test_no_folder_means_no_file() -> None:
    """Without a known folder of the table nothing is deleted; an empty list is fine."""
    refuse_outside("t", [], [])
    with pytest.raises(LedgerDamagedError):
        refuse_outside("t", [], [f"{TABLE}/data/x.parquet"])


@pytest.mark.parametrize("name", ["link/x.parquet", "link/deeper/x.parquet", "x.parquet"])
@pytest.mark.parametrize("scheme", ["", "file:", "file://"])
def test_a_path_through_a_link_is_refused(tmp_path: Path, scheme: str, name: str) -> None:
    """It leads out of the table, although its text does not."""
    outside, data = tmp_path / "outside", tmp_path / "t" / "data"
    (outside / "deeper").mkdir(parents=True)
    data.mkdir(parents=True)
    (data / "link").symlink_to(outside)
    (data / "x.parquet").symlink_to(outside / "x.parquet")
    folder = f"{scheme}{tmp_path}/t"
    good = f"{folder}/data/y.parquet"
    refuse_outside("t", [folder], [good])
    for paths in ([f"{folder}/data/{name}"], [good, f"{folder}/data/{name}", good]):
        with pytest.raises(LedgerDamagedError, match="may lead outside"):
            refuse_outside("t", [folder], paths)


def test_a_table_may_itself_be_behind_a_link(tmp_path: Path) -> None:
    """The table's folder is taken as given; only links below it count."""
    (tmp_path / "disk" / "t" / "data").mkdir(parents=True)
    (tmp_path / "warehouse").symlink_to(tmp_path / "disk")
    for name in ("x.parquet", f"{'x' * 300}.parquet"):  # No file system allows the second.
        folder = f"file://{tmp_path}/warehouse/t"
        refuse_outside("t", [folder], [f"{folder}/data/{name}"])


@pytest.mark.parametrize(
    ("folder", "found"),
    [
        *((root, True) for root in ("file:///", "file:/", "/", "", "s3://", "s3://b", "s3://b/")),
        *((root, True) for root in ("file:///srv", "/srv/", "file:/srv", "gs://b", "data")),
        *((path, False) for path in ("s3://b/t", "file:///wh/t", "/wh/t/", "abfss://c@a/t")),
    ],
)
def test_a_root_is_not_a_tables_own_folder(folder: str, *, found: bool) -> None:
    """A bucket or the top of a file system may hold more than one table."""
    assert is_root(folder) is found


@pytest.mark.parametrize("name", ["write.data.path", "write.metadata.path"])
@pytest.mark.parametrize("above", ["victim", "victim/deeper", ".", "../..", "/"])
def test_nothing_is_deleted_in_a_folder_that_a_property_names(
    tmp_path: Path, name: str, above: str
) -> None:
    """Files are written there and stay there: it may be another table's folder."""
    sink, table = new_table(tmp_path, SCHEMA)
    victim = tmp_path / "victim" / "deeper" / "data.parquet"
    victim.parent.mkdir(parents=True)
    victim.write_bytes(b"precious")
    folder = (tmp_path / above).resolve()
    edit_metadata(table, lambda metadata: metadata["properties"].update({name: folder.as_uri()}))
    own = tmp_path / "warehouse" / "db" / "t" / "data" / "own.parquet"
    own.parent.mkdir()
    own.write_bytes(b"staged")
    for spelled in (victim.as_uri(), str(victim), f"file:{victim}"):
        with pytest.raises((LedgerDamagedError, UnsupportedTableError)):
            sink.delete_files(sink.load(), [own.as_uri(), spelled])
    assert victim.read_bytes() == b"precious"
    assert own.read_bytes() == b"staged"  # All paths are checked before the first is deleted.
    sink.delete_files(sink.load(), [own.as_uri()])
    assert not own.exists()


@pytest.mark.parametrize(
    "location", ["file:///", "file:/", "/", "file:///tmp", "s3://b", "s3://b/"]
)
def test_a_table_whose_location_is_a_root_owns_nothing_there(tmp_path: Path, location: str) -> None:
    """Otherwise every file of the machine or the bucket would count as the table's."""
    sink, table = new_table(tmp_path, SCHEMA)
    victim = tmp_path / "victim.parquet"
    victim.write_bytes(b"precious")
    edit_metadata(table, lambda metadata: metadata.update(location=location))
    for path in (victim.as_uri(), str(victim), f"file:{victim}", "s3://b/t/data/x.parquet"):
        with pytest.raises((LedgerDamagedError, UnsupportedTableError)):
            sink.delete_files(sink.load(), [path])
    assert victim.read_bytes() == b"precious"


def test_a_sweep_leaves_files_in_a_folder_that_a_property_names_and_says_so(
    lake: CliLake, capsys: pytest.CaptureFixture[str]
) -> None:
    """The sweep ends, and the records that list the files are kept too."""
    elsewhere = lake.folder / "elsewhere"
    lake.make_table(properties={"write.data.path": elsewhere.as_uri()})
    lake.start_and_die("r", MemorySubmitter(range(10), range(10, 20)))
    staged = sorted(elsewhere.rglob("*.parquet"))
    assert staged
    assert lake.call("abort", "r", "--yes", *lake.catalog_arguments) == 0
    capsys.readouterr()
    for _ in range(2):
        assert lake.call("sweep", "r", "--yes", *lake.catalog_arguments) == 0
        assert "folder that only this table uses" in " ".join(capsys.readouterr().out.split())
        assert sorted(elsewhere.rglob("*.parquet")) == staged


def test_a_dataset_that_a_forged_run_file_names_is_left_alone(lake: CliLake) -> None:
    """A dataset named by a ledger is read only: nothing is written to it or deleted from it."""
    lake.start_and_die("r", MemorySubmitter(range(10), range(10, 20)), sink=lake.make_dataset())
    victim = lake.folder / "elsewhere" / "victim.lance"
    lance.write_dataset(pa.table({"id": list(range(100))}), str(victim))
    before = sorted(victim.rglob("*"))
    run_file = lake.folder / "store" / "r" / "run.json"
    content = open_json(run_file.read_bytes())
    content["identity"]["table"] = victim.as_uri()
    run_file.write_bytes(seal_json(content))
    files = [path.as_uri() for path in before if path.suffix == ".lance" and path.is_file()]
    assert files
    for record in (lake.folder / "store" / "r" / "tasks").rglob("*.json"):
        content = open_json(record.read_bytes())
        group = {"path": files[0], "size_bytes": 1, "files": [[files[0], 1, 1]], "detail": {}}
        record.write_bytes(seal_json({**content, "groups": [group]}))
    for words in (["abort", "r", "--yes"], ["sweep", "r"], ["sweep", "r", "--yes"]):
        lake.call(*words)
    assert sorted(victim.rglob("*")) == before
    assert lance.dataset(str(victim)).count_rows() == 100


# ---- Staged files that are gone, or cannot be read now


def test_nothing_is_posted_in_place_of_copies_that_were_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All files are there, and the store fails while they are copied: the next start goes on."""
    rig = LanceRig(f"file://{tmp_path}/t.lance")
    with monkeypatch.context() as dying:
        dying.setattr(LanceSink, "post", Mock(side_effect=DriverDied))
        with pytest.raises(DriverDied):
            rig.start()
    rig.time.sleep(1000.0)  # The dead driver no longer seems alive.
    monkeypatch.setattr("holdfast.engine.resolve._OLD_AFTER_S", -math.inf)  # Copies are due.
    with monkeypatch.context() as failing:
        failing.setattr(ObjectStorage, "copy", Mock(side_effect=StorageError("503 Slow Down")))
        with pytest.raises(StoreUnavailableError, match="503 Slow Down"):
            rig.start_while()
    assert (rig.posts, rig.ids()) == ([], [-1])
    rig.start()
    rig.assert_each_row_once()
    assert rig.computed == len(IDS)


class NoLists(MemoryStorage):
    """S3 for a caller who may not list: what is missing is forbidden, like all without a key."""

    is_let_in = True

    def size(self, uri: str) -> int:
        """Return an object's size."""
        if not self.is_let_in or uri not in self.objects:
            raise ForbiddenError(f"{uri}: 403 Forbidden", lasts=True)
        return len(self.objects[uri])

    def sizes(self, uris: Sequence[str]) -> list[int | None]:
        """Return the objects' sizes."""
        return [self.size(uri) for uri in uris]


def test_a_missing_file_is_found_where_a_store_calls_it_forbidden() -> None:
    """The table's own metadata file shows that the credentials are accepted."""
    storage, known = NoLists(), "s3://t/metadata/1.json"
    group = StagedGroup(
        path="s3://t/m",
        size_bytes=1,
        files=tuple(StagedFile(path=f"s3://t/{n}", size_bytes=2, rows=1) for n in range(2)),
        detail={},
    )
    storage.objects |= {known: b"{}", "s3://t/m": b"1", "s3://t/1": b"12"}
    assert missing_paths(storage, [group], known) == ["s3://t/0"]
    with pytest.raises(ForbiddenError):
        missing_paths(storage, [group])
    only_known = NoLists()
    only_known.objects[known] = b"{}"
    with pytest.raises(ForbiddenError):  # It may only write here.
        missing_paths(only_known, [group], known)
    storage.is_let_in = False
    with pytest.raises(ForbiddenError):
        missing_paths(storage, [group], known)


def test_keys_that_expire_while_files_are_looked_for_make_none_missing() -> None:
    """What was paid for would be computed again."""
    known, uris = "s3://t/metadata/1.json", [f"s3://t/{n}" for n in range(9)]

    class Expires(NoLists):
        def sizes(self, uris: Sequence[str]) -> list[int | None]:
            raise ForbiddenError(f"{uris[0]}: 403 Forbidden", lasts=True)

        def size(self, uri: str) -> int:
            found = super().size(uri)
            self.is_let_in = uri == known
            return found

    storage = Expires()
    storage.objects |= {known: b"{}", **dict.fromkeys(uris, b"1")}
    groups = [StagedGroup(path=uri, size_bytes=1, files=(), detail={}) for uri in uris]
    with pytest.raises(ForbiddenError):
        missing_paths(storage, groups, known)
