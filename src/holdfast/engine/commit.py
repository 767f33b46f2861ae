"""Commit: publish the staged groups of one run as one table snapshot, once.

One loop serves every table format. It looks for the mark first, posts once per intent, and looks
again after anything but success: a lost answer can hide a commit that landed, and a second
append would put every row of the run into the table twice. Nothing is deleted here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.engine.base import Known, ReplacedRows, Rewrites
from holdfast.errors import (
    CatalogUnavailableError,
    CommitConflictError,
    CommitRefusedError,
    CommittedThenRemovedError,
    CommitUnknownError,
    HoldfastError,
    StoreUnavailableError,
    TableChangedError,
)
from holdfast.failpoints import failpoint
from holdfast.ledger.key_hits import count_hits
from holdfast.ledger.ledger import Ledger, log_step
from holdfast.ledger.parts import write_objects
from holdfast.ledger.run_log import RunFile, RunLog
from holdfast.model.records import (
    Intent,
    MergeCounts,
    PartReference,
    Receipt,
    Refused,
    intent_named,
)
from holdfast.model.report import counted
from holdfast.model.work import StagedGroup, StagedTotals
from holdfast.sinks.base import Change, MarkFound, Outcome, RunMark, Sink, TableView

_ATTEMPTS_MAX = 100
# What a change removes is computed anew for each attempt, so that each costs more.
_REPLACE_ATTEMPTS_MAX = 21
# Give up sooner on a catalog that never answers clearly than on one that is merely busy.
_UNKNOWN_MAX = 20
# How often a rehearsal looks for what would be removed, while others change the table.
_REHEARSALS_MAX = 3
_PAUSE_FIRST_S = 0.05
_PAUSE_MAX_S = 5.0
# A look that is older when the files have been asked for is repeated.
_LOOK_S_MAX = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Landed:
    """The run is in the table."""

    receipt: Receipt
    # How many times this start posted to the table.
    posts: int
    # None if the table's history no longer shows whether the rows are still there.
    present: bool | None


@dataclass(slots=True)
class _Tally:
    """Outcomes of this start's posts."""

    posts: int = 0
    # Whether the last attempt ended before its post, because files were rewritten or gone.
    is_late: bool = False
    unknown: int = 0
    # Whether the last post got a conflict.
    is_conflict: bool = False
    staged_files: Known = field(default_factory=Known)


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """One run's commit step: its ledger, its run.json and its table."""

    ledger: Ledger
    run_file: RunFile
    sink: Sink
    # The intents that this start has posted, also before a staged file was found missing.
    posted: list[int] = field(default_factory=list)
    # How files are rewritten of which only some rows go; None for a look alone.
    rewrites: Rewrites | None = None
    # The part that lists groups that enter the table in place of staged ones.
    merged: PartReference | None = None

    @property
    def replaced(self) -> ReplacedRows:
        """The rows that the run replaces."""
        return ReplacedRows(ledger=self.ledger, sink=self.sink, identity=self.run_file.identity)

    @property
    def run_id(self) -> str:
        """The user's run id."""
        return self.ledger.run_id

    @property
    def log(self) -> RunLog:
        """The run's log."""
        return self.ledger.log

    def load(self) -> TableView:
        """Load a fresh view of the table.

        Raises:
            TableChangedError: It is not the run's table.
            CatalogUnavailableError: The catalog does not answer.
        """
        view = self.sink.load()
        if view.uuid != self.run_file.identity.table_uuid:
            raise TableChangedError(
                table=self.sink.name,
                change="it was dropped and created again (its UUID differs)",
            )
        return view

    def look(self, view: TableView | None = None) -> Landed | None:
        """Find out whether the run has landed, and record what the table shows of its posts.

        Raises:
            TableChangedError: It is not the run's table.
            RunFencedError: Another driver has claimed the run.
            CommittedThenRemovedError: The run landed and was rolled back or replaced.
            CommitUnknownError: The table does not show whether the run landed.
        """
        view = view or self.load()
        known = self.log.receipt
        try:
            found = self.sink.find_mark(view, self.run_id, self.run_file.nonce, self.log.doubtful)
        except CommitUnknownError:
            if known is None:
                raise
            found = None  # The receipt settles it, even if the mark was dropped as too old.
        if found is None and known is not None:
            if known.sequence_number >= view.next_sequence_number:
                raise TableChangedError(
                    table=self.sink.name,
                    change=f"the catalog was rewound below sequence number {known.sequence_number}",
                )
            return Landed(receipt=known, posts=0, present=None)
        if found is None:
            self._record_refusals(view)
            return None
        if found.present is False:
            raise CommittedThenRemovedError(
                table=self.sink.name, run_id=self.run_id, snapshot_id=found.mark.snapshot_id
            )
        receipt = known or self._write_receipt(found)
        return Landed(receipt=receipt, posts=0, present=found.present)

    def publish(
        self,
        change: Change,
        reference: PartReference,
        schemas: Sequence[dict[str, Any]],
    ) -> Landed:
        """Post until the run has landed.

        Args:
            change: What is staged, and how it changes the table.
            reference: The ledger part that lists the staged work.
            schemas: Every table schema that the staged files were written for.

        Raises:
            CommitConflictError: Other writers won every attempt.
            CommitUnknownError: The catalog never gave a clear answer.
            CommitRefusedError: The catalog refused, and will refuse again.
            TableChangedError: The staged files no longer fit the table.
            StagedFileMissingError: A staged file is gone.
            CatalogUnavailableError: The catalog does not answer.
        """
        tally = _Tally()
        replaces = change.removes != "nothing"
        attempts_max = _REPLACE_ATTEMPTS_MAX if replaces else _ATTEMPTS_MAX
        attempt, has_searched = 1, False
        while attempt <= attempts_max:
            tally.is_late = tally.is_conflict = False
            try:
                landed = self._try_once(change, reference, schemas, tally)
            except CatalogUnavailableError:
                if not tally.posts:
                    raise
                landed = None  # A post is under way: give the catalog time to come back.
            if landed is not None:
                return replace(landed, posts=len(self.posted))
            if tally.unknown >= _UNKNOWN_MAX:
                break
            if not replaces or not (tally.is_conflict or tally.is_late):
                # Computing the loss again takes longer than any pause: others would always win.
                self.ledger.ports.sleep(_pause_s(attempt, self.ledger.ports.jitter))
            # A search, and the look that posts what it has found, are one attempt.
            has_searched = tally.is_late and not has_searched
            attempt += not has_searched
        try:
            landed = self.look()
        except CatalogUnavailableError as error:
            raise self._unknown(
                f"{tally.posts} posts, then the catalog failed: {error.reason}"
            ) from error
        if landed is not None:
            return replace(landed, posts=len(self.posted))
        if tally.unknown:
            raise self._unknown(f"{tally.unknown} posts without a clear answer")
        raise CommitConflictError(table=self.sink.name, attempts=attempts_max)

    def rehearse(self, change: Change, schemas: Sequence[dict[str, Any]]) -> Landed | Change:
        """Check what `publish` would post, and find out what it would remove; post nothing.

        Args:
            change: As for `publish`.
            schemas: As for `publish`.

        Returns:
            The change, with what it removes if the table did not change meanwhile; or, if an
            earlier start's post has landed, that.

        Raises:
            TableChangedError: The staged files no longer fit the table.
            StagedFileMissingError: A staged file is gone.
            CatalogUnavailableError: The catalog does not answer.
        """
        view = self.load()
        if (landed := self.look(view)) is not None:
            return landed
        self.sink.refuse_missing_files(view, change.adds)
        self.sink.check(view, schemas, change.adds)
        if view.parent_snapshot_id is None:
            return change
        # A search for rows to replace changes the change: what it has written is known then.
        tries = (self._with_loss(self.load(), change, "none") for _ in range(_REHEARSALS_MAX))
        return next((found for found in tries if found is not None), change)

    def _try_once(
        self,
        change: Change,
        reference: PartReference,
        schemas: Sequence[dict[str, Any]],
        tally: _Tally,
    ) -> Landed | None:
        """Look, check, write an intent and post; None if nothing is known to have landed.

        Raises:
            CommitRefusedError: The catalog refused, and will refuse again.
        """
        view, landed = self._look_before_post(change, tally)
        if landed is not None or view.parent_snapshot_id is None:
            return landed
        self.sink.check(view, schemas, change.adds)
        nonce = self.ledger.ports.new_nonce()
        complete = self._with_loss(view, change, nonce)
        tally.is_late = complete is None
        if complete is None:
            return None
        number, intent = self._write_intent(view, complete, reference, nonce)
        mark = RunMark(
            run_nonce=self.run_file.nonce,
            intent_number=number,
            intent_nonce=intent.nonce,
            snapshot_id=intent.snapshot_id,
            sequence_number=intent.sequence_number,
        )
        tally.posts += 1
        self.posted.append(number)
        failpoint("before-post")
        try:
            outcome = self.sink.post(view, self.run_id, mark, complete)
        except CommitRefusedError:
            with contextlib.suppress(HoldfastError):  # The refusal is the error worth raising.
                if (landed := self.look()) is not None:
                    return landed
            raise
        failpoint("after-post")
        gone = f" for {intent.removed_rows:,}" if change.takes_rows else ""
        log_step(
            self.run_id, f"posted intent {number} ({intent.rows:,} rows{gone}): {outcome.value}"
        )
        if outcome is Outcome.LANDED:
            receipt = self._write_receipt(MarkFound(mark=mark, present=True))
            return Landed(receipt=receipt, posts=0, present=True)
        tally.unknown += outcome is Outcome.UNKNOWN
        tally.is_conflict = outcome is Outcome.CONFLICT
        if outcome is Outcome.UNSENT:
            self.log.append(Refused(intent_number=number))
        return None

    def _look_before_post(self, change: Change, tally: _Tally) -> tuple[TableView, Landed | None]:
        """Return a fresh view of a table that has a snapshot, and whether the run has landed.

        Raises:
            StagedFileMissingError: A staged file is gone.
        """
        view = self.load()
        landed = self.look(view)
        if landed is None and view.parent_snapshot_id is None:
            # A delayed post is refused only by its parent's sequence number, and a first commit
            # has no parent. So post an empty snapshot first, as the parent of the data intent.
            failpoint("before-first-snapshot")
            tally.unknown += self.sink.post_empty(view) is Outcome.UNKNOWN
            failpoint("after-first-snapshot")
            view = self.load()
            landed = self.look(view)
        if landed is None and self._check_files(view, change.adds, tally):
            view = self.load()
            landed = self.look(view)
        return view, landed

    def _check_files(self, view: TableView, groups: Sequence[StagedGroup], tally: _Tally) -> bool:
        """Stop if staged files are gone; return whether that took so long that the view is old.

        Raises:
            StagedFileMissingError: A staged file is gone.
            StoreUnavailableError: The table's storage does not answer.
        """
        began = self.ledger.ports.now()
        if began < tally.staged_files.until:
            return False
        self.sink.refuse_missing_files(view, groups)
        ended = self.ledger.ports.now()
        tally.staged_files.answered(began, ended)
        failpoint("after-file-check")
        return ended - began > _LOOK_S_MAX

    def _with_loss(self, view: TableView, change: Change, nonce: str) -> Change | None:
        """Return the change with what it removes; None if the table has changed meanwhile.

        Raises:
            TableChangedError: The rows have changed, and the run depends on them.
            StoreUnavailableError: The table's storage does not answer.
        """
        if change.removes == "nothing":
            return change
        try:
            if change.base is None:  # Otherwise what others add may come, and the loss says more.
                self.replaced.refuse_changed(view)
            name = self.ledger.layout.file_names(nonce)
            if self.rewrites is not None:
                change = replace(change, rewritten=self.rewrites.known(view))
            complete = replace(change, loss=self.sink.loss(view, change, name))
        except StoreUnavailableError:
            # Another writer may have replaced the files, and expired what was being read.
            if self.load().parent_snapshot_id == view.parent_snapshot_id:
                raise
            return None
        failpoint("after-loss")
        if complete.loss.targets and self.rewrites is not None:
            is_again = bool(self.posted)
            left = self.rewrites.run(view, change, complete.loss.targets, is_again=is_again)
            if left and self.load().parent_snapshot_id == view.parent_snapshot_id:
                lacks = f"its storage lacks {counted(len(left), 'file')} of the table"
                raise StoreUnavailableError(
                    uri=self.sink.name, reason=f"{lacks}: {min(left)}", retry_safe=False
                )
            return None  # The table may have changed meanwhile.
        return complete

    def _record_refusals(self, view: TableView) -> None:
        """Record which posts, also of earlier starts, a look has proved to be refused for ever.

        A missing mark is not proof: the request may have been duplicated on its way, with one
        copy refused and the other yet to arrive. The table must have moved past it, which may
        show only at a later look. A later look may see less: once others have cleaned versions
        up, a delayed post can take the number of one of them, and look as if it had landed.

        Args:
            view: A view of the table that shows no mark.

        Raises:
            RunFencedError: Another driver has claimed the run.
            StoreError: The ledger does not answer.
        """
        for number, intent in self.log.doubtful.items():
            if view.settled_below > intent.sequence_number:
                self.log.append(Refused(intent_number=number))

    def _unknown(self, reason: str) -> CommitUnknownError:
        return CommitUnknownError(table=self.sink.name, run_id=self.run_id, reason=reason)

    def _write_intent(
        self, view: TableView, change: Change, reference: PartReference, nonce: str
    ) -> tuple[int, Intent]:
        totals, loss, written = StagedTotals.of(change.adds), change.loss, None
        if loss.writes:  # Listed before they are written: a sweep must find them after a kill.
            storage, layout = self.ledger.storage, self.ledger.layout
            written = write_objects(storage, layout, f"written-{nonce}.parquet", loss.writes)
        intent = Intent(
            table_uuid=view.uuid,
            branch=self.run_file.identity.branch,
            parent_snapshot_id=view.parent_snapshot_id or 0,
            snapshot_id=self.sink.new_snapshot_id(view),
            sequence_number=view.next_sequence_number,
            staged=reference,
            rows=totals.rows,
            files=totals.files,
            size_bytes=totals.size_bytes,
            nonce=nonce,
            removed_files=loss.files,
            removed_rows=loss.rows,
            removed_bytes=loss.size_bytes,
            removed_partitions=loss.partitions,
            delete_files=loss.delete_files,
            carried_rows=loss.carried_rows,
            written=written,
            merged=self.merged,
            deleted_keys=change.deleted_keys,
            upserts=self._upserts(change, totals.rows),
        )
        return self.log.append(intent).number, intent

    def _upserts(self, change: Change, rows: int) -> MergeCounts | None:
        """Return what an upsert does to the table that its post builds on.

        Raises:
            LedgerDamagedError: What a search has found is not there as it was written.
        """
        ledger, used = self.ledger, change.loss.used
        # Earlier versions searched files without noting which keys they have.
        is_known = all(rewrite.hits or not rewrite.removed_rows for rewrite in used)
        if change.keys is None or not is_known:
            return None
        texts = (rewrite.hits for rewrite in used)
        found, deleted = count_hits(
            ledger.storage, ledger.layout, texts, change.keys.rows, change.keys.deleting
        )
        return MergeCounts(
            matched=found - deleted,
            inserted=rows - (found - deleted),
            deleted=deleted,
            doubled=change.loss.rows - found,
            searched_files=sum(part.records for part in self.log.rewritten),
            rewritten_files=len(used),
            carried_rows=sum(rewrite.kept_rows for rewrite in used),
            replans=len(self.log.intents),
        )

    def _write_receipt(self, found: MarkFound) -> Receipt:
        """Write a receipt for the intent that the mark names, even if another driver wrote it.

        Raises:
            CommitUnknownError: The intent is not in the ledger.
        """
        if found.mark.intent_number not in self.log.intents:
            self.log.refresh()  # If another driver wrote it, our next append is fenced.
        intent = landed_intent(self.log, found.mark)
        if intent is None:
            raise self._unknown(
                f"the table names intent {found.mark.intent_number}, which the ledger lacks"
            )
        receipt = receipt_of(found.mark, intent)
        self.log.append(receipt)
        log_step(self.run_id, f"landed: snapshot {receipt.snapshot_id}, {receipt.rows:,} rows")
        return receipt


def landed_intent(log: RunLog, mark: RunMark) -> Intent | None:
    """Return the intent that a mark names; None if it is not in the log."""
    return intent_named(
        log.intents,
        mark.intent_number,
        nonce=mark.intent_nonce,
        snapshot_id=mark.snapshot_id,
        sequence_number=mark.sequence_number,
    )


def receipt_of(mark: RunMark, intent: Intent) -> Receipt:
    """Return the receipt of an intent that has landed."""
    return Receipt(
        intent_number=mark.intent_number,
        snapshot_id=mark.snapshot_id,
        sequence_number=mark.sequence_number,
        staged=intent.staged,
        rows=intent.rows,
        files=intent.files,
        size_bytes=intent.size_bytes,
        removed_files=intent.removed_files,
        removed_rows=intent.removed_rows,
        removed_bytes=intent.removed_bytes,
        removed_partitions=intent.removed_partitions,
        delete_files=intent.delete_files,
        carried_rows=intent.carried_rows,
        deleted_keys=intent.deleted_keys,
        upserts=intent.upserts,
    )


def _pause_s(attempt: int, jitter: Callable[[], float]) -> float:
    """Return a pause with bounded exponential backoff, and jitter to spread rival writers."""
    longest = min(_PAUSE_MAX_S, _PAUSE_FIRST_S * float(2 ** min(attempt, 10)))
    return longest * (0.5 + jitter() / 2)
