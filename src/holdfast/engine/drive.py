"""Drive one start of a run from claim to receipt, and report what it did."""

from __future__ import annotations

import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from holdfast.engine.claim import Ledger, Prepared, SettledInput
from holdfast.engine.commit import Commit, Landed
from holdfast.engine.input_check import without_row_sums
from holdfast.engine.options import Choices
from holdfast.engine.passes import Passes
from holdfast.engine.resolve import refuse_doubt, renew
from holdfast.engine.steps_log import say
from holdfast.engine.workbook import Tally, Workbook
from holdfast.errors import HoldfastError, RunAbortedError, RunMismatchError, StagedFileMissingError
from holdfast.ledger.row_files import KeyFiles
from holdfast.ledger.run_log import RunLog, open_run_file
from holdfast.model.coverage import changed_columns
from holdfast.model.history import starts_of
from holdfast.model.records import Claim, Identity, PartReference, Seal
from holdfast.model.report import Compared, Report
from holdfast.model.work import Work
from holdfast.sinks.base import MayLack, Sink, TableView, WriterSpec

# ---- Drive one start of a run from claim to receipt
# Somebody may remove staged files between the last pass and the post, again and again.
_STAGINGS_MAX = 3
# How old a look at the table may be when the work begins.
_VIEW_S_MAX = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Driven:
    """How one start of a run ended."""

    landed: Landed
    # True when an earlier start had already landed.
    was_landed: bool
    # By what the input was compared with what an earlier start had read; None if it was not.
    input_compared: Compared
    tally: Tally = field(default_factory=Tally)
    # What earlier starts had done, and how long their tasks took for it.
    kept_rows: int = 0
    kept_seconds: float = 0.0
    # How many rows each version of the transform's code has made, by its digest.
    rows_by_code: Mapping[str, int] = field(default_factory=dict)
    kept_cost: float = 0.0
    # What the answers that count have cost, by the claim under which they were paid for.
    cost_by_epoch: Mapping[int, float] = field(default_factory=dict)
    # What was paid for rows that do not count.
    lost_cost: float = 0.0
    # Failed rows that stand in the quarantine instead of the table.
    quarantined_rows: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """One start of a run.

    Args:
        ledger: The run's ledger.
        sink: The table.
        input: What is read.
        prepared: What `prepare` has done already; None to do it here.
        check_output: Stops if what the job will give does not fit the table, as far as that is
            known before it runs. Not asked of a run that has landed.
    """

    ledger: Ledger
    sink: Sink
    input: SettledInput
    prepared: Prepared | None = None
    check_output: Callable[[WriterSpec], object] = lambda _spec: None

    def append(self, view: TableView, identity: Identity, choices: Choices) -> Driven:
        """Append the transformed input to the table, once.

        Args:
            view: A fresh look at the table.
            identity: What this start wants the run to be.
            choices: How.

        Raises:
            RunAbortedError: The run was given up, and nothing of it has landed.
            HoldfastError: Any other; what is durable stays so.
        """
        try:
            return self._append(view, identity, choices)
        finally:
            if self.prepared is not None:  # Whatever ended it: a notebook keeps the traceback.
                self.prepared.heartbeat.stop()

    def _append(self, view: TableView, identity: Identity, choices: Choices) -> Driven:
        ledger, began = self.ledger, self.ledger.ports.now()
        if self.prepared is None:
            ledger.probe()
        # Before the claim: a start that is another job must not end the work of this one.
        nonce = ledger.ports.new_nonce()
        run_file = open_run_file(
            ledger.storage,
            ledger.layout,
            run_id=ledger.run_id,
            identity=identity,
            nonce=nonce,
            sleep=ledger.ports.sleep,
        )
        ledger.log.belongs_to(run_file)
        commit = Commit(
            run_id=ledger.run_id,
            run_file=run_file,
            log=ledger.log,
            sink=self.sink,
            ports=ledger.ports,
        )
        try:
            if self.prepared is None:
                claim = ledger.claim(choices, is_new=run_file.nonce == nonce)
                book = ledger.workbook()
            else:
                claim, book = ledger.claim_again(choices), self.prepared.book
            heartbeat = ledger.heartbeat(choices)
            try:
                if ledger.ports.now() - began > _VIEW_S_MAX:
                    view = commit.load()  # It has waited: the table may be another by now.
                return self._drive(commit, view, identity.key, choices, claim, book)
            finally:
                heartbeat.stop()
        except RunAbortedError:
            # The abort may have come when a post was under way. Who is told "aborted" starts over
            # under another id: then the rows must not be in the table.
            refuse_doubt(ledger, lambda _identity: self.sink)
            say(ledger.run_id, "stopped: the run was given up")
            raise
        except HoldfastError as error:
            ledger.stop(error)
            raise

    def _drive(  # noqa: PLR0913, PLR0917 - they are the parts of one start.
        self,
        commit: Commit,
        view: TableView,
        key: tuple[str, ...],
        choices: Choices,
        claim: Claim,
        book: Workbook,
    ) -> Driven:
        by: Compared = (choices.verify_input or None) if key else "files"  # They are pinned.
        # Before any work: an earlier start may have landed without living to say so. Where it
        # got as far as an intent, only a look later than our claim counts.
        landed = commit.look(None if commit.log.intents else view)
        if landed is not None:
            say(commit.run_id, f"had landed as snapshot {landed.receipt.snapshot_id}")
            compared = choices.if_committed == "compare" and bool(choices.verify_input)
            if compared:
                self.input.settle(self.ledger, compare=True)
                compared = self._compare(book, landed.receipt.staged, choices)
            seal = self._seal_of(landed.receipt.staged)
            return Driven(
                landed=landed,
                was_landed=True,
                input_compared=by if compared else None,
                quarantined_rows=seal.quarantined_rows if seal is not None else 0,
            )
        self.input.settle(self.ledger, compare=True)
        self.check_output(writer := self.sink.writer_spec(view, self._may_lack(view, choices)))
        if self.prepared is None:
            book.inherit()
        number, rows = len(starts_of(commit.log.records)), book.work.sums.rows
        say(commit.run_id, f"claimed: start {number}, {rows:,} rows kept")
        self.sink.check(view, book.schemas, [])
        passes = Passes(
            book=book,
            log=commit.log,
            storage=self.ledger.storage,
            sink=self.sink,
            view=view,
            writer=writer,
            submitter=self.input.submitter,
            ports=self.ledger.ports,
            key=key,
            choices=choices,
            claim=claim,
            source=self.prepared.source if self.prepared else None,
            is_retry=bool(commit.run_file.identity.retry_of),
        )
        passes.withdraw_lost()
        kept = book.work
        if book.is_complete and choices.verify_input and self._has_changed(book, choices):
            book.reopen()  # The next pass takes the new rows, or says what is wrong.
        landed = self._publish(commit, passes, book)
        if choices.verify_input and landed.receipt.staged.name != book.seal().name:
            # A post of an earlier start has arrived meanwhile. It knows no row that came since.
            self._compare(book, landed.receipt.staged, choices)
        kept = kept.only(book.work)
        return Driven(
            landed=landed,
            was_landed=False,
            input_compared=by,
            tally=book.tally,
            kept_rows=kept.sums.rows - kept.quarantined_rows,
            kept_seconds=kept.seconds,
            rows_by_code=_rows_by_code(commit.log, book.work),
            kept_cost=kept.cost,
            cost_by_epoch=_cost_by_epoch(book.work),
            lost_cost=_lost_cost(book),
            quarantined_rows=book.work.quarantined_rows,
        )

    def _may_lack(self, view: TableView, choices: Choices) -> MayLack:
        """Return which columns the output need not have: those that have come since the run began.

        Raises:
            LedgerDamagedError: The run's first plan names no schema of a table.
        """
        if choices.missing_columns == "null":
            return None
        first = next(iter(self.ledger.log.plans.values()), None)
        return frozenset() if first is None else self.sink.columns_since(view, first.schema)

    def _publish(self, commit: Commit, passes: Passes, book: Workbook) -> Landed:
        for _ in range(_STAGINGS_MAX - 1):
            passes.run()
            try:
                return self._publish_once(commit, book)
            except StagedFileMissingError:
                # Somebody's clean-up took a file: its rows are computed again, which costs, but
                # ends well. Publishing the rest would lose rows.
                passes.withdraw_lost()
        passes.run()
        return self._publish_once(commit, book)

    def _publish_once(self, commit: Commit, book: Workbook) -> Landed:
        renew(self.ledger, commit, book)
        return commit.publish(book.work.groups, book.seal(), book.schemas)

    def _has_changed(self, book: Workbook, choices: Choices) -> bool:
        """Whether the input is another than what the run has covered, or cannot be compared."""
        if book.input_sums is None:
            nothing, whole_rows = KeyFiles(storage=self.ledger.storage), choices.compares_rows
            book.input_sums = self.input.submitter.measure(nothing, whole_rows=whole_rows)
        if choices.compares_rows and book.work.rows_without_sums:
            return True
        return bool(book.work.sums.difference(book.input_sums))

    def _compare(self, book: Workbook, reference: PartReference, choices: Choices) -> bool:
        """Compare the input with what the run has covered.

        Raises:
            RunMismatchError: It is another input: its rows would be dropped without a word. Or its
                values are to be compared, and cannot be.
        """
        seal = self._seal_of(reference)
        if seal is None:
            return False
        covered, now = seal.covered, book.input_sums
        if choices.compares_rows and not covered.has_row_sums:
            raise RunMismatchError(
                run_id=self.ledger.run_id, differences=without_row_sums(covered.rows)
            )
        if now is None:
            nothing = KeyFiles(storage=self.ledger.storage)
            now = self.input.submitter.measure(nothing, whole_rows=choices.compares_rows)
        if difference := covered.difference(now):
            if covered.has_keys_of(now):
                difference = changed_columns(book.planned_columns, now.columns) or difference
            raise RunMismatchError(run_id=self.ledger.run_id, differences=difference)
        return True

    def _seal_of(self, reference: PartReference) -> Seal | None:
        """Return the seal that has accepted the work, if the log still tells."""
        seals = self.ledger.log.seals.values()
        return next((seal for seal in seals if seal.work.name == reference.name), None)


def _rows_by_code(log: RunLog, work: Work) -> dict[str, int]:
    rows: Counter[str] = Counter()
    for record in work.records:
        if record.coverage.rows and record.quarantine is None:
            rows[log.claims[record.claim].code] += record.coverage.rows
    return dict(rows)


def _cost_by_epoch(work: Work) -> dict[int, float]:
    costs: dict[int, float] = defaultdict(float)
    for record in work.records:
        if record.cost:
            costs[record.claim] += record.cost
    return dict(costs)


def _lost_cost(book: Workbook) -> float:
    """Return what was left out, and what tasks that died had paid at the rate of all others."""
    seconds, tally = book.work.seconds, book.tally
    rate = book.work.cost / seconds if seconds else 0.0
    return tally.dropped_cost + tally.killed_seconds * rate


# ---- Report: what one start has done, in the form that a person reads
def report_of(run_id: str, table: str, driven: Driven, seconds: float) -> Report:
    """Return the report of one start, and warn of what it could not find out.

    Args:
        run_id: The user's id.
        table: The table's name.
        driven: How the start ended.
        seconds: How long it took.
    """
    landed = driven.landed
    if not driven.input_compared:
        warnings.warn(
            f"run {run_id!r}: the input was not compared with what an earlier start "
            "of this run may have read",
            stacklevel=4,  # The call of `append`.
        )
    if landed.present is None:
        warnings.warn(
            f"run {run_id!r} has landed; the table's history does not tell whether its "
            "rows are still there",
            stacklevel=4,
        )
    return Report(
        run_id=run_id,
        table=table,
        outcome="already_committed" if driven.was_landed else "committed",
        snapshot_id=landed.receipt.snapshot_id,
        rows=landed.receipt.rows,
        files=landed.receipt.files,
        size_bytes=landed.receipt.size_bytes,
        tasks=driven.tally.tasks,
        passes=driven.tally.passes,
        posts=landed.posts,
        seconds=seconds,
        kept_rows=driven.kept_rows,
        kept_seconds=driven.kept_seconds,
        dropped_rows=driven.tally.dropped_rows,
        withdrawn_rows=driven.tally.withdrawn_rows,
        io=dict(driven.tally.io),
        copied_files=driven.tally.copied_files,
        rows_by_code=dict(driven.rows_by_code),
        quarantined_rows=driven.quarantined_rows,
        cost_by_epoch=dict(driven.cost_by_epoch),
        kept_cost=driven.kept_cost,
        lost_cost=driven.lost_cost,
        input_compared=driven.input_compared,
        still_in_table="yes" if landed.present else "unknown",
    )
