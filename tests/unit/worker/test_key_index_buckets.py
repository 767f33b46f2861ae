"""A large index: the same keys are found as in a small one, whatever lies between its jobs."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import random
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from holdfast.errors import ExecutorSetupError, LedgerDamagedError
from holdfast.ledger.parts import KeyPiece
from holdfast.worker import key_index, key_search, key_values
from holdfast.worker.key_index import BucketPlan, Built, KeyIndex, PiecePlan, bucket_items
from holdfast.worker.key_search import BucketSearch, _write_local
from holdfast.worker.key_values import united_stretches
from tests.fakes.memory_storage import MemoryStorage
from tests.unit.worker.test_key_index import LAYOUT, VALUES, Columns, with_null

BITS = 3


@pytest.fixture(autouse=True)
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let Spark's local directory be one of the test."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    monkeypatch.setattr(key_index, "_last_read", ((), None))
    return tmp_path


def pieces_of(
    storage: MemoryStorage, tasks: Sequence[Sequence[pa.Array]], bits: int = BITS
) -> tuple[list[KeyPiece], pa.Schema]:
    """Let tasks divide keys."""
    names = [f"c{n}" for n in range(len(tasks[0]))]
    found = []
    batches = [pa.RecordBatch.from_arrays(list(columns), names=names) for columns in tasks]
    for place, batch in enumerate(batches):
        plan = PiecePlan(
            reader=Columns(batch.schema, [batch.slice(0, 7), batch.slice(7)]),
            storage=storage,
            layout=LAYOUT,
            name="index-n",
            slot_bits=bits,
        )
        items = pa.RecordBatch.from_pydict({"chunks": ["[]"]})
        report = plan.run([items], place=place, attempt=1)
        found += [KeyPiece.from_json(text) for text in report.results]
    return found, batches[0].schema


def merged(
    storage: MemoryStorage, pieces: Sequence[KeyPiece], schema: pa.Schema, bucket_bytes: int = 1
) -> list[Built]:
    """Let tasks merge pieces."""
    items = bucket_items(pieces, bucket_bytes)
    plan = BucketPlan(storage=storage, layout=LAYOUT, name="index-n", schema=schema)
    built: list[tuple[int, str]] = []
    for place, item in enumerate(items):
        report = plan.run([pa.RecordBatch.from_pydict({"chunks": [item]})], place=place, attempt=2)
        assert not report.damaged
        built += [tuple(json.loads(text)) for text in report.results]
    return [Built.from_json(text) for _, text in sorted(built)]


def large_index(storage: MemoryStorage, tasks: Sequence[Sequence[pa.Array]]) -> KeyIndex:
    """Build an index of several files."""
    pieces, schema = pieces_of(storage, tasks)
    built = merged(storage, pieces, schema)
    assert not any(some.doubles for some in built)
    return KeyIndex(
        on=tuple(schema.names),
        name="index-n",
        files=tuple(some.file for some in built if some.file is not None),
        storage=storage,
        layout=LAYOUT,
    )


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("columns", [1, 2])
def test_keys_of_every_type_are_found_in_a_large_index(kind: str, columns: int) -> None:
    """Each has a number of its own; a row with NULL has none."""
    storage, values = MemoryStorage(), VALUES[kind]
    numbers = pa.array([n % 5 for n in range(30)], pa.int64())
    every = [values, numbers][:columns]
    parts = [[column.take(pa.array(range(n, 20, 3))) for column in every] for n in range(3)]
    made = large_index(storage, parts)
    assert (made.rows, made.is_large, len(made.files) > 1) == (20, True, True)
    (found,) = made.search([every])
    assert sorted(found[:20].tolist()) == list(range(20))
    assert found[20:].tolist() == [-1] * 10
    again = [pa.concat_arrays([with_null(column), column]) for column in every]
    (both,) = made.search([again])
    assert both[3] == -1
    assert both[31:].tolist() == found.tolist()


def test_a_portion_of_rows_is_searched_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The numbers come in the order of the rows, whatever the bound."""
    storage, ids = MemoryStorage(), pa.array(range(100), pa.int64())
    made = large_index(storage, [[ids.slice(0, 50)], [ids.slice(50)]])
    order = list(range(200))
    random.Random(3).shuffle(order)
    rows = pa.array(order, pa.int64())
    (whole,) = made.search([[rows]])
    monkeypatch.setattr(key_search, "_PORTION_BYTES", 500)
    parts = list(made.search([rows.slice(at, 10)] for at in range(0, 200, 10)))
    assert len(parts) > 5
    assert np.concatenate(parts).tolist() == whole.tolist()
    assert {row for row, number in zip(order, whole, strict=True) if number >= 0} == {*range(100)}


def test_keys_that_share_a_hash_are_told_apart_in_a_large_index(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also those of several pieces, and doubled ones among them."""
    for module in (key_values, key_search):
        monkeypatch.setattr(
            module, "key_hashes", lambda columns: np.zeros(len(columns[0]), np.uint64) + 7
        )
    storage = MemoryStorage()
    made = large_index(storage, [[pa.array(["b", "a"])], [pa.array(["d", "c", "e"])]])
    (found,) = made.search([[pa.array(["e", "x", "a", "b", "c", "y", "d"])]])
    assert found.tolist() == [4, -1, 0, 1, 2, -1, 3]
    pieces, schema = pieces_of(storage, [[pa.array(["b", "a", "b"])], [pa.array(["a", "c"])]])
    assert [some.doubles for some in merged(storage, pieces, schema)] == [2]


def test_doubled_keys_are_counted_once_each_across_pieces() -> None:
    """A key that is there very often takes the memory of two in each piece."""
    storage = MemoryStorage()
    first = pa.array([1, 2, 3] + [9] * 1000, pa.int64())
    second = pa.array([9] * 500 + [2, 4, 5, 5], pa.int64())
    pieces, schema = pieces_of(storage, [[first], [second]])
    assert [piece.left_out for piece in pieces] == [998, 498]
    assert [sum(piece.rows) for piece in pieces] == [5, 6]
    built = merged(storage, pieces, schema)
    assert sum(some.doubles for some in built) == 3
    examples = sorted(text for some in built for text in some.examples)
    assert examples == ["{'c0': 2}", "{'c0': 5}", "{'c0': 9}"]


def test_many_keys_of_one_task_become_several_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that no task holds more than the bound."""
    monkeypatch.setattr(key_index, "_PIECE_BYTES", 100)
    storage, ids = MemoryStorage(), pa.array(range(60), pa.int64())
    pieces, schema = pieces_of(storage, [[ids]])
    assert len(pieces) == 1  # Its reader gives 7 keys, and then all others.
    pieces, schema = pieces_of(storage, [[ids.slice(0, 20)], [ids.slice(20)]])
    assert sum(some.file.rows for some in merged(storage, pieces, schema) if some.file) == 60


@pytest.mark.parametrize("kind", [kind for kind in VALUES if kind != "uuid"])
def test_stretches_of_pieces_are_united(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All keys lie in them, and the widest gaps do not."""
    storage, values = MemoryStorage(), VALUES[kind]
    ordered = values.take(pa.array(sorted(range(30), key=lambda n: values[n].as_py())))
    parts = [[ordered.take(pa.array(rows))] for rows in ([0, 2, 29], [28, 1, 3], [5])]
    pieces, _ = pieces_of(storage, parts)
    monkeypatch.setattr(key_values, "_STRETCHES_MAX", 2)
    batch = key_values.stretches_in(united_stretches([piece.stretches for piece in pieces]))
    ends = list(zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True))
    assert len(ends) <= 2
    for row in (0, 1, 2, 3, 5, 28, 29):
        value = ordered[row].as_py()
        assert any(first <= value <= last for first, last in ends)
    if kind in {"long", "int", "date", "time", "timestamp", "long decimal", "short decimal"}:
        assert not any(first <= ordered[15].as_py() <= last for first, last in ends)


# ---- Damage


def test_a_piece_that_is_gone_or_damaged_is_reported() -> None:
    """The driver can have it made again; no key is lost silently."""
    storage = MemoryStorage()
    pieces, schema = pieces_of(storage, [[pa.array(range(40), pa.int64())]])
    uri = LAYOUT.part(pieces[0].name)
    whole = storage.objects[uri]
    (first, *_) = items = bucket_items(pieces, 1)
    plan = BucketPlan(storage=storage, layout=LAYOUT, name="index-n", schema=schema)
    for data in (None, whole[:20], whole[:60] + bytes([whole[60] ^ 1]) + whole[61:], whole[1:]):
        if data is None:
            del storage.objects[uri]
        else:
            storage.objects[uri] = data
        batch = pa.RecordBatch.from_pydict({"chunks": items})
        report = plan.run([batch], place=0, attempt=3)
        assert any(uri in text for text in report.damaged), data
    storage.objects[uri] = whole
    assert not plan.run(
        [pa.RecordBatch.from_pydict({"chunks": [first]})], place=0, attempt=4
    ).damaged


def test_slots_in_the_wrong_place_are_damage() -> None:
    """Keys would be looked for in a file that does not have them."""
    storage = MemoryStorage()
    pieces, schema = pieces_of(storage, [[pa.array(range(40), pa.int64())]])
    number, slot, parts = json.loads(bucket_items(pieces, 1)[0])
    item = json.dumps([number, slot + 1, parts])
    plan = BucketPlan(storage=storage, layout=LAYOUT, name="index-n", schema=schema)
    report = plan.run([pa.RecordBatch.from_pydict({"chunks": [item]})], place=0, attempt=3)
    assert "digest" in report.damaged[0]


@pytest.mark.parametrize("what", ["gone", "damaged", "swapped"])
def test_a_file_of_the_index_that_is_not_as_it_was_is_an_error(what: str) -> None:
    """Else rows would keep their old values."""
    storage, ids = MemoryStorage(), pa.array(range(40), pa.int64())
    made = large_index(storage, [[ids]])
    uris = [LAYOUT.part(file.name) for file in made.files]
    if what == "gone":
        del storage.objects[uris[1]]
    elif what == "damaged":
        storage.objects[uris[1]] = storage.objects[uris[1]][:-1]
    else:
        storage.objects[uris[1]] = storage.objects[uris[0]]
    with pytest.raises(LedgerDamagedError):
        list(made.search([[ids]]))


@pytest.mark.parametrize("what", ["gone", "cut short", "flipped", "empty", "other"])
def test_a_local_file_that_is_not_as_it_was_is_fetched_again(what: str, disk: Path) -> None:
    """A disk may lose it, and a clean-up may delete it."""
    storage, ids = MemoryStorage(), pa.array(range(40), pa.int64())
    made = large_index(storage, [[ids]])
    (wanted,) = made.search([[ids]])
    paths = sorted(disk.glob("holdfast-keys/*/*.arrow"))
    assert len(paths) == len(made.files) > 1
    data = paths[0].read_bytes()
    paths[0].unlink()
    at = data.index(made.files[0].first.to_bytes(8, "little"))
    changed = {
        "cut short": data[:-30],
        "flipped": data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :],
        "empty": b"",
        "other": b"x" * 3000,
    }
    if what != "gone":
        paths[0].write_bytes(changed[what])
    other = BucketSearch(storage=storage, layout=LAYOUT, files=made.files, columns=1)
    (found,) = other.search([[ids]])
    assert found.tolist() == wanted.tolist()
    assert paths[0].read_bytes() == data


def test_what_was_fetched_is_shared_and_the_ledger_asked_once(disk: Path) -> None:
    """Another search in another process finds it on the disk."""
    storage, ids = MemoryStorage(), pa.array(range(40), pa.int64())
    made = large_index(storage, [[ids]])
    (wanted,) = made.search([[ids]])
    storage.objects.clear()
    other = BucketSearch(storage=storage, layout=LAYOUT, files=made.files, columns=1)
    (found,) = other.search([[ids]])
    assert found.tolist() == wanted.tolist()
    assert [path.stat().st_mode & 0o777 for path in disk.glob("holdfast-keys")] == [0o700]


def test_a_disk_without_room_is_an_error_that_names_it(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it is full, and when it is."""
    storage, ids = MemoryStorage(), pa.array(range(40), pa.int64())
    made = large_index(storage, [[ids]])

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(key_search, "_write_local", full)
        with pytest.raises(ExecutorSetupError, match=r"(?s)no room at .*spark\.local\.dir"):
            list(made.search([[ids]]))
    usage = type("Usage", (), {"free": 10})
    monkeypatch.setattr("shutil.disk_usage", lambda _folder: usage)
    with pytest.raises(ExecutorSetupError, match="no room"):
        list(made.search([[ids]]))
    assert not list(disk.glob("holdfast-keys/*/*.arrow"))


def test_a_folder_that_is_deleted_while_it_is_filled_is_made_again(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clean-up of temporary files must not look like a file that the table has lost."""
    storage, ids = MemoryStorage(), pa.array(range(40), pa.int64())
    made = large_index(storage, [[ids]])
    left = [disk / "holdfast-keys"]

    def cleaned_up(path: Path, *rest: Any) -> None:  # noqa: ANN401 - as `_write_local` has them.
        _write_local(path, *rest)
        if left:
            shutil.rmtree(left.pop())

    monkeypatch.setattr(key_search, "_write_local", cleaned_up)
    (found,) = made.search([[ids]])
    assert not left
    assert sorted(found.tolist()) == list(range(40))


def refuse_writes(monkeypatch: pytest.MonkeyPatch, folder: Path | None) -> None:
    """Make a folder a read-only one, or all of them."""
    opened = os.open

    def refused(path: Any, flags: int, *rest: Any, **named: Any) -> int:  # noqa: ANN401 - os.open's.
        if flags & os.O_CREAT and (folder is None or folder in Path(path).parents):
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        return opened(path, flags, *rest, **named)

    monkeypatch.setattr(os, "open", refused)


def test_a_disk_that_has_become_read_only_is_left(
    disk: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is on it is used; what is not goes where the process may write, or is an error."""
    storage, ids = MemoryStorage(), pa.array(range(40), pa.int64())
    made = large_index(storage, [[ids]])
    (wanted,) = made.search([[ids]])
    paths = sorted(disk.glob("holdfast-keys/*/*.arrow"))
    with monkeypatch.context() as patch:
        refuse_writes(patch, disk)
        for lost in (None, paths[0]):
            if lost is not None:
                lost.unlink()
            other = BucketSearch(storage=storage, layout=LAYOUT, files=made.files, columns=1)
            (found,) = other.search([[ids]])
            assert found.tolist() == wanted.tolist()
    assert paths[0] not in disk.glob("holdfast-keys/*/*.arrow")
    monkeypatch.setattr(key_search, "_private", tmp_path_factory.mktemp("own"))
    refuse_writes(monkeypatch, None)
    other = BucketSearch(storage=storage, layout=LAYOUT, files=made.files, columns=1)
    with pytest.raises(ExecutorSetupError, match=r"(?s)does not keep.*Read-only.*local\.dir"):
        list(other.search([[ids]]))


def test_a_process_whose_own_folder_was_cleaned_up_makes_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each later index in it would fail, and the ledger be blamed; so without any folder."""
    monkeypatch.delenv("SPARK_LOCAL_DIRS")
    monkeypatch.setattr(key_search, "_private", None)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for first in (0, 100):
        storage, ids = MemoryStorage(), pa.array(range(first, first + 40), pa.int64())
        (found,) = large_index(storage, [[ids]]).search([[ids]])
        assert sorted(found.tolist()) == list(range(40))
        (own,) = tmp_path.glob("holdfast-keys-*")
        assert stat.S_IMODE(own.stat().st_mode) == 0o700  # No other user may write there.
        shutil.rmtree(own)
    monkeypatch.setattr(key_search, "_private", None)
    monkeypatch.setattr(tempfile, "tempdir", f"{tmp_path}/none")
    ids = pa.array(range(200, 240), pa.int64())
    with pytest.raises(
        ExecutorSetupError, match=r"(?s)does not keep an index of keys: \[Errno 2\].*local\.dir"
    ):
        list(large_index(storage, [[ids]]).search([[ids]]))


def test_a_folder_that_is_always_cleaned_up_is_not_the_ledgers_fault(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restored ledger would not help."""
    storage, ids = MemoryStorage(), pa.array(range(40), pa.int64())
    made = large_index(storage, [[ids]])

    def cleaned_up(path: Path, *rest: Any) -> None:  # noqa: ANN401 - as `_write_local` has them.
        _write_local(path, *rest)
        shutil.rmtree(disk / "holdfast-keys")

    monkeypatch.setattr(key_search, "_write_local", cleaned_up)
    with pytest.raises(ExecutorSetupError, match="gone as soon as they are written"):
        list(made.search([[ids]]))


def test_a_folder_that_others_can_write_is_not_used(disk: Path) -> None:
    """What they put there would decide which rows go."""
    shared = disk / "holdfast-keys"
    shared.mkdir()
    shared.chmod(0o777)
    storage, ids = MemoryStorage(), pa.array(range(40), pa.int64())
    (found,) = large_index(storage, [[ids]]).search([[ids]])
    assert found.min() == 0
    assert not list(shared.iterdir())


def test_an_index_that_is_not_used_any_more_is_deleted(disk: Path) -> None:
    """Else a session that merges all day would fill its disk."""
    old, young = disk / "holdfast-keys" / "old", disk / "holdfast-keys" / "young"
    for folder in (old, young):
        folder.mkdir(parents=True)
        (folder / "0.arrow").write_bytes(b"x")
    (disk / "holdfast-keys").chmod(0o700)
    os.utime(old, (0, 0))
    storage, ids = MemoryStorage(), pa.array(range(40), pa.int64())
    list(large_index(storage, [[ids]]).search([[ids]]))
    assert (old.exists(), young.exists()) == (False, True)


_FETCH = """
import json, sys
import pyarrow as pa
from holdfast.ledger.layout import RunLayout
from holdfast.ledger.parts import IndexFile
from holdfast.storage.objects import ObjectStorage
from holdfast.worker import key_search
from holdfast.worker.key_search import BucketSearch

fetched, read_whole = [], key_search.read_whole
key_search.read_whole = lambda *args: (fetched.append(args[1]), read_whole(*args))[1]
folder, texts = sys.argv[1], json.loads(sys.argv[2])
search = BucketSearch(
    storage=ObjectStorage({}),
    layout=RunLayout.of(f"file://{folder}", "r"),
    files=tuple(IndexFile.from_json(text) for text in texts),
    columns=1,
)
sys.stdin.readline()
(found,) = search.search([[pa.array(range(4000), pa.int64())]])
print(json.dumps([fetched, sorted(found.tolist())[:2]]))
"""


@pytest.mark.slow_unit
def test_processes_that_come_at_the_same_time_fetch_each_file_once(
    disk: Path, tmp_path: Path
) -> None:
    """One that is killed meanwhile leaves no lock, and nothing that looks whole."""
    storage, ids = MemoryStorage(), pa.array(range(2000), pa.int64())
    pieces, schema = pieces_of(storage, [[ids]], bits=6)
    files = [some.file for some in merged(storage, pieces, schema) if some.file]
    store = tmp_path / "store"
    for file in files:
        path = store / "r" / "parts" / file.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(storage.objects[LAYOUT.part(file.name)])
    words = [sys.executable, "-c", _FETCH, str(store), json.dumps([f.to_json() for f in files])]

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    started = [start() for _ in range(3)]
    killed = start()
    assert killed.stdin is not None
    killed.stdin.write("\n")
    killed.stdin.flush()
    until = time.monotonic() + 30
    while not list(disk.glob("holdfast-keys/*/*.arrow")) and time.monotonic() < until:
        time.sleep(0.01)
    killed.kill()
    killed.communicate()
    answers = [json.loads(process.communicate("\n", timeout=60)[0]) for process in started]
    fetched = [uri for uris, _ in answers for uri in uris]
    assert len(fetched) == len(set(fetched)) < len(files) + 1
    assert all(numbers == [-1, -1] for _, numbers in answers)
    assert len(list(disk.glob("holdfast-keys/*/*.arrow"))) == len(files) > 10


def test_a_process_that_is_suspended_while_it_fetches_holds_no_other_up(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lock stays: another fetches the files too, after a while."""
    monkeypatch.setattr(key_search, "_WAIT_S", 0.1)
    storage, ids = MemoryStorage(), pa.array(range(40), pa.int64())
    made = large_index(storage, [[ids]])
    (wanted,) = made.search([[ids]])
    suspended = []
    for file in disk.glob("holdfast-keys/*/*.arrow"):
        file.unlink()
        lock = file.with_suffix(".lock").open("r+b")
        fcntl.flock(lock, fcntl.LOCK_EX)
        suspended.append(lock)
    other = BucketSearch(storage=storage, layout=LAYOUT, files=made.files, columns=1)
    began = time.monotonic()
    (found,) = other.search([[ids]])
    assert time.monotonic() - began < 3.0
    assert found.tolist() == wanted.tolist()
    assert len(suspended) == len(list(disk.glob("holdfast-keys/*/*.arrow"))) > 1
    for lock in suspended:
        lock.close()
