"""Versions that are cleaned away, or come late, around our post to a Lance dataset.

Lance sees only the versions that are there. What was cleaned away between a look and its post
would otherwise be undone, or a post land that was settled.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.errors import CommitUnknownError, TableChangedError
from holdfast.sinks.base import Outcome
from tests.fakes.lance_rig import LanceRig

Change = Callable[[LanceRig], object]


@pytest.fixture
def rig(tmp_path: Path) -> LanceRig:
    """Return a dataset with one foreign row."""
    return LanceRig(f"file://{tmp_path}/t.lance")


def clean_up(rig: LanceRig) -> None:
    """Clean away all versions but the newest."""
    rig.dataset().cleanup_old_versions(older_than=dt.timedelta(0))


def configure(rig: LanceRig) -> None:
    """Change a setting, which lets our post pass."""
    rig.dataset().update_config({"team": "us"})


def empty_version(rig: LanceRig) -> None:
    """Make a version that adds nothing, as an abort does to settle what is under way."""
    assert rig.sink().post_empty(rig.sink().load()) is Outcome.LANDED


CLEANED: dict[str, Change] = {
    "delete": lambda rig: rig.dataset().delete("id = -1"),
    "column renamed": lambda rig: rig.dataset().alter_columns({"path": "label", "name": "title"}),
    "empty version": empty_version,
}


@pytest.mark.parametrize("name", CLEANED)
def test_what_was_cleaned_away_since_the_look_stops_the_post(rig: LanceRig, name: str) -> None:
    """Lance sees only the setting that is left, and would undo what came before it."""

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


def test_versions_cleaned_away_under_the_post_are_told(
    rig: LanceRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between our look and Lance's own nobody can stop it; the error names what to restore."""

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


def test_a_version_that_comes_after_its_number_was_cleaned_up_is_not_taken_for_landed(
    rig: LanceRig, tmp_path: Path
) -> None:
    """A request that was long under way puts its version below younger ones: no row is in them."""
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


def test_a_version_without_rows_that_comes_late_is_not_taken_for_landed_either(
    rig: LanceRig, tmp_path: Path
) -> None:
    """Its files are all in the younger ones, for it has added none: they prove nothing."""
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


def test_a_version_is_named_truly_though_the_one_before_it_was_cleaned_away(
    rig: LanceRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A setting came before the post and was cleaned away after it: the note tells all the same."""

    def clean_there(step: str) -> None:
        if step == "after-post":
            clean_up(rig)

    monkeypatch.setattr("holdfast.engine.commit.failpoint", clean_there)
    driven = rig.start_while(lambda: configure(rig))
    assert driven.snapshot_id == 3
