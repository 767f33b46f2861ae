"""Answers to a post: what each of Lance's errors is taken for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
from lance import LanceDataset
from lance.commit import CommitConflictError

from holdfast.errors import CommitRefusedError
from holdfast.sinks.base import Change, Outcome, RunMark
from tests.fakes.lance_rig import LanceRig


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
    """Others came between our last look and Lance's own: it says that nothing has landed."""
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
def test_each_answer_is_taken_for_what_it_proves(
    rig: LanceRig,
    monkeypatch: pytest.MonkeyPatch,
    answer: Exception,
    expected: Outcome | None,
) -> None:
    """Only a clear no is a refusal; whatever else it is, the post may have landed."""
    monkeypatch.setattr(LanceDataset, "commit", Mock(side_effect=answer))
    if expected is None:
        with pytest.raises(CommitRefusedError):
            post(rig)
    else:
        assert post(rig) is expected


def test_a_refusal_of_a_dataset_that_has_changed_is_none(
    rig: LanceRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The change may be our own post: the next look tells."""

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
