"""Concurrent writers on a Lance dataset at the worst moments: a run lands once, or says why."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from holdfast.errors import (
    CommittedThenRemovedError,
    CommitUnknownError,
    LedgerDamagedError,
    RunMismatchError,
    TableChangedError,
    TableMissingError,
    UnsupportedTableError,
)
from holdfast.model.work import StagedGroup
from holdfast.sinks.base import Outcome
from tests.fakes.lance_rig import IDS, LanceRig

AT_ONCE = dt.timedelta(0)
Change = Callable[[LanceRig], object]


@pytest.fixture
def rig(tmp_path: Path) -> LanceRig:
    """Return a dataset with one foreign row."""
    return LanceRig(f"file://{tmp_path}/t.lance")


def append(rig: LanceRig) -> None:
    """Append a foreign row."""
    rig.make([-2], mode="append")


def compact(rig: LanceRig) -> None:
    """Append, so that there is something to do, and compact."""
    append(rig)
    rig.dataset().optimize.compact_files()


def clean_up(rig: LanceRig) -> None:
    """Append, and clean up all versions but the newest."""
    append(rig)
    rig.dataset().cleanup_old_versions(older_than=AT_ONCE)


def index(rig: LanceRig) -> None:
    """Make an index, which lets our post pass."""
    rig.dataset().create_scalar_index("id", "BTREE")


def configure(rig: LanceRig) -> None:
    """Change a setting, which lets our post pass."""
    rig.dataset().update_config({"team": "us"})


def label(rig: LanceRig) -> None:
    """Change the schema's metadata."""
    rig.dataset().update_schema_metadata({"team": "us"})


def overwrite(rig: LanceRig) -> None:
    """Replace all rows."""
    rig.make([-3], mode="overwrite")


def restore_first(rig: LanceRig) -> None:
    """Append, and restore the first version."""
    append(rig)
    rig.dataset(version=1).restore()


def restore_previous(rig: LanceRig) -> None:
    """Undo the newest version."""
    rig.dataset(version=rig.dataset().version - 1).restore()


def forget(rig: LanceRig) -> None:
    """Remove the schema's metadata, and our mark with it."""
    rig.dataset().update_schema_metadata({}, replace=True)


def both(one: Change, other: Change) -> Change:
    """Return a change that makes two changes, one after the other."""

    def change(rig: LanceRig) -> None:
        one(rig)
        other(rig)

    return change


def make_again(rig: LanceRig) -> None:
    """Drop the dataset, and make another that looks the same."""
    rig.drop()
    rig.make([-1])


HARMLESS: dict[str, tuple[Change, list[int]]] = {
    "append": (append, [-1, -2]),
    "compaction": (compact, [-1, -2]),
    "clean-up": (clean_up, [-1, -2]),
    "delete": (lambda rig: rig.dataset().delete("id = -1"), []),
    "update": (lambda rig: rig.dataset().update({"id": "id - 10"}, where="id = -1"), [-11]),
    "index": (index, [-1]),
    "setting": (configure, [-1]),
    "metadata": (label, [-1]),
    "overwrite": (overwrite, [-3]),
    "roll-back": (restore_first, [-1]),
    "column added": (lambda rig: rig.dataset().add_columns({"more": "id + 1"}), [-1]),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_a_change_before_the_post_does_not_stop_it(rig: LanceRig, name: str) -> None:
    """The post is refused or passes, and the rows land once next to the other changes."""
    change, foreign = HARMLESS[name]
    driven = rig.start_while(lambda: change(rig))
    rig.assert_each_row_once(foreign=foreign)
    assert rig.computed == len(IDS)
    version = driven.snapshot_id or 0
    assert set(IDS) <= set(rig.dataset(version=version).to_table()["id"].to_pylist())
    assert not set(IDS) & set(_ids_before(rig, version))


def _ids_before(rig: LanceRig, version: int) -> list[int]:
    try:
        found: list[int] = rig.dataset(version=version - 1).to_table()["id"].to_pylist()
    except (ValueError, OSError):
        return []  # Cleaned up.
    return found


@pytest.mark.parametrize("name", ["index", "setting"])
def test_a_post_that_passes_another_change_reports_its_true_version(
    rig: LanceRig, name: str
) -> None:
    """The receipt names the version that has the rows."""
    driven = rig.start_while(lambda: HARMLESS[name][0](rig))
    assert rig.posts == [Outcome.UNKNOWN]
    assert driven.snapshot_id == rig.dataset().version


STOPS: dict[str, tuple[Change, type[Exception], str]] = {
    "column dropped": (
        lambda rig: rig.dataset().drop_columns(["label"]),
        TableChangedError,
        "dropped",
    ),
    "column renamed": (
        lambda rig: rig.dataset().alter_columns({"path": "label", "name": "title"}),
        TableChangedError,
        "renamed",
    ),
    "type changed": (
        lambda rig: rig.dataset().alter_columns({"path": "id", "data_type": pa.int32()}),
        TableChangedError,
        "type",
    ),
    "dropped": (LanceRig.drop, TableMissingError, "no such dataset"),
    "made again": (make_again, TableChangedError, "created again"),
}


@pytest.mark.parametrize("name", STOPS)
def test_a_change_that_staged_files_do_not_survive_stops_the_run(rig: LanceRig, name: str) -> None:
    """The error says what has changed, and nothing of the run is in the dataset."""
    change, kind, words = STOPS[name]
    with pytest.raises(kind, match=words):
        rig.start_while(lambda: change(rig))
    assert rig.posts == [Outcome.UNSENT]
    if name != "dropped":
        assert not set(IDS) & set(rig.ids())


@pytest.mark.parametrize("newest_first", [False, True])
def test_files_of_each_start_must_still_fit(rig: LanceRig, *, newest_first: bool) -> None:
    """A column was dropped after the first start, and its number went to another column.

    The second start wrote that one. What the first has staged would be read as its values.
    """
    sink = rig.sink()
    rig.dataset().add_columns(pa.field("note", pa.string()))
    first = sink.load().schema
    rig.dataset().drop_columns(["note"])
    rig.dataset().add_columns(pa.field("note", pa.int64()))
    second = sink.load().schema
    rig.dataset().cleanup_old_versions(older_than=AT_ONCE)
    schemas = [second, first] if newest_first else [first, second]
    with pytest.raises(TableChangedError, match="'note' was string and is now int64"):
        sink.check(sink.load(), schemas, [])


def test_staged_files_that_a_clean_up_deleted_are_made_again(rig: LanceRig) -> None:
    """The rows of missing files are computed again before anything is posted."""

    def clean_all() -> None:
        rig.dataset().cleanup_old_versions(older_than=AT_ONCE, delete_unverified=True)
        append(rig)

    rig.start_while(clean_all)
    rig.assert_each_row_once(foreign=[-1, -2])
    assert rig.computed == 2 * len(IDS)


STILL_THERE: dict[str, Change] = {
    "nothing": lambda _: None,
    "append": append,
    "compaction": compact,
    "clean-up": clean_up,
    "index": index,
    "setting": configure,
    "column added": lambda rig: rig.dataset().add_columns({"more": "id + 1"}),
    "column dropped": lambda rig: rig.dataset().drop_columns(["label"]),
    "mark removed": forget,
    "overwritten and back": both(overwrite, restore_previous),
    "mark removed, overwritten and back": both(both(forget, overwrite), restore_previous),
}


@pytest.mark.parametrize("name", STILL_THERE)
def test_a_landed_run_is_found_again(rig: LanceRig, name: str) -> None:
    """The next start posts nothing, computes nothing, and names the version."""
    version = rig.land_and_die()
    STILL_THERE[name](rig)
    rows = rig.ids()
    driven = rig.start()
    assert (driven.outcome, driven.snapshot_id) == ("already_committed", version)
    assert rig.ids() == rows
    assert rig.computed == len(IDS)


GONE: dict[str, tuple[Change, type[Exception]]] = {
    "overwritten": (overwrite, CommittedThenRemovedError),
    "rolled back": (lambda rig: rig.dataset(version=1).restore(), CommittedThenRemovedError),
    "overwritten and cleaned up": (
        both(overwrite, clean_up),
        CommitUnknownError,
    ),
    "mark removed and cleaned up": (both(forget, clean_up), CommitUnknownError),
    "made again": (make_again, RunMismatchError),
    "dropped": (LanceRig.drop, TableMissingError),
}


@pytest.mark.parametrize("name", GONE)
def test_a_landed_run_that_is_gone_is_not_written_again(rig: LanceRig, name: str) -> None:
    """It was removed on purpose, or may have been: that is an error, never a second commit."""
    rig.land_and_die()
    change, kind = GONE[name]
    change(rig)
    with pytest.raises(kind):
        rig.start()
    if name != "dropped":
        rows = rig.ids()
        assert len(rows) == len(set(rows))
    assert rig.computed == len(IDS)


def test_a_run_whose_mark_gave_way_to_newer_ones_is_found(
    rig: LanceRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest mark is dropped, and its run is found by the version that it made."""
    monkeypatch.setattr("holdfast.sinks.lance.marks.MARKS_MAX", 1)
    version = rig.land_and_die()
    other = LanceRig(f"{rig.uri}-2", time=rig.time)
    other.uri = rig.uri  # A run of another ledger on the same dataset.
    monkeypatch.setattr("tests.fakes.lance_rig.RUN_ID", "another")
    other.start()
    monkeypatch.undo()
    marks = [name for name in rig.dataset().schema.metadata if b"holdfast.run." in name]
    assert marks == [b"holdfast.run.another"]
    driven = rig.start()
    assert (driven.outcome, driven.snapshot_id) == ("already_committed", version)


def test_a_post_into_a_dataset_made_again_at_the_last_moment_is_an_error(
    rig: LanceRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lance accepts such a post. It is an error, and the dataset's own rows can be restored."""

    def make_again_there(step: str) -> None:
        if step == "before-lance-commit":
            make_again(rig)

    monkeypatch.setattr("holdfast.sinks.lance.post.failpoint", make_again_there)
    with pytest.raises(TableChangedError, match="restore version 1"):
        rig.start()
    rig.dataset(version=1).restore()
    assert rig.ids() == [-1]


def test_a_mark_that_was_copied_elsewhere_is_ignored(rig: LanceRig, tmp_path: Path) -> None:
    """Rows copied with Lance keep the schema's metadata: the same run may write there too."""
    rig.start()
    copy = LanceRig(f"file://{tmp_path}/copy.lance", time=rig.time)
    lance.write_dataset(rig.dataset().to_table(), copy.uri, mode="overwrite")
    copy.storage = rig.storage
    nonce = "another ledger's"
    view = copy.sink().load()
    assert copy.dataset().schema.metadata  # It came along: the test is not vacuous.
    assert copy.sink().find_mark(view, "r", nonce, {}) is None


def test_a_dataset_whose_versions_went_back_is_not_trusted(rig: LanceRig) -> None:
    """Its rows were written again under its id: the version that the mark names is missing."""
    rig.land_and_die()
    identity, rows = f"{rig.uri}/_holdfast/identity.json", rig.dataset().to_table()
    kept = rig.place.storage.get(identity)
    rig.drop()
    lance.write_dataset(rows, rig.uri)
    rig.place.storage.put(identity, kept)
    with pytest.raises(TableChangedError, match="versions went back below 2"):
        rig.start()


@pytest.mark.parametrize("text", ["no JSON", "[]", "{}"])
def test_a_mark_that_cannot_be_read_stops_the_run(rig: LanceRig, text: str) -> None:
    """The mark was changed by hand: nothing is written, and the error says so."""
    rig.start()
    (name,) = (key.decode() for key in rig.dataset().schema.metadata if key.startswith(b"holdfast"))
    rig.dataset().update_schema_metadata({name: text})
    with pytest.raises(UnsupportedTableError, match="this run's mark cannot be read"):
        rig.sink().find_mark(rig.sink().load(), "r", "any", {})


def test_columns_keep_their_numbers_after_one_was_dropped(rig: LanceRig) -> None:
    """Files name columns by number: if renumbered, a label would be read as another column."""
    rig.dataset().drop_columns(["label"])
    rig.dataset().add_columns({"label": "'new'"})
    rig.start()
    rig.assert_each_row_once()
    rows = rig.dataset().to_table(filter="id = -1").to_pylist()
    assert rows == [{"id": -1, "label": "new"}]


@pytest.mark.parametrize("change", [index, configure])
def test_a_change_that_lets_a_post_pass_does_not_settle_it(rig: LanceRig, change: Change) -> None:
    """A newer version does not mean that an older post is dead; an empty one of ours does."""
    sink = rig.sink()
    number = sink.load().next_sequence_number  # The number of a post that is now under way.
    change(rig)
    view = sink.load()
    assert view.settled_below <= number < view.next_sequence_number
    assert sink.post_empty(view) is Outcome.LANDED
    assert sink.load().settled_below > number


@pytest.mark.parametrize("schema", [{}, {"fields": "x"}, {"fields": ["x"]}, {"fields": [{}]}])
def test_a_schema_that_no_dataset_has_is_damage(rig: LanceRig, schema: dict[str, Any]) -> None:
    """A ledger's plans hold it; fuzzing found it as a traceback (seed 2, round 6)."""
    sink = rig.sink()
    with pytest.raises(LedgerDamagedError, match="unknown content"):
        sink.check(sink.load(), [schema], [])


@pytest.mark.parametrize(
    "detail",
    [
        {},
        {"fragment": []},
        {"fragment": {}},
        {"fragment": {"id": 0, "files": [{}]}},
        {"fragment": "{"},
        {"fragment": "[]"},
    ],
)
def test_a_fragment_detail_that_no_writer_makes_is_damage(
    rig: LanceRig, detail: dict[str, Any]
) -> None:
    """It is found before the intent is written."""
    sink = rig.sink()
    with pytest.raises(LedgerDamagedError, match="a-group"):
        sink.check(sink.load(), [], [_group(rig, detail)])


def test_a_fragment_of_another_file_than_the_ledger_lists_is_damage(rig: LanceRig) -> None:
    """Files that were never checked would be published."""
    sink = rig.sink()
    (fragment,) = rig.dataset().get_fragments()
    group = _group(rig, {"fragment": fragment.metadata.to_json()})
    with pytest.raises(LedgerDamagedError, match="its fragment is in"):
        sink.check(sink.load(), [], [group])


def test_a_fragment_of_an_early_ledger_is_read(rig: LanceRig) -> None:
    """It was an object there; now it is text."""
    sink = rig.sink()
    writer = sink.writer_spec(sink.load()).open("task")
    types = writer.stored_schema
    columns = {field.name: pa.nulls(1, field.type) for field in types}
    batch = pa.record_batch({**columns, "id": pa.array([7], types.field("id").type)})
    writer.write(writer.fit(batch))
    (group,) = writer.cut()
    early = replace(group, detail={"fragment": json.loads(group.detail["fragment"])})
    assert sink._fragment(early) == sink._fragment(group)  # noqa: SLF001
    sink.check(sink.load(), [], [early])


def _group(rig: LanceRig, detail: dict[str, Any]) -> StagedGroup:
    return StagedGroup(path=f"{rig.place.data}/a-group", size_bytes=1, files=(), detail=detail)
