"""The run's mark in the dataset's schema metadata, set by the very transaction that adds the rows.

It survives appends, deletes, compaction and clean-up. An overwrite or a rollback removes it: then
the versions since the post show the outcome, as long as they exist.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import lance

from holdfast.errors import CommitUnknownError, RunMismatchError, TableChangedError
from holdfast.model.records import Intent
from holdfast.model.stored import encode_run_id
from holdfast.sinks.base import MarkFound, RunMark
from holdfast.sinks.lance.history import GoneError, History, Step
from holdfast.sinks.staged import (
    MARK_NOTE,
    MARK_PREFIX,
    MARKS_MAX,
    mark_of_run,
    mark_text,
    oldest_beyond,
    parse_mark,
)


def mark_changes(
    metadata: Mapping[str, str], run_id: str, mark: RunMark, identity: str
) -> dict[str, str | None]:
    """Return a post's changes to the schema metadata: the new mark, and the oldest ones dropped.

    Args:
        metadata: The current metadata.
        run_id: The run.
        mark: Its mark.
        identity: The dataset's id. A mark that was copied elsewhere with the rows is ignored.
    """
    ours = MARK_PREFIX + encode_run_id(run_id)
    dropped = oldest_beyond(metadata, ours, MARKS_MAX)
    return {**{name: None for _, name in dropped}, ours: mark_text(mark, dataset=identity)}


def metadata_of(dataset: lance.LanceDataset) -> dict[str, str]:
    """Return the schema's metadata as strings."""
    found = dataset.schema.metadata or {}
    return {
        name.decode(errors="replace"): value.decode(errors="replace")
        for name, value in found.items()
    }


def find_mark(  # noqa: PLR0913 - one look needs all of these.
    history: History,
    *,
    table: str,
    identity: str,
    run_id: str,
    run_nonce: str,
    intents: Mapping[int, Intent],
) -> MarkFound | None:
    """Look for the run's mark or, if it is gone, for the version that the run made.

    Raises:
        RunMismatchError: Another run of the same id has landed there.
        CommitUnknownError: The mark is gone, and so is the history that would show the outcome.
        TableChangedError: Versions went back.
        UnsupportedTableError: The mark cannot be read.
        StoreUnavailableError: The store does not answer.
    """
    mark = _standing(history.dataset, run_id, run_nonce, identity)
    if mark is None:
        return _unmarked(history, table=table, run_id=run_id, run_nonce=run_nonce, intents=intents)
    if mark.run_nonce != run_nonce:
        raise RunMismatchError(
            run_id=run_id,
            differences=(
                f"{table} already holds a run with this id from another ledger "
                f"(version {mark.snapshot_id}); a new id would add its rows again"
            ),
        )
    if mark.sequence_number > history.dataset.version:
        raise TableChangedError(
            table=table, change=f"its versions went back below {mark.sequence_number}"
        )
    return MarkFound(mark=_where(history, mark, intents), present=True)


def _standing(
    dataset: lance.LanceDataset, run_id: str, run_nonce: str, identity: str
) -> RunMark | None:
    """Return the run's mark, if there is one that was made for this dataset.

    A mark of the same run under another id counts too: this ledger is a copy.

    Raises:
        UnsupportedTableError: The mark cannot be read.
    """
    metadata = metadata_of(dataset)
    text = metadata.get(MARK_PREFIX + encode_run_id(run_id))
    if text is not None:
        mark = parse_mark(run_id, text)
        return mark if _is_of(identity, text) else None
    marks = (text for name, text in metadata.items() if name.startswith(MARK_PREFIX))
    return mark_of_run((text for text in marks if _is_of(identity, text)), run_nonce)


def _is_of(identity: str, text: str) -> bool:
    """Whether a mark was made for this dataset; an unreadable one was not."""
    with contextlib.suppress(ValueError, AttributeError):
        return bool(json.loads(text).get("dataset") == identity)
    return False


def _where(history: History, mark: RunMark, intents: Mapping[int, Intent]) -> RunMark:
    """Return the mark with the version that set it: settings may have been committed in between."""
    intent = intents.get(mark.intent_number)
    if intent is None:
        return mark
    landed = history.noted(intent.parent_snapshot_id, partial(_is_note_of, mark))
    return mark if landed is None else replace(mark, snapshot_id=landed)


def _unmarked(
    history: History, *, table: str, run_id: str, run_nonce: str, intents: Mapping[int, Intent]
) -> MarkFound | None:
    """Find the intent that landed although its mark is gone: overwritten, or rolled back.

    Raises:
        CommitUnknownError: The history that would show the outcome is gone.
    """
    gone: list[int] = []
    for number, intent in sorted(intents.items()):
        mark = RunMark(
            run_nonce=run_nonce,
            intent_number=number,
            intent_nonce=intent.nonce,
            snapshot_id=intent.snapshot_id,
            sequence_number=intent.sequence_number,
        )
        try:
            landed = history.landing(intent.parent_snapshot_id, partial(_is_note_of, mark))
            is_stray = landed is not None and not history.is_followed(
                landed, partial(_is_marked, run_id, mark)
            )
        except GoneError:
            gone.append(intent.parent_snapshot_id)
            continue
        if is_stray:
            # The version that first had this number was cleaned up, and the evidence with it.
            gone.append(intent.parent_snapshot_id)
        elif landed is not None:
            mark = replace(mark, snapshot_id=landed)
            return MarkFound(mark=mark, present=history.is_present(landed))
    if gone:
        raise CommitUnknownError(
            table=table,
            run_id=run_id,
            reason=(
                f"it may have made the version after {gone[0]}, which was cleaned up, and the "
                "dataset has no mark of it: look for its rows there"
            ),
        )
    return None


def _is_marked(run_id: str, mark: RunMark, dataset: lance.LanceDataset) -> bool:
    text = metadata_of(dataset).get(MARK_PREFIX + encode_run_id(run_id))
    return text is not None and _is_same(mark, parse_mark(run_id, text))


def _is_note_of(mark: RunMark, step: Step) -> bool:
    text = step.properties.get(MARK_NOTE)
    if text is None:
        return False
    return _is_same(mark, parse_mark(MARK_NOTE, text))


def _is_same(one: RunMark, other: RunMark) -> bool:
    ours, theirs = (one.run_nonce, one.intent_number), (other.run_nonce, other.intent_number)
    return ours == theirs and one.intent_nonce == other.intent_nonce
