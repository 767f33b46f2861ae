"""The verbs for columns of a Lance dataset: what they are called with, and how it is opened."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from holdfast.engine.columns import ColumnRows
from holdfast.engine.options import Duration, Mode, WriteOptions
from holdfast.engine.ports import Submitter
from holdfast.errors import SettingsError
from holdfast.ledger.ledger import Ledger
from holdfast.model.coverage import Pins
from holdfast.model.identity import Identity
from holdfast.model.report import Report
from holdfast.opening import active_session, open_columns
from holdfast.progress.events import Listener, refusal_heard
from holdfast.sinks.targets import LanceTable, Target, asked_target
from holdfast.sources.base import checked_columns
from holdfast.sources.filters import as_expression
from holdfast.spark import SparkSession
from holdfast.worker.task import OnError
from holdfast.worker.transforms import BatchFormat, PerRow, PerWorker, Transform
from holdfast.writing import Writing


class ColumnVerbs:
    """The verbs of a run that compute columns for rows that are in a Lance dataset already."""

    _run_id: str
    _version: str
    _progress: bool | None
    _listeners: tuple[Listener, ...]
    # The table of this object's write.
    _target: Target | None

    def add_columns(  # noqa: PLR0913 - each is a choice of the user's.
        self,
        *,
        to: str | LanceTable,
        transform: Transform | PerWorker | PerRow,
        read_columns: Sequence[str],
        schema: pa.Schema | None = None,
        batch_format: BatchFormat = "arrow",
        batch_rows: int | None = None,
        checkpoint_every: Duration | None = "30s",
        retries: int = 2,
        on_error: OnError = "raise",
        max_errors: float = 0.1,
        cost: float | Callable[[Any], float] = 0.0,
    ) -> Report:
        """Compute new columns for all rows of a Lance dataset, in one atomic commit.

        Runs on the driver; the transform runs on the executors. Nothing but the new columns is
        written. Call it again with the same run id to resume: rows that are done are not computed
        again. Rows that others append meanwhile get NULL; others that they move or change
        meanwhile are computed again.

        Args:
            to: A Lance dataset's URI, or `hf.LanceTable`.
            transform: As for `append`. It returns the new columns, and as many rows as it gets, in
                the same order.
            read_columns: The columns that the transform gets; no other is read.
            schema: The new columns. By default those that the transform returns for the first
                eight rows, which it is called with once more for this.
            batch_format: As for `append`.
            batch_rows: As for `append`.
            checkpoint_every: How much work of each task a kill may cost. If None, only rows of
                closed files are kept.
            retries: How often rows are retried after their transform failed.
            on_error: "raise": a failing row fails the job; "quarantine": the row is set aside, and
                its new columns are NULL.
            max_errors: How many rows may be set aside: a number, or a fraction of the rows.
            cost: As for `append`.

        Raises:
            SettingsError: An argument cannot be used, or the dataset has such a column already.
            StoreError: The store cannot hold a ledger, or does not answer.
            RunError: The id belongs to another job, or another driver has taken over.
            JobError: The work on the executors failed; nothing was committed.
            CommitError: The dataset could not be written; computed values are kept.
        """
        return self._columns("add_columns", to, self._options(locals()), read_columns, schema, None)

    def update_columns(  # noqa: PLR0913 - each is a choice of the user's.
        self,
        *,
        to: str | LanceTable,
        transform: Transform | PerWorker | PerRow,
        read_columns: Sequence[str],
        where: Any = None,  # noqa: ANN401 - an expression, or triples.
        schema: pa.Schema | None = None,
        batch_format: BatchFormat = "arrow",
        batch_rows: int | None = None,
        checkpoint_every: Duration | None = "30s",
        retries: int = 2,
        on_error: OnError = "raise",
        max_errors: float = 0.1,
        cost: float | Callable[[Any], float] = 0.0,
    ) -> Report:
        """Compute columns of a Lance dataset again, in one atomic commit.

        Runs on the driver; the transform runs on the executors. Only these columns are written.
        Call it again with the same run id to resume. Rows for which `where` is not true keep their
        values, and so do rows that fail and are set aside, and rows that others append meanwhile.

        Args:
            to: A Lance dataset's URI, or `hf.LanceTable`.
            transform: As for `add_columns`. It returns columns that the dataset has.
            read_columns: The columns that the transform gets.
            where: The rows that are computed: an expression (`pc.field("caption").is_null()`), or
                a list of triples such as `("price", ">", 3)`. By default all.
            schema: The columns that the transform returns, if it is not to be called once more to
                find out. Their types are those of the dataset.
            batch_format: As for `append`.
            batch_rows: As for `append`.
            checkpoint_every: As for `add_columns`.
            retries: As for `add_columns`.
            on_error: "raise": a failing row fails the job; "quarantine": the row is set aside.
            max_errors: As for `add_columns`.
            cost: As for `append`.

        Raises:
            SettingsError: An argument cannot be used, or the dataset has no such column.
            StoreError: The store cannot hold a ledger, or does not answer.
            RunError: The id belongs to another job, or another driver has taken over.
            JobError: The work on the executors failed; nothing was committed.
            CommitError: The dataset could not be written; computed values are kept.
        """
        given = {name: value for name, value in locals().items() if name != "where"}
        options = self._options(given)
        return self._columns("update_columns", to, options, read_columns, schema, where)

    @abstractmethod
    def _options(self, given: Mapping[str, Any]) -> WriteOptions: ...

    @abstractmethod
    def _ledger(self, session: SparkSession | None) -> Ledger: ...

    def _columns(  # noqa: PLR0913, PLR0917 - what the two verbs do not put into the options.
        self,
        mode: Mode,
        to: str | LanceTable,
        options: WriteOptions,
        read_columns: Sequence[str],
        schema: pa.Schema | None,
        where: Any,  # noqa: ANN401
    ) -> Report:
        started = time.monotonic()
        with refusal_heard(self._listeners, self._run_id, to):
            given = ColumnInput(mode, to, options, read_columns, schema, where)
            writing = given.writing(self._ledger(given.session), self._version)
        self._target = writing.target

        def completed(report: Report) -> Report:
            return replace(
                report,
                rows_again=given.rows.rows_again,
                rows_without_columns=given.sink.rows_without_columns(),
                seconds=time.monotonic() - started,
            )

        return writing.run(None, completed, progress=self._progress, listeners=self._listeners)


class ColumnInput:
    """The rows of a dataset that columns are computed for, and the dataset itself."""

    key: tuple[str, ...] = ()
    compares = True

    def __init__(  # noqa: PLR0913, PLR0917 - what the user gives.
        self,
        mode: Mode,
        to: str | LanceTable,
        options: WriteOptions,
        read_columns: Sequence[str],
        schema: pa.Schema | None,
        where: Any,  # noqa: ANN401
    ) -> None:
        """Check the arguments, and open the dataset; nothing is read yet.

        Raises:
            SettingsError: An argument cannot be used, or there is no Spark session.
        """
        from holdfast.spark.jobs import SparkJobs  # noqa: PLC0415 - pyspark is optional.

        target = asked_target(to)
        if not isinstance(target, LanceTable):
            raise SettingsError(
                what=f"to={to!r} is not a Lance dataset",
                cure="give its URI or an hf.LanceTable; in Iceberg, read the rows and overwrite",
            )
        if options.transform is None:
            raise SettingsError(what="transform=None", cure="give a function of a batch")
        columns = checked_columns(read_columns if read_columns is not None else [])
        if not (schema is None or isinstance(schema, pa.Schema)):
            raise SettingsError(what=f"schema={schema!r}", cure="give a pyarrow.Schema, or None")
        self.session = active_session()
        if self.session is None:
            raise SettingsError(what="no Spark session is active", cure="start one first")
        self.mode, self.target, self.options = mode, target, options
        self.sink, scan = open_columns(target, self.session, columns or (), as_expression(where))
        self.identity = scan.identity
        self.reads: tuple[str, ...] = (self.sink.name,)
        self._is_update = mode == "update_columns"
        self.rows = ColumnRows(
            scan, SparkJobs(self.session), options, schema, self._fitted, self._begin
        )

    @property
    def submitter(self) -> Submitter:
        """The submitter that reads the rows, once they are settled."""
        return self.rows.submitter

    def settle(self, ledger: Ledger, *, compare: bool) -> None:
        """Pin rows and columns, or take those that an earlier start has pinned."""
        self.rows.settle(ledger, compare=compare)

    def schema(self) -> pa.Schema:
        """Return no column: the dataset exists."""
        return pa.schema([])

    def writing(self, ledger: Ledger, version: str) -> Writing:
        """Return the write, with the dataset open.

        Raises:
            HoldfastError: The dataset cannot be opened.
        """
        from holdfast.spark import session as spark  # noqa: PLC0415 - pyspark is optional.

        view, semantics = self.sink.load_writable(), spark.semantics(self.session)
        return Writing(
            target=self.target,
            create=None,
            options=replace(self.options, verify_input="keys"),
            given=self,
            ledger=ledger,
            sink=self.sink,
            view=view,
            identity=Identity(
                table=self.sink.name,
                table_uuid=view.uuid,
                branch=self.target.branch,
                mode=self.mode,
                key=(),
                input=self.identity,
                version=version,
                session_time_zone=semantics["session_time_zone"],
                ansi_mode=semantics["ansi_mode"],
            ),
            moving=self.rows,
        )

    def _fitted(self, schema: pa.Schema | None) -> pa.Schema:
        return self.sink.fit(schema, is_update=self._is_update)

    def _begin(self, schema: pa.Schema, pins: Pins) -> None:
        self.sink.begin(schema, pins, is_update=self._is_update)
