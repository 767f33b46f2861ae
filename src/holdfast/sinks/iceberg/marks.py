"""Marks: the run's name inside the table.

A mark is a table property that is set in the same atomic commit as the data, so it exists if and
only if the data landed. It survives expiry, compaction and catalogs that hide history. The number
of marks is bounded; the horizon is the sequence number up to which a missing mark proves nothing.
Marks are counted, so a removed mark is noticed, though not which run it belonged to.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pyiceberg.io import FileIO
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot

from holdfast.errors import (
    CommitUnknownError,
    RunMismatchError,
    TableChangedError,
    UnsupportedTableError,
)
from holdfast.model.records import Intent
from holdfast.model.stored import encode_run_id
from holdfast.sinks.base import MarkFound, RunMark
from holdfast.sinks.iceberg.manifests import manifests_of
from holdfast.sinks.staged import (
    MARK_NOTE,
    MARK_PREFIX,
    MARKS_MAX,
    mark_of_run,
    mark_text,
    oldest_beyond,
    parse_mark,
)

HORIZON = "holdfast.horizon"
COUNT = "holdfast.marks"
# In the summary of a snapshot that was cherry-picked onto a branch: the one that it copies.
_PICKED = "source-snapshot-id"


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkChanges:
    """The property changes that go into the commit."""

    updates: dict[str, str]
    removals: list[str]


def mark_changes(properties: Mapping[str, str], run_id: str, mark: RunMark) -> MarkChanges:
    """Set this run's mark; drop the oldest beyond the limit and raise the horizon to them."""
    ours = MARK_PREFIX + encode_run_id(run_id)
    dropped = oldest_beyond(properties, ours, MARKS_MAX)
    others = sum(name.startswith(MARK_PREFIX) and name != ours for name in properties)
    count = others - len(dropped) + 1 + _removed(properties)
    updates = {ours: mark_text(mark), COUNT: str(count)}
    if dropped:
        horizon = max(_number(properties, HORIZON), dropped[-1][0])
        updates[HORIZON] = str(horizon)
    return MarkChanges(updates=updates, removals=[name for _, name in dropped])


def find_mark(  # noqa: PLR0913 - one look needs all of these.
    metadata: TableMetadata,
    io: FileIO,
    *,
    table: str,
    branch: str,
    run_id: str,
    run_nonce: str,
    intents: Mapping[int, Intent],
) -> MarkFound | None:
    """Look for the run's mark in freshly loaded metadata.

    Raises:
        RunMismatchError: Another run of the same id has landed there.
        CommitUnknownError: The mark is missing, but that proves nothing.
        TableChangedError: The catalog was rolled back.
    """
    text = metadata.properties.get(MARK_PREFIX + encode_run_id(run_id))
    if text is None:
        if (mark := mark_of_run(_texts(metadata), run_nonce)) is None:
            mark = _unmarked(metadata, io, branch, run_nonce, intents)
        if mark is not None:
            return MarkFound(mark=mark, present=_is_present(metadata, io, branch, mark))
        horizon, removed = _number(metadata.properties, HORIZON), _removed(metadata.properties)
        reason = f"marks up to sequence number {horizon} were dropped from the table"
        if removed:
            horizon = metadata.next_sequence_number() - 1
            reason = f"{removed} of the table's properties {MARK_PREFIX}* were removed"
        doubted = {intent.sequence_number for intent in intents.values()}
        doubted = {number for number in doubted if number <= horizon}
        if doubted and doubted - _taken(metadata, io, branch):
            raise CommitUnknownError(table=table, run_id=run_id, reason=reason)
        return None
    mark = parse_mark(run_id, text)
    if mark.run_nonce != run_nonce:
        raise RunMismatchError(
            run_id=run_id,
            differences=(
                f"{table} already holds a run with this id from another ledger "
                f"(snapshot {mark.snapshot_id}); a new id would add its rows again"
            ),
        )
    if mark.sequence_number >= metadata.next_sequence_number():
        raise TableChangedError(
            table=table,
            change=f"its sequence numbers went back below {mark.sequence_number}: "
            "the catalog was rewound",
        )
    return MarkFound(mark=mark, present=_is_present(metadata, io, branch, mark))


def _texts(metadata: TableMetadata) -> Iterator[str]:
    """Yield the marks of all runs: from the table's properties, and from its snapshots."""
    for name, text in metadata.properties.items():
        if name.startswith(MARK_PREFIX):
            yield text
    for snapshot in metadata.snapshots:
        if snapshot.summary is not None and (note := snapshot.summary.get(MARK_NOTE)):
            yield note


def _unmarked(
    metadata: TableMetadata,
    io: FileIO,
    branch: str,
    run_nonce: str,
    intents: Mapping[int, Intent],
) -> RunMark | None:
    """Find an intent that landed although its mark is gone: dropped as too old, or removed.

    A snapshot id is 63 random bits that the intent recorded before using them, so whatever names
    the id is ours: the snapshot itself, a child or a cherry-picked copy of it, or a manifest that
    it added.
    """
    if not intents:
        return None
    named = {snapshot.snapshot_id for snapshot in metadata.snapshots}
    named |= {snapshot.parent_snapshot_id or 0 for snapshot in metadata.snapshots}
    named |= {_picked(snapshot) or 0 for snapshot in metadata.snapshots}
    if (head := _head(metadata, branch)) is not None:
        named |= {manifest.added_snapshot_id or 0 for manifest in manifests_of(head, io)}
    for number, intent in intents.items():
        if intent.snapshot_id in named:
            return RunMark(
                run_nonce=run_nonce,
                intent_number=number,
                intent_nonce=intent.nonce,
                snapshot_id=intent.snapshot_id,
                sequence_number=intent.sequence_number,
            )
    return None


def _taken(metadata: TableMetadata, io: FileIO, branch: str) -> set[int]:
    """Return the sequence numbers that are known to belong to other writers' snapshots.

    No two snapshots of a table share one: an intent whose number went to another snapshot is dead.
    Only called if nothing names a snapshot of ours.
    """
    taken = {snapshot.sequence_number or 0 for snapshot in metadata.snapshots}
    if (head := _head(metadata, branch)) is not None:
        taken |= {manifest.sequence_number for manifest in manifests_of(head, io)}
    return taken


def _picked(snapshot: Snapshot) -> int | None:
    """Return the snapshot that this one is a cherry-picked copy of; None if it is none."""
    text = snapshot.summary.get(_PICKED) if snapshot.summary is not None else None
    return int(text) if text and text.lstrip("-").isdecimal() else None


def _head(metadata: TableMetadata, branch: str) -> Snapshot | None:
    ref = metadata.refs.get(branch) or metadata.refs.get(MAIN_BRANCH)
    return metadata.snapshot_by_id(ref.snapshot_id) if ref else None


def _is_present(metadata: TableMetadata, io: FileIO, branch: str, mark: RunMark) -> bool | None:
    """Whether the marked snapshot is in the branch's history; None if history does not show it."""
    head = _head(metadata, branch)
    if head is None:
        return False
    # PyIceberg searches its list for each id, which takes minutes for a long history.
    listed = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    snapshot = head
    while True:
        parent_id = snapshot.parent_snapshot_id
        if mark.snapshot_id in (snapshot.snapshot_id, parent_id, _picked(snapshot)):
            return True
        if (snapshot.sequence_number or 0) < mark.sequence_number or parent_id is None:
            # PyIceberg's expiry clears the parent of the oldest snapshot that it keeps: such a root
            # can be distinguished from a replaced table only while our own snapshot is still
            # listed.
            ended = parent_id is None and mark.snapshot_id not in listed
            ended = ended and (snapshot.sequence_number or 0) > mark.sequence_number
            break
        parent = listed.get(parent_id)
        if parent is None:
            ended = True
            break
        snapshot = parent
    # A manifest that our snapshot added survives the snapshot's own expiry.
    if any(manifest.added_snapshot_id == mark.snapshot_id for manifest in manifests_of(head, io)):
        return True
    return None if ended else False


def _removed(properties: Mapping[str, str]) -> int:
    """Return how many marks are gone that none of our commits removed."""
    found = sum(name.startswith(MARK_PREFIX) for name in properties)
    return max(0, _number(properties, COUNT) - found)


def _number(properties: Mapping[str, str], name: str) -> int:
    text = properties.get(name, "0")
    if not text.isdecimal():
        raise UnsupportedTableError(
            table=name,
            what=f"the table property {name} is not a number: {text[:80]!r}",
            cure="restore that property from an older metadata file of the table",
        )
    return int(text)
