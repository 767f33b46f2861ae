"""Drive one start of a run from claim to receipt."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from typing import Any

from holdfast._version import __version__
from holdfast.engine.commit import Commit, Landed
from holdfast.engine.ports import Ports, Submitter
from holdfast.engine.stage import stage
from holdfast.errors import (
    InputChangedError,
    NullKeyError,
    RunMismatchError,
    SettingsError,
    StagedFileMissingError,
)
from holdfast.ledger.layout import RunLayout
from holdfast.ledger.parts import read_input_sums, read_staged, write_staged
from holdfast.ledger.probe import probe_store
from holdfast.ledger.run_file import open_run_file
from holdfast.ledger.run_log import RunLog
from holdfast.model.identity import Identity
from holdfast.model.input_sums import InputSums
from holdfast.model.records import Claim, PartReference
from holdfast.sinks.base import Sink, TableView
from holdfast.storage.port import Storage
from holdfast.worker.task import RowCount, TaskPlan
from holdfast.worker.transforms import PerWorker, Transform


@dataclass(frozen=True, slots=True, kw_only=True)
class Driven:
    """How one start of a run ended."""

    landed: Landed
    tasks: int
    # True when an earlier start had already landed.
    was_landed: bool
    # True when it published what an earlier start had staged.
    inherited: bool = False
    # True when the input was measured, and compared with what an earlier start had read.
    input_compared: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """One start of a run."""

    run_id: str
    store: str
    storage: Storage
    sink: Sink
    submitter: Submitter
    ports: Ports

    def append(  # noqa: PLR0913 - each is a choice of the user's.
        self,
        view: TableView,
        identity: Identity,
        *,
        transform: Transform | PerWorker | None,
        batch_rows: int | None,
        rows: RowCount = "same",
        compare: bool = True,
    ) -> Driven:
        """Append the transformed input to the table, once.

        Args:
            view: A fresh look at the table.
            identity: What this start wants the run to be.
            transform: The user's step.
            batch_rows: How many rows it sees at a time.
            rows: Whether it may drop or multiply rows.
            compare: Whether to read the input's keys, and compare them with an earlier start's.

        Raises:
            SettingsError: `batch_rows` or `rows` cannot be used.
            InputChangedError: The tasks saw other rows than the input had before.
        """
        if batch_rows is not None and (type(batch_rows) is not int or batch_rows < 1):
            raise SettingsError(
                what=f"batch_rows={batch_rows!r}", cure="give a whole number of at least 1, or None"
            )
        if rows not in ("same", "any"):
            raise SettingsError(what=f"rows={rows!r}", cure='give "same" or "any"')
        probe_store(self.storage, self.store, self.ports.new_nonce(), sleep=self.ports.sleep)
        layout = RunLayout.of(self.store, self.run_id)
        commit = self._open_ledger(layout, identity, view.schema)
        commit.log.refresh()
        if commit.log.receipt is None:
            commit.log.claim(_our_claim())
        # Before any work: an earlier start may have landed without living to say so. Where it
        # got as far as an intent, only a look later than our claim counts.
        if (landed := commit.look(None if commit.log.intents else view)) is not None:
            compared = compare and self._compare(layout, landed.receipt.staged)
            return Driven(landed=landed, tasks=0, was_landed=True, input_compared=compared)
        self.sink.check(view, view.schema, [])
        if (driven := self._publish_inherited(commit, layout, compare=compare)) is not None:
            return driven
        sums = self._measure() if compare else None
        plan = TaskPlan(
            transform=transform,
            batch_rows=batch_rows,
            key=identity.key,
            writer=self.sink.writer_spec(view),
            job_nonce=self.ports.new_nonce(),
            rows=rows,
        )
        staged = stage(self.submitter, plan)
        if sums is not None and sums.rows != staged.rows_in:
            raise InputChangedError(planned=sums.rows, read=staged.rows_in)
        name = f"staged-{plan.job_nonce}.parquet"
        reference = write_staged(
            self.storage, layout, name, staged.groups, view.schema, input_sums=sums
        )
        landed = commit.publish(staged.groups, reference, view.schema)
        return Driven(
            landed=landed, tasks=staged.tasks, was_landed=False, input_compared=sums is not None
        )

    def _measure(self) -> InputSums:
        """Read the input's keys before any row is paid for.

        Raises:
            NullKeyError: Some rows have no key.
        """
        sums = self.submitter.measure()
        if sums.null_keys:
            raise NullKeyError(rows=sums.null_keys)
        return sums

    def _compare(self, layout: RunLayout, reference: PartReference) -> bool:
        """Compare the input with what it was when the part was staged, if that was measured.

        Raises:
            RunMismatchError: It is another input: its rows would be dropped without a word.
        """
        known = read_input_sums(self.storage, layout, reference)
        if known is None:
            return False
        if difference := known.difference(self.submitter.measure()):
            raise RunMismatchError(run_id=self.run_id, differences=difference)
        return True

    def _open_ledger(self, layout: RunLayout, identity: Identity, schema: dict[str, Any]) -> Commit:
        run_file = open_run_file(
            self.storage,
            layout,
            run_id=self.run_id,
            identity=identity,
            schema=schema,
            nonce=self.ports.new_nonce(),
            sleep=self.ports.sleep,
        )
        log = RunLog(
            run_id=self.run_id,
            layout=layout,
            storage=self.storage,
            new_nonce=self.ports.new_nonce,
            now=self.ports.now,
            sleep=self.ports.sleep,
        )
        return Commit(
            run_id=self.run_id, run_file=run_file, log=log, sink=self.sink, ports=self.ports
        )

    def _publish_inherited(
        self, commit: Commit, layout: RunLayout, *, compare: bool
    ) -> Driven | None:
        """Publish what an earlier start had staged as a whole; None if there is nothing."""
        if not commit.log.intents:
            return None
        reference = commit.log.intents[max(commit.log.intents)].staged
        compared = compare and self._compare(layout, reference)
        groups, schema = read_staged(self.storage, layout, reference)
        try:
            landed = commit.publish(groups, reference, schema)
        except StagedFileMissingError:
            # Somebody's clean-up took a file. The rows are computed again, which costs, but
            # ends; publishing the rest would lose rows.
            return None
        return Driven(
            landed=landed, tasks=0, was_landed=False, inherited=True, input_compared=compared
        )


def _our_claim() -> Claim:
    return Claim(holdfast_version=__version__, host=socket.gethostname(), process_id=os.getpid())
