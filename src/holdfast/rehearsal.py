"""Rehearsal: what a write would do, seen before anything is visible in the table."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from holdfast.engine.options import MissingColumns, WriteOptions
from holdfast.engine.passes import raise_problems
from holdfast.errors import SettingsError
from holdfast.inputs import open_input
from holdfast.ledger.layout import RunLayout
from holdfast.ledger.task_log import JobLedger
from holdfast.model.report import counted, readable_amount, readable_time
from holdfast.opening import open_table
from holdfast.sinks.base import Filter
from holdfast.sinks.targets import Target, asked_target
from holdfast.sources.materialized import Materialized
from holdfast.sources.scans import Scan
from holdfast.spark import SparkDataFrame
from holdfast.storage.objects import ObjectStorage
from holdfast.text import printable
from holdfast.worker.probe import TrialPlan, Tried
from holdfast.worker.reports import TaskReport
from holdfast.worker.transforms import BatchFormat, PerRow, PerWorker, Transform

_ROWS_SHOWN, _FAILURES_SHOWN, _WIDTH_MAX = 5, 3, 160


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What became of a few rows, and what all would cost. `print(trial)` shows it."""

    table: str
    # The output as the table would get it, and the rows that failed: `key`, `input`, `error`.
    rows: pa.Table
    failed: pa.Table | None
    # How many input rows were tried, of how many; and how many rows they made.
    tried_rows: int
    input_rows: int
    output_rows: int
    cost: float
    seconds: float

    @property
    def cost_of_all(self) -> float | None:
        """What all rows would cost, if they cost on average what these did."""
        return self.cost / self.tried_rows * self.input_rows if self.tried_rows else None

    def __str__(self) -> str:
        """Return the trial as lines of `name  value`, with some of the rows."""
        failed = self.failed.num_rows if self.failed is not None else 0
        lines = [
            ("table", f"{self.table}, which is not changed"),
            ("tried", f"{self.tried_rows:,} of {counted(self.input_rows, 'row')}"),
            ("output", f"{counted(self.output_rows, 'row')} that fit the table"),
        ]
        if failed:
            lines.append(("failed", counted(failed, "row")))
        if self.cost and self.cost_of_all is not None:
            whole = readable_amount(self.cost_of_all)
            lines.append(("cost", f"{readable_amount(self.cost)}; about {whole} for all rows"))
        lines.append(("time", f"{readable_time(self.seconds)} in one task"))
        lines += [("row", row) for row in _shown(self.rows, _ROWS_SHOWN)]
        if self.failed is not None:
            lines += [("error", row) for row in _shown(self.failed, _FAILURES_SHOWN)]
        return "\n".join(f"  {name:<9} {printable(value)}" for name, value in lines)


def _shown(rows: pa.Table, most: int) -> Iterator[str]:
    """Yield the first rows, each on a line."""
    for row in rows.slice(0, most).to_pylist():
        text = ", ".join(f"{name}={value!r}" for name, value in row.items())
        yield text if len(text) <= _WIDTH_MAX else f"{text[: _WIDTH_MAX - 1]}…"


class Rehearsal:
    """The methods of a run that show what it would do."""

    @abstractmethod
    def _options(self, given: Mapping[str, Any]) -> WriteOptions: ...

    def try_rows(  # noqa: PLR0913 - each is a choice of the user's.
        self,
        source: SparkDataFrame | Scan | Materialized,
        *,
        to: str | Target,
        transform: Transform | PerWorker | PerRow,
        key: str | Sequence[str] | None = None,
        rows: int = 20,
        batch_format: BatchFormat = "arrow",
        batch_rows: int | None = None,
        one_to_one: bool = True,
        missing_columns: MissingColumns = "error",
        where: Filter | None = None,
        on: str | Sequence[str] | None = None,
        delete_column: str | None = None,
        cost: float | Callable[[Any], float] = 0.0,
    ) -> Trial:
        """Transform a few rows, and check them against the table; nothing is written anywhere.

        Runs in one task on an executor, which calls the transform for these rows only. Safe to call
        again: each call pays for the rows again, and no ledger knows of them. Rows that fail are
        returned, as with `on_error="quarantine"`.

        Args:
            source: As for `append`, but not `hf.materialize(df)`.
            to: A table that exists.
            transform: As for `append`.
            key: As for `append`.
            rows: How many rows to try: those that come first.
            batch_format: As for `append`.
            batch_rows: As for `append`.
            one_to_one: As for `append`.
            missing_columns: As for `append`.
            where: As for `overwrite`.
            on: As for `upsert`.
            delete_column: As for `upsert`.
            cost: As for `append`.

        Raises:
            SettingsError: An argument or a setting cannot be used.
            JobError: The input could not be read, or no row fits the table.
            CommitError: The table cannot be read.
        """
        if type(rows) is not int or rows < 1:
            raise SettingsError(what=f"rows={rows!r}", cure="give a whole number of at least 1")
        options = self._options(locals())
        given = open_input(source, key if key is not None or on is None else options.on_columns)
        sink = open_table(asked_target(to), given.session)
        plan = TrialPlan(
            transform=options.transform,
            batch_rows=options.batch_rows,
            key=given.key,
            writer=sink.writer_spec(
                sink.load(),
                None if options.missing_columns == "null" else frozenset(),
                options.where,
                options.on_columns,
                options.delete_column or "",
            ),
            ledger=_NO_LEDGER,
            job_nonce="trial",
            one_to_one=options.one_to_one,
            batch_format=options.batch_format,
            on_error="quarantine",
            cost=options.cost,
            limits=options.limits,
            rows_max=rows,
        )
        return _trial(sink.name, plan.writer.schema, *given.sample(plan))


def _trial(table: str, schema: pa.Schema, reports: Sequence[TaskReport], input_rows: int) -> Trial:
    """Return what the tasks of a trial have found.

    Raises:
        JobError: They could not try the rows.
    """
    raise_problems(reports)
    tried = [Tried.from_json(text) for report in reports for text in report.results]
    failed = [each.failed for each in tried if each.failed is not None]
    output = [each.output for each in tried]
    return Trial(
        table=table,
        rows=pa.concat_tables(output) if output else schema.empty_table(),
        failed=pa.concat_tables(failed) if failed else None,
        tried_rows=sum(each.input_rows for each in tried),
        input_rows=input_rows,
        output_rows=sum(each.output_rows for each in tried),
        cost=sum(each.cost for each in tried),
        seconds=max((each.seconds for each in tried), default=0.0),
    )


# A trial has a ledger of its own on the executor, and leaves nothing in the run's.
_NO_LEDGER = JobLedger(
    storage=ObjectStorage({}),
    layout=RunLayout(folder="file:///nowhere"),
    claim=0,
    tasks="",
    job="",
    next_number=0,
    planned_at=0.0,
)
