"""A post to a Lance dataset: what errors mean, and versions that disappear or come late.

Lance sees only the versions that exist. Without our checks, a change that was cleaned up between a
look and its post would be undone, or a settled post would land.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
from lance import LanceDataset
from lance.commit import CommitConflictError

from holdfast.errors import CommitRefusedError, CommitUnknownError, TableChangedError
from holdfast.sinks.base import Change, Outcome, RunMark
from tests.fakes.lance_rig import LanceRig


# ---- Answers to a post: what each of Lance's errors means
@pytest.fixture
def rig(tmp_path: Path) -> LanceRig:
    """Return a dataset with one foreign row."""
    return LanceRig(f"file://{tmp_path}/t.lance")


CHANGES: dict[str, tuple[Callable[[LanceRig], object], list[int]]] = {
    "append": (lambda rig: rig.make([-2], mode="append"), [-1, -2]),
    "delete": (lambda rig: rig.dataset().delete("id = -1"), []),
    "overwrite": (lambda rig: rig.make([-3], mode="overwrite"), [-3]),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_lance_itself_refuses_is_a_conflict(
    rig: LanceRig, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Another writer came between our last look and Lance's: Lance says that nothing landed."""
    change, foreign = CHANGES[name]
    left = [change]

    def change_there(step: str) -> None:
        if step == "before-lance-commit" and left:
            left.pop()(rig)

    monkeypatch.setattr("holdfast.sinks.lance.post.failpoint", change_there)
    rig.start_while()
    assert rig.posts == [Outcome.CONFLICT, Outcome.LANDED]
    rig.assert_each_row_once(foreign=foreign)


ANSWERS: list[tuple[Exception, Outcome | None]] = [
    (CommitConflictError("Retryable commit conflict for version 2"), Outcome.CONFLICT),
    (OSError("LanceError(IO): Object at location t/_versions/1 not found"), Outcome.CONFLICT),
    (OSError("HTTP 403 Forbidden: AccessDenied"), None),
    (ValueError("Schema mismatch"), None),
    (OSError("error sending request: operation timed out"), Outcome.UNKNOWN),
    (RuntimeError("thread panicked"), Outcome.UNKNOWN),
]


@pytest.mark.parametrize(("answer", "expected"), ANSWERS, ids=str)
def test_each_answer_means_only_what_it_proves(
    rig: LanceRig,
    monkeypatch: pytest.MonkeyPatch,
    answer: Exception,
    expected: Outcome | None,
) -> None:
    """Only a clear no is a refusal; after any other answer the post may have landed."""
    monkeypatch.setattr(LanceDataset, "commit", Mock(side_effect=answer))
    if expected is None:
        with pytest.raises(CommitRefusedError):
            post(rig)
    else:
        assert post(rig) is expected


def test_a_refusal_by_a_dataset_that_has_changed_is_unknown(
    rig: LanceRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The change may be our own post: the next look decides."""

    def land_and_fail(*_: object, **__: object) -> None:
        rig.make([-2], mode="append")
        raise ValueError("Schema mismatch")

    monkeypatch.setattr(LanceDataset, "commit", land_and_fail)
    assert post(rig) is Outcome.UNKNOWN


def post(rig: LanceRig) -> Outcome:
    """Post nothing but a mark."""
    sink = rig.sink()
    view = sink.load()
    mark = RunMark(run_nonce="n", intent_number=1, snapshot_id=2, sequence_number=2)
    return sink.post(view, "r", mark, Change())


# ---- Versions that are cleaned up, or come late, around our post to a Lance dataset
Deed = Callable[[LanceRig], object]


def clean_up(rig: LanceRig) -> None:
    """Clean up all versions but the newest, and those that have a tag."""
    rig.dataset().cleanup_old_versions(
        older_than=dt.timedelta(0), error_if_tagged_old_versions=False
    )


def configure(rig: LanceRig) -> None:
    """Change a setting, which lets our post pass."""
    rig.dataset().update_config({"team": "us"})


def empty_version(rig: LanceRig) -> None:
    """Make a version that adds nothing, as an abort does to settle posts under way."""
    assert rig.sink().post_empty(rig.sink().load()) is Outcome.LANDED


CLEANED: dict[str, Deed] = {
    "delete": lambda rig: rig.dataset().delete("id = -1"),
    "column renamed": lambda rig: rig.dataset().alter_columns({"path": "label", "name": "title"}),
    "empty version": empty_version,
}


@pytest.mark.parametrize("name", CLEANED)
def test_a_change_that_was_cleaned_up_since_the_look_stops_the_post(
    rig: LanceRig, name: str
) -> None:
    """Lance sees only the remaining settings change, and would undo what came before it."""

    def change() -> None:
        CLEANED[name](rig)
        configure(rig)
        clean_up(rig)

    if name == "column renamed":
        with pytest.raises(TableChangedError, match="renamed to 'title'"):
            rig.start_while(change)
        assert rig.posts == [Outcome.UNSENT]
        assert rig.ids() == [-1]
        return
    rig.start_while(change)  # It was never sent, so there is no doubt, and the next one lands.
    assert rig.posts == [Outcome.UNSENT, Outcome.LANDED]
    rig.assert_each_row_once(foreign=[] if name == "delete" else [-1])


def test_versions_cleaned_up_during_the_post_are_an_error(
    rig: LanceRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between our look and Lance's it cannot be prevented; the error names what to restore."""

    def clean_there(step: str) -> None:
        if step == "before-lance-commit":
            rig.dataset().delete("id = -1")
            configure(rig)
            clean_up(rig)

    monkeypatch.setattr("holdfast.sinks.lance.post.failpoint", clean_there)
    with pytest.raises(TableChangedError, match="restore version 3"):
        rig.start()
    rig.dataset(version=3).restore()
    assert rig.ids() == []


def test_a_version_that_arrives_after_its_number_was_cleaned_up_has_not_landed(
    rig: LanceRig, tmp_path: Path
) -> None:
    """A delayed request puts its version below newer ones, which do not have its rows."""
    before = set(tmp_path.rglob("*.*"))
    rig.land_and_die()
    (late,) = set(tmp_path.rglob("*.manifest")) - before
    data = late.read_bytes()
    late.unlink()  # It has not arrived yet.
    rig.make([-2], mode="append")
    rig.make([-3], mode="append")
    clean_up(rig)
    assert not late.exists()
    late.write_bytes(data)
    with pytest.raises(CommitUnknownError):
        rig.start()
    assert rig.ids() == [-3, -2, -1]


def test_a_late_version_is_not_taken_for_landed_because_others_kept_the_base(
    rig: LanceRig, tmp_path: Path
) -> None:
    """Newer versions have the files of its base, which was kept for a tag, and none of the run's.

    That some files are in both proves nothing: all of them must be.
    """
    before = set(tmp_path.rglob("*.*"))
    rig.land_and_die()
    (late,) = set(tmp_path.rglob("*.manifest")) - before
    data = late.read_bytes()
    late.unlink()
    rig.dataset().tags.create("base", 1)
    rig.make([-2], mode="append")
    rig.make([-3], mode="append")
    clean_up(rig)
    assert [entry["version"] for entry in rig.dataset().versions()] == [1, 3]
    late.write_bytes(data)
    with pytest.raises(CommitUnknownError):
        rig.start()
    assert rig.ids() == [-3, -2, -1]


def test_a_version_without_rows_that_arrives_late_has_not_landed_either(
    rig: LanceRig, tmp_path: Path
) -> None:
    """It added no files, so the newer versions have them all, which proves nothing."""
    rig.partitions = [[]]
    before = set(tmp_path.rglob("*.*"))
    rig.land_and_die()
    (late,) = set(tmp_path.rglob("*.manifest")) - before
    data = late.read_bytes()
    late.unlink()
    configure(rig)
    configure(rig)
    clean_up(rig)
    late.write_bytes(data)
    with pytest.raises(CommitUnknownError):
        rig.start()
    assert rig.ids() == [-1]


def test_a_version_is_reported_correctly_after_the_one_before_it_was_cleaned_up(
    rig: LanceRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A settings change before the post was cleaned up after it: the note still has the version."""

    def clean_there(step: str) -> None:
        if step == "after-post":
            clean_up(rig)

    monkeypatch.setattr("holdfast.engine.commit.failpoint", clean_there)
    driven = rig.start_while(lambda: configure(rig))
    assert driven.snapshot_id == 3
