"""Rehearsal: what a write would do, seen before anything is visible in the table."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn, cast

import pyarrow as pa

from holdfast.engine.options import MissingColumns, Mode, WriteOptions
from holdfast.engine.passes import raise_problems
from holdfast.engine.ports import Submitter
from holdfast.errors import (
    RunMismatchError,
    RunNotReadyError,
    SettingsError,
    TableChangedError,
)
from holdfast.inputs import open_input
from holdfast.ledger.layout import RunLayout
from holdfast.ledger.ledger import Ledger
from holdfast.ledger.parts import read_work
from holdfast.ledger.run_log import RunFile
from holdfast.ledger.task_log import JobLedger
from holdfast.model.costs import readable_amount
from holdfast.model.identity import Identity
from holdfast.model.records import Ready
from holdfast.model.report import Report, counted, readable_time
from holdfast.opening import active_session, open_table
from holdfast.progress.events import Listener, refusal_heard
from holdfast.sinks.base import Filter, Sink, TableView
from holdfast.sinks.targets import Target, asked_target, target_of
from holdfast.sources.materialized import Materialized
from holdfast.sources.scans import Scan
from holdfast.spark import SparkDataFrame, SparkSession
from holdfast.storage.objects import ObjectStorage
from holdfast.text import printable
from holdfast.worker.probe import TrialPlan, Tried
from holdfast.worker.reports import TaskReport
from holdfast.worker.transforms import BatchFormat, PerRow, PerWorker, Transform
from holdfast.writing import Writing

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


class _NoSpark:
    """In place of what submits jobs, for a commit that most likely needs none."""

    def __getattr__(self, name: str) -> NoReturn:
        what = "no Spark session is active, and others have changed the table since the write"
        raise SettingsError(what=what, cure="start one first")


class StagedInput:
    """Nothing to read: all rows are staged."""

    key: tuple[str, ...] = ()
    identity = ""
    compares = False
    reads: tuple[str, ...] = ()

    def __init__(self, session: SparkSession | None) -> None:
        """Keep the session, which only an upsert or a filter needs."""
        self.session = session

    @property
    def submitter(self) -> Submitter:
        """What submits jobs that do not read the input, if there are any."""
        from holdfast.spark.dataframe import DataFrameSubmitter  # noqa: PLC0415 - pyspark is optional.

        if self.session is None:
            return cast("Submitter", _NoSpark())
        return DataFrameSubmitter(self.session.range(0), ("id",))

    def settle(self, ledger: Ledger, *, compare: bool) -> None:
        """Do nothing: what was read is staged."""

    def schema(self) -> pa.Schema:
        """Return no columns."""
        return pa.schema([])


class Rehearsal:
    """The methods of a run that show what it would do, and do it after a look."""

    _run_id: str
    _version: str
    _target: Target | None
    # What this object's own write was to do; None in another process.
    _asked: Identity | None
    _progress: bool | None
    _listeners: tuple[Listener, ...]
    # Options shared by every write of this run.
    _common: Mapping[str, Any]

    @abstractmethod
    def _options(self, given: Mapping[str, Any]) -> WriteOptions: ...

    @abstractmethod
    def _known_ledger(self, session: SparkSession | None) -> Ledger: ...

    @abstractmethod
    def _open_sink(self, to: str | Target | None) -> Callable[[Identity], Sink]: ...

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
        sink = open_table(asked_target(to), given.session, only_looks=True)
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

    def staged_rows(self, *, to: str | Target | None = None) -> SparkDataFrame:
        """Return the rows that `commit` would add, as a DataFrame that executors read.

        Only a write with `commit=False` leaves them. Columns of types that Spark lacks get the
        nearest: a UUID is binary, a time of day a string. Of an upsert, these are the rows to
        write; those that only delete are not among them.

        Args:
            to: The table, if this object has not written it, and the session's settings do not
                lead to it.

        Raises:
            RunNotReadyError: The run is not staged as a whole, has landed, or was aborted.
            RunMismatchError: The table or its branch is not the run's.
            SettingsError: There is no Spark session.
            UnsupportedTableError: The run writes blobs, or columns of rows that are there.
            StoreError: The ledger is damaged or does not answer.
        """
        session = active_session()
        if session is None:
            raise SettingsError(what="no Spark session is active", cure="start one first")
        from holdfast.spark.dataframe import staged_frame  # noqa: PLC0415 - pyspark is optional.

        ledger = self._known_ledger(session)
        run_file, ready = ready_of(ledger)
        sink = self._open_sink(to)(run_file.identity)
        view = sink.load()
        self._refuse_other(run_file.identity, table_uuid=view.uuid, **self._version_now)
        work = read_work(ledger.storage, ledger.layout, ready.work)
        files = [file for group in work.adds if not group.deleted_keys for file in group.files]
        reader = sink.staged_reader(view)
        return staged_frame(session, reader, [file for file in files if file.rows])

    def commit(
        self,
        *,
        to: str | Target | None = None,
        mode: Mode = "append",
        where: Filter | None = None,
        on: str | Sequence[str] | None = None,
        delete_column: str | None = None,
    ) -> Report:
        """Commit what a write with `commit=False` has staged, once; nothing is computed.

        Runs on the driver, in the process of the write or any other. Needs a Spark session only
        for an upsert or an overwrite with a filter, if others have changed the table meanwhile.
        Calling again is safe. The input is not compared: rows that it has gained since are left
        out, and a later start of the script says so.

        An object that has not made the write itself must be given what the write was given: a
        ledger, to whose store others may write, decides neither which table is written nor which
        rows go. An object that has made it needs no argument, and looks only at `to`.

        Args:
            to: The table; with its branch, if the write was to one: `hf.IcebergTable(...,
                branch=...)`.
            mode: What the write was: "append", "overwrite", "overwrite_partitions" or "upsert".
            where: Its filter, if it was an overwrite with one.
            on: Its key, if it was an upsert.
            delete_column: As the upsert was given it.

        Raises:
            SettingsError: The ledger asks for another table, or more, than this call.
            RunNotReadyError: The run is not staged as a whole.
            RunMismatchError: The table or its branch is not the run's, or the rows were staged
                under another `version=`.
            RunAbortedError: The run was aborted.
            CommitError: The table could not be written; staged files are kept.
            StoreError: The ledger is damaged or does not answer.
        """
        started, session = time.monotonic(), active_session()
        with refusal_heard(self._listeners, self._run_id, to or self._target):
            ledger = self._known_ledger(session)
            run_file, ready = ready_of(ledger, or_landed=True)
            identity = run_file.identity
            self._refuse_other(identity, **self._version_now)
            now = WriteOptions(where=where, on=on, delete_column=delete_column)
            self._refuse_unasked("commit", identity, to, now, mode)
            target = self._target_for(to, identity)
            sink = self._open_sink(to)(identity)
            view = sink.load()
            if identity.on:
                _refuse_other_key(sink, view, identity.on)
        writing = Writing(
            target=target,
            create=None,
            options=commit_options(identity, ready, self._common),
            given=StagedInput(session),
            ledger=ledger,
            sink=sink,
            view=view,
            identity=replace(identity, table_uuid=view.uuid),
            ready=ready,
        )
        return writing.run(
            None,
            lambda report: replace(report, seconds=time.monotonic() - started),
            progress=self._progress,
            listeners=self._listeners,
        )

    def _refuse_unasked(
        self,
        call: str,
        identity: Identity,
        to: str | Target | None,
        now: WriteOptions,
        mode: Mode | None = None,
    ) -> None:
        """Refuse a write that only the ledger asks for: others may write to its store.

        Args:
            call: The method that writes.
            identity: What the ledger says that the run does.
            to: The table that the caller names.
            now: The key, and with a mode the filter, that the caller names. If this object has made
                the run's write, it knows all of this itself.
            mode: The mode that the caller names; None if failed rows are retried.

        Raises:
            RunMismatchError: It is not what this object's own write was to do.
            SettingsError: The caller has not asked for it.
        """
        if self._asked is not None:
            own = {name: getattr(self._asked, name) for name in _DECISIVE}
            self._refuse_other(identity, **own)
            return
        asked: dict[str, Any] = {} if mode is None else {"mode": mode, "where": now.where_text}
        asked |= {"on": now.on_columns, "delete_column": now.delete_column or ""}
        recorded = {name: getattr(identity, name) for name in asked}
        if isinstance(to, str):  # It names no branch, so the ledger must not choose one.
            self._refuse_other(identity, branch="main")
        if to is not None and recorded == asked:
            return
        more = [
            f"{name}={_given(value)}" for name, value in recorded.items() if value not in _USUAL
        ]
        raise SettingsError(
            what=f"only the ledger of run {self._run_id!r} says that it is to {identity.verb} "
            f"{identity.table}, and other programs may write to the ledger's store",
            cure="look into the script that has made the write. If it does that, name it here: "
            f"run.{call}({', '.join(['to=...', *more])})",
        )

    def _target_for(self, to: str | Target | None, identity: Identity) -> Target:
        """Return the table that is given, or was written, or else the one that the ledger names.

        Raises:
            RunMismatchError: It is given with another branch than the run's.
        """
        if not (given := to or self._target):
            return target_of(identity.table, identity.branch)
        target = asked_target(given, identity.branch)
        self._refuse_other(identity, branch=target.branch)
        return target

    def _refuse_other_branch(self, ledger: Ledger, to: str | Target | None) -> None:
        """Refuse a branch that is not the run's, before the table is looked for there.

        Raises:
            RunMismatchError: It is not.
        """
        if (run_file := ledger.run_file()) is not None:
            self._target_for(to, run_file.identity)

    @property
    def _version_now(self) -> dict[str, str]:
        """The version, if one is given: without, any is taken."""
        return {"version": self._version} if self._version else {}

    def _refuse_other(self, identity: Identity, **now: Any) -> None:  # noqa: ANN401 - of any field.
        """Refuse a call whose table, branch or version is not the run's.

        Args:
            identity: What the run was started as.
            **now: Parts of it as they are in this call.

        Raises:
            RunMismatchError: They are not the run's.
        """
        if differences := replace(identity, **now).differences(identity):
            raise RunMismatchError(run_id=self._run_id, differences="; ".join(differences))


# What decides which rows of which table a run changes.
_DECISIVE = ("table_uuid", "branch", "mode", "where", "on", "delete_column")
# What need not be named.
_USUAL = ("append", "", ())


def _given(value: str | tuple[str, ...]) -> str:
    """Return a part of an identity as a user gives it."""
    if isinstance(value, str):
        return repr(value)
    return repr(value[0] if len(value) == 1 else list(value))


def _refuse_other_key(sink: Sink, view: TableView, on: Sequence[str]) -> None:
    """Stop if key columns are gone, or of another kind, since rows were staged for them.

    Raises:
        TableChangedError: They are.
    """
    try:
        sink.key_meaning(view, on)
    except SettingsError as error:  # Here it is no slip of the user's.
        raise TableChangedError(table=sink.name, change=error.what) from error


def ready_of(ledger: Ledger, *, or_landed: bool = False) -> tuple[RunFile, Ready]:
    """Return the run's identity, and what is staged.

    Args:
        ledger: The run's ledger.
        or_landed: Whether the run may have landed.

    Raises:
        RunNotReadyError: No start has left the commit to its user, or a later one goes on.
    """
    ledger.log.refresh()
    run_file, ready = ledger.run_file(), ledger.log.ready
    if ledger.log.receipt is not None and (not or_landed or ready is None):
        raise RunNotReadyError(run_id=ledger.run_id, reason="it has landed: read the table")
    if ledger.log.is_aborted and not or_landed:
        raise RunNotReadyError(run_id=ledger.run_id, reason="it was aborted")
    if run_file is None or ready is None:
        reason = "no write with commit=False has ended, or a later start has changed what is staged"
        raise RunNotReadyError(run_id=ledger.run_id, reason=reason)
    return run_file, ready


_KEPT = ("allow_empty", "isolation_level", "write_mode")


def commit_options(identity: Identity, ready: Ready, common: Mapping[str, Any]) -> WriteOptions:
    """Return the options of a write as far as its commit needs them.

    Args:
        identity: The run's identity.
        ready: What the write has left.
        common: Options shared by every write of the run.
    """
    chosen: dict[str, Any] = {name: getattr(ready, name) for name in _KEPT}
    return WriteOptions(
        **{**common, **chosen, "verify_input": False, "if_committed": "return"},
        where=WriteOptions.where_of(identity.where),
        on=identity.on or None,
        delete_column=identity.delete_column or None,
    )


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
