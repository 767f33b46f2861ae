"""Columns for rows that are there: which rows, and which columns, fixed when the run begins.

A run that computes columns reads the dataset that it writes. Its rows are pinned like those of a
scan. The columns are those that the user names, or those of the first rows that the transform was
called with; the record of the pins holds them, and no later start asks again. If others change the
dataset so that rows lack a value, these are pinned behind the others, and the run goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import pyarrow as pa

from holdfast.engine.options import WriteOptions
from holdfast.engine.passes import raise_problems
from holdfast.engine.ports import Jobs
from holdfast.engine.scan_input import ScanRows
from holdfast.errors import LedgerDamagedError, RunMismatchError
from holdfast.failpoints import failpoint
from holdfast.ledger.ledger import Ledger, log_step
from holdfast.ledger.parts import read_pins, write_pins
from holdfast.ledger.row_files import KeyFiles
from holdfast.model.coverage import Pins, Ranges, Span
from holdfast.model.records import Pinned
from holdfast.sinks.base import RowsMovedError
from holdfast.sources.base import PinnedScan
from holdfast.worker.probe import ProbePlan, decode_schema, encode_schema


class ColumnScan(PinnedScan, Protocol):
    """The rows that columns are computed for."""

    def still_there(self, pins: Pins, left: Ranges) -> Pins:
        """Return the pins in which all rows that are left can be read; the same if they can.

        Raises:
            InputChangedError: A fragment is not the one that was pinned.
        """

    def pin_again(self, pins: Pins, version: int, rows: dict[int, list[Span]]) -> Pins:
        """Return the pins with rows of a later version behind them.

        Raises:
            InputChangedError: The version is gone.
        """


# Fits columns to the dataset: returns them as they will be in it, or raises. None: there are no
# rows that would show them.
Fit = Callable[[pa.Schema | None], pa.Schema]


class ColumnRows:
    """The input of a run that computes columns."""

    def __init__(  # noqa: PLR0913, PLR0917 - the parts of such an input.
        self,
        scan: ColumnScan,
        jobs: Jobs,
        options: WriteOptions,
        schema: pa.Schema | None,
        fit: Fit,
        begin: Callable[[pa.Schema, Pins], None],
    ) -> None:
        """Keep the parts; nothing is read yet.

        Args:
            scan: The dataset's rows.
            jobs: Runs tasks.
            options: The user's options.
            schema: The new columns, if the user names them.
            fit: Fits columns to the dataset; raises if they do not fit.
            begin: Tells the sink which columns are computed, for which rows.
        """
        self._scan, self._jobs, self._options = scan, jobs, options
        self._given, self._fit, self._begin = schema, fit, begin
        self._pins: Pins | None = None
        self._schema = pa.schema([])
        self._submitter: ScanRows | None = None
        # How many rows others have made the run compute again.
        self.rows_again = 0

    @property
    def submitter(self) -> ScanRows:
        """The submitter that reads the rows, once they are settled."""
        assert self._submitter is not None  # noqa: S101 - the engine settles it first.
        return self._submitter

    def settle(self, ledger: Ledger, *, compare: bool) -> None:  # noqa: ARG002 - see `refresh`.
        """Pin rows and columns, or take those that an earlier start has pinned.

        Raises:
            SettingsError: The columns do not fit the dataset, or are not known.
            RunMismatchError: This start names other columns.
            TransformError: The transform failed on its first rows.
            StoreError: The ledger is damaged or does not answer.
        """
        known = ledger.log.pinned
        if known is None:
            pins = self._scan.pin()
            self._take(pins)
            schema = self._given if self._given is not None else self._probed(pins)
            self._schema = self._fit(schema)
            self._record(ledger, pins)
        else:
            pins = read_pins(ledger.storage, ledger.layout, known.pins)
            self._schema = _decoded(ledger, known.columns)
            self._refuse_other_columns(ledger)
            self._take(pins)
        self._begin(self._schema, pins)

    def refresh(self, ledger: Ledger, finished: KeyFiles) -> bool:
        """Pin rows that are left to do in a newer version, if theirs was cleaned up; say if so.

        Rows whose fragment is gone with it are left out: they are elsewhere now, as rows that
        others have moved.

        Raises:
            InputChangedError: A fragment is not the one that was pinned.
            StoreError: The ledger is damaged or does not answer.
        """
        assert self._pins is not None  # noqa: S101 - the input is settled.
        pins = self._scan.still_there(self._pins, self.submitter.left(finished))
        if pins is self._pins:
            return False
        less = self._pins.whole.rows - pins.whole.rows
        log_step(ledger.run_id, f"a pinned version was cleaned up: {less:,} rows are elsewhere")
        self._record(ledger, pins)
        self._take(pins)
        self._begin(self._schema, pins)
        return True

    def extend(self, ledger: Ledger, moved: RowsMovedError) -> None:
        """Pin rows that others have moved or brought back, behind the others.

        Raises:
            InputChangedError: They have been moved again.
            StoreError: The ledger is damaged or does not answer.
        """
        assert self._pins is not None  # noqa: S101 - the input is settled.
        rows = {number: list(spans) for number, spans in moved.rows.items()}
        pins = self._scan.pin_again(self._pins, moved.version, rows)
        more = pins.whole.rows - self._pins.whole.rows
        log_step(ledger.run_id, f"others have changed the table: {more:,} rows are done again")
        self.rows_again += more
        self._record(ledger, pins)
        self._take(pins)
        self._begin(self._schema, pins)

    def _take(self, pins: Pins) -> None:
        self._pins = pins
        if self._submitter is None:
            self._submitter = ScanRows(self._scan, pins, self._jobs)
        else:
            self._submitter.pins = pins

    def _record(self, ledger: Ledger, pins: Pins) -> None:
        name = f"pins-{ledger.ports.new_nonce()}.parquet"
        failpoint("before-pins")
        reference = write_pins(ledger.storage, ledger.layout, name, pins)
        failpoint("after-pins")
        columns = encode_schema(self._schema)
        ledger.log.append(Pinned(pins=reference, rows=pins.whole.rows, columns=columns))

    def _probed(self, pins: Pins) -> pa.Schema | None:
        """Return the columns that the transform returns for the first rows; None without rows.

        Raises:
            TransformError: The transform failed.
            JobError: The job could not be run.
        """
        slices = [part for item in pins.items(pins.whole, 1, 1 << 60) for part in item]
        plan = ProbePlan(
            transform=self._options.transform,
            batch_format=self._options.batch_format,
            reader=self._scan.reader(pins),
            slices=slices,
            sets_aside=self._options.on_error == "quarantine",
        )
        reports = self._jobs.items(plan, ["probe"]) if slices else []
        raise_problems(reports)
        found = [text for report in reports for text in report.results]
        return decode_schema(found[0]) if found else None

    def _refuse_other_columns(self, ledger: Ledger) -> None:
        if self._given is None or self._given.equals(self._schema):
            return
        then, now = _described(self._schema), _described(self._given)
        differences = f"it computes {then}, but this start's schema= is {now}"
        raise RunMismatchError(run_id=ledger.run_id, differences=differences)


def _decoded(ledger: Ledger, text: str) -> pa.Schema:
    """Return the pinned columns.

    Raises:
        LedgerDamagedError: They cannot be read.
    """
    try:
        return decode_schema(text)
    except (ValueError, OSError, pa.ArrowException) as error:
        reason = "its columns are not an Arrow schema"
        raise LedgerDamagedError(uri=ledger.layout.log, reason=reason) from error


def _described(schema: pa.Schema) -> str:
    return ", ".join(f"{column.name} ({column.type})" for column in schema)
