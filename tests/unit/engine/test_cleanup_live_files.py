"""No live file is deleted: a sweep asks the table which files it uses, whatever the log says."""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from holdfast.engine.cleanup import abort, sweep
from holdfast.errors import LedgerDamagedError, RunCommittedError, StoreUnavailableError
from holdfast.model.records import Abort, open_json, seal_json
from holdfast.sinks.base import Sink
from holdfast.sinks.iceberg.avro import blocks
from holdfast.sinks.iceberg.snapshots import _may_hold
from tests.fakes.cli_lake import CliLake, lake
from tests.fakes.memory_submitter import MemorySubmitter

__all__ = ["lake"]

ALL = list(range(40))


def _half() -> MemorySubmitter:
    return MemorySubmitter(ALL[:20], ALL[20:])


def _store(lake: CliLake) -> Path:
    return Path(lake.store.removeprefix("file://"))


def _restored(lake: CliLake, sink: Sink) -> CliLake:
    """Land a run, then restore its ledger from a backup made before."""
    lake.start_and_die("r", _half(), sink=sink)
    shutil.copytree(_store(lake), lake.folder / "backup")
    lake.start("r", _half(), sink=sink)
    shutil.rmtree(_store(lake))
    shutil.copytree(lake.folder / "backup", _store(lake))
    return lake


def _copied(lake: CliLake, sink: Sink) -> CliLake:
    """Copy the store of a half-done run elsewhere, then let the run land."""
    lake.start_and_die("r", _half(), sink=sink)
    elsewhere = lake.folder / "elsewhere"
    shutil.copytree(_store(lake), elsewhere / "store")
    lake.start("r", _half(), sink=sink)
    return replace(lake, folder=elsewhere)


def _cut(lake: CliLake, sink: Sink) -> CliLake:
    """Land a run, then lose the last records of its log."""
    lake.start("r", _half(), sink=sink)
    for file in sorted((_store(lake) / "r" / "log").iterdir())[-2:]:
        file.unlink()
    return lake


@pytest.mark.parametrize("is_lance", [False, True])
@pytest.mark.parametrize("move", [_restored, _copied, _cut])
def test_a_ledger_that_does_not_know_that_its_run_landed_deletes_no_live_file(
    lake: CliLake, move: Callable[[CliLake, Sink], CliLake], *, is_lance: bool
) -> None:
    """The abort finds the mark and refuses; a sweep after an older abort keeps live files."""
    sink = lake.make_dataset() if is_lance else lake.make_table()
    moved = move(lake, sink)
    with pytest.raises(RunCommittedError, match="has landed as snapshot"):
        abort(moved.ledger("r"), lambda _identity: sink, "tidy up")
    assert not moved.ledger("r").log.is_aborted
    moved.ledger("r").log.claim(Abort(reason="by a version that did not look"))
    swept = sweep(moved.ledger("r"), lambda _identity: sink)
    assert swept.live > 0
    assert _ids(sink, is_lance=is_lance) == ALL


def _ids(sink: Sink, *, is_lance: bool) -> list[int]:
    handle = sink.load().handle
    table = handle.dataset.to_table() if is_lance else handle.scan().to_arrow()
    return sorted(table["id"].to_pylist())


def test_files_in_a_manifest_that_another_writer_merged_are_live(lake: CliLake) -> None:
    """The merged manifest names them; the manifests that the run staged are no longer used."""
    merges = {"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "2"}
    sink = lake.make_table(properties=merges)
    _restored(lake, sink)
    table = sink.load().handle
    table.append(table.scan().to_arrow().slice(0, 1))
    (merged,) = sink.load().handle.current_snapshot().manifests(table.io)
    assert merged.existing_files_count > 0
    lake.ledger("r").log.claim(Abort(reason="by a version that did not look"))
    sweep(lake.ledger("r"), lambda _identity: sink)
    assert _ids(sink, is_lance=False) == sorted([*ALL, ALL[0]])


def test_a_record_that_names_a_file_of_another_run_deletes_nothing(lake: CliLake) -> None:
    """A forged ledger cannot make a sweep delete another run's staged files."""
    for run_id in ("other", "evil"):
        lake.start_and_die(run_id, _half())
    staged = [path for path in lake.data_files() if path.exists()]
    victims = [f"file://{path}" for path in staged if _nonce(lake, "other") in path.name]
    assert victims
    records = (_store(lake) / "evil" / "tasks").rglob("*.json")
    contents = {file: open_json(file.read_bytes()) for file in records}
    file, content = next(item for item in contents.items() if item[1]["groups"])
    content["groups"][0]["files"].append([victims[0], 10, 1])
    file.write_bytes(seal_json(content))
    ledger = lake.ledger("evil")
    abort(ledger, lambda _identity: lake.make_table(), "tidy up")
    with pytest.raises(LedgerDamagedError, match="was not written by this run"):
        sweep(lake.ledger("evil"), lambda _identity: lake.make_table())
    assert [path for path in lake.data_files() if path.exists()] == staged


@pytest.mark.parametrize("folder", ["tasks/zz", "parts/zz", "input"])
def test_a_sweep_does_not_follow_a_link_out_of_the_store(lake: CliLake, folder: str) -> None:
    """The run did not write the files behind a link, so the sweep deletes nothing at all."""
    lake.start("r", MemorySubmitter(ALL))
    outside = lake.folder / "outside"
    (outside / "sub").mkdir(parents=True)
    (outside / "sub" / "precious").write_text("x")
    (_store(lake) / "r" / folder).symlink_to(outside)
    before = sorted((_store(lake) / "r").rglob("*"))
    with pytest.raises(LedgerDamagedError, match="a link"):
        sweep(lake.ledger("r"), lambda _identity: lake.make_table())
    assert (outside / "sub" / "precious").exists()
    assert sorted((_store(lake) / "r").rglob("*")) == before


def test_a_store_behind_a_link_is_swept(lake: CliLake) -> None:
    """The user chose the location of the store."""
    lake.start("r", MemorySubmitter(ALL))
    moved = _store(lake).rename(lake.folder / "elsewhere")
    _store(lake).symlink_to(moved)
    assert sweep(lake.ledger("r"), lambda _identity: lake.make_table()).ledger_objects


def _nonce(lake: CliLake, run_id: str) -> str:
    run_file = lake.ledger(run_id).run_file()
    assert run_file is not None
    return run_file.nonce


def _number(value: int) -> bytes:
    """Encode a number as Avro does."""
    value, out = value << 1, b""
    while value > 0x7F:
        out, value = out + bytes([value & 0x7F | 0x80]), value >> 7
    return out + bytes([value])


def _avro(codec: bytes, blocks: Sequence[bytes]) -> bytes:
    """Return an Avro file with these blocks."""
    name, sync = b"avro.codec", bytes(range(16))
    header = _number(1) + _number(len(name)) + name + _number(len(codec)) + codec + _number(0)
    body = [_number(1) + _number(len(block)) + block + sync for block in blocks]
    return b"Obj\x01" + header + sync + b"".join(body)


def _packed(block: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(block) + packer.flush()


@pytest.mark.parametrize("codec", [b"null", b"deflate"])
def test_blocks_of_a_manifest_are_decompressed_and_searched(codec: bytes) -> None:
    """With several blocks, too: the name may be in any of them."""
    plain = [bytes(1_000) + b"s3://b/%d.parquet" % number for number in range(20)]
    data = _avro(codec, [_packed(block) for block in plain] if codec == b"deflate" else plain)
    assert [block for _, block in blocks(data)] == plain
    assert _may_hold(data, [b"nowhere", b"/19.parquet"])
    assert not _may_hold(data, [b"/20.parquet"])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"Obj\x01",
        b"no Avro at all",
        b"Obj\x01" + b"\xff" * 50,
        _avro(b"zstandard", [b"x"]),
        _avro(b"deflate", [b"damaged"]),
    ],
)
def test_what_cannot_be_searched_is_read_entry_by_entry(data: bytes) -> None:
    """A search that cannot decode the data must not report that nothing was found."""
    assert _may_hold(data, [b"x"])


@pytest.mark.parametrize("is_lance", [False, True])
def test_a_store_that_deletes_nothing_does_not_stop_a_sweep(
    lake: CliLake, monkeypatch: pytest.MonkeyPatch, *, is_lance: bool
) -> None:
    """The rest goes, with the exception of what lists the files: a later sweep may succeed."""
    sink = lake.make_dataset() if is_lance else lake.make_table()
    lake.start_and_die("r", _half(), sink=sink)
    abort(lake.ledger("r"), lambda _identity: sink, "why not")
    refusal = StoreUnavailableError(uri="s3://t", reason="405 Method Not Allowed", retry_safe=False)
    with monkeypatch.context() as patch:
        patch.setattr(sink, "delete_files", Mock(side_effect=refusal))
        refused = sweep(lake.ledger("r"), lambda _identity: sink)
    assert (refused.data_files, refused.out_of_reach > 0) == (0, True)
    assert refused.reason == "the table's store refuses to delete (405 Method Not Allowed)"
    assert refused.ledger_objects > 0
    swept = sweep(lake.ledger("r"), lambda _identity: sink)
    assert (swept.data_files, swept.out_of_reach) == (refused.out_of_reach, 0)


def test_a_store_that_does_not_answer_stops_a_sweep(
    lake: CliLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may delete the files later, and then nothing else must be left undone."""
    sink = lake.make_table()
    lake.start_and_die("r", _half(), sink=sink)
    abort(lake.ledger("r"), lambda _identity: sink, "why not")
    silent = StoreUnavailableError(uri="s3://t", reason="503")
    objects = sorted(_store(lake).rglob("*"))
    monkeypatch.setattr(sink, "delete_files", Mock(side_effect=silent))
    with pytest.raises(StoreUnavailableError):
        sweep(lake.ledger("r"), lambda _identity: sink)
    assert sorted(_store(lake).rglob("*")) == objects
