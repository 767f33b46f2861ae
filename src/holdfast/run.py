"""Run: the public entry point. One run is one write, stable across retries."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from holdfast.columns import ColumnVerbs
from holdfast.engine.claim import Prepared, prepare
from holdfast.engine.cleanup import Aborted, Swept, abort, sweep
from holdfast.engine.options import (
    Duration,
    IfCommitted,
    IfTableChanged,
    IsolationLevel,
    MissingColumns,
    Mode,
    Takeover,
    VerifyInput,
    WriteOptions,
    removes_of,
)
from holdfast.engine.resolve import refuse_doubt
from holdfast.engine.watch import quarantine_chunks, refuse_unknown, status
from holdfast.errors import RunAbortedError, RunUnfinishedError, SettingsError
from holdfast.inputs import key_of_upsert, open_input
from holdfast.ledger.ledger import Ledger, Ports
from holdfast.model.history import RunStatus
from holdfast.model.identity import Identity
from holdfast.model.limits import DEFAULT_LIMITS, Limits
from holdfast.model.report import Report
from holdfast.model.stored import encode_run_id
from holdfast.opening import active_session, open_store, open_table
from holdfast.progress.events import Listener, listeners_of, refusal_heard
from holdfast.rehearsal import Rehearsal
from holdfast.sinks.base import Filter, Sink, WriteMode
from holdfast.sinks.targets import Create, Target, asked_target
from holdfast.sources.materialized import Materialized, materialize
from holdfast.sources.scans import Scan
from holdfast.spark import SparkDataFrame, SparkSession
from holdfast.storage.locations import normalise
from holdfast.worker.task import OnError
from holdfast.worker.transforms import BatchFormat, PerRow, PerWorker, Transform
from holdfast.writing import Writing


class Run(Rehearsal, ColumnVerbs):
    """One exactly-once write, identified by an id that stays the same across retries.

    Args:
        run_id: Your own id; a scheduler's run id works as it is.
        store: The URI under which the run's ledger is kept. By default the session's
            `spark.holdfast.store`, else the `HOLDFAST_STORE` environment variable.
        store_options: Storage options for the store in Iceberg's names (`s3.endpoint`,
            `s3.access-key-id`, ...). By default the session's `spark.holdfast.store.*`, else
            the environment's credential chain.
        version: Your own name for the version of the code. A run resumes only under the version
            that it began with.
        takeover: What a start does while another driver of the run is alive: "wait" until it
            ends, take over "now", or fail ("never").
        if_committed: What a start does if the run has been committed: "compare" the input with
            what was committed, or "return" at once.
        verify_input: How a DataFrame is compared between starts. "keys" reads the key columns
            before the job, and checks that every row is done exactly once. "rows" reads all
            columns, and also notices changed values under the same keys. False skips both. The
            files of a scan are always compared.
        strict_code: Refuse to resume when the transform's code has changed.
        limits: How much memory a worker may use, as `hf.Limits`.
        budget: The most that the answers of all starts may cost together, in the unit of `cost=`.
            Then no further call starts, and the start ends in `BudgetReachedError`; all work is
            kept, and a start with a higher budget goes on.
        progress: Show progress on stderr. By default as a picture in a terminal and in a notebook,
            elsewhere as a line every ten seconds to a minute, in the log if it shows INFO.
        on_event: A function that is called with an `hf.Event` when a start begins, goes on and
            ends, or several: `hf.open_lineage(...)` and `hf.open_telemetry()` return such. They
            run on a thread of their own, and cannot harm the job.

    Raises:
        SettingsError: An argument cannot be used.
    """

    def __init__(  # noqa: PLR0913 - each is a choice of the user's.
        self,
        run_id: str,
        *,
        store: str | None = None,
        store_options: Mapping[str, str] | None = None,
        version: str = "",
        takeover: Takeover = "wait",
        if_committed: IfCommitted = "compare",
        verify_input: VerifyInput = "keys",
        strict_code: bool = False,
        limits: Limits = DEFAULT_LIMITS,
        budget: float | None = None,
        progress: bool | None = None,
        on_event: Listener | Sequence[Listener] | None = None,
    ) -> None:
        """Check and keep the arguments; nothing is read or written yet."""
        encode_run_id(run_id)
        self._run_id = run_id
        self._store = normalise(store) if store is not None else None
        self._store_options = store_options
        self._version = version
        self._progress = progress
        self._listeners = listeners_of(on_event)
        # Options shared by every write of this run.
        self._common: dict[str, Any] = {
            "takeover": takeover,
            "if_committed": if_committed,
            "verify_input": verify_input,
            "strict_code": strict_code,
            "limits": limits,
            "budget": budget,
        }
        WriteOptions(**self._common)  # Reject bad options now, not hours later.
        # The table of this object's write, and what it was to do, for what follows it.
        self._target: Target | None = None
        self._asked: Identity | None = None
        # What `remaining` has claimed and measured, for the write that follows.
        self._prepared: Prepared | None = None
        # The run whose failed rows this one retries.
        self._retry_of = ""

    def __repr__(self) -> str:
        """Show the id and the store, but never the options, which hold credentials."""
        return f"Run({self._run_id!r}, store={self._store!r})"

    def append(  # noqa: PLR0913 - each is a choice of the user's.
        self,
        source: SparkDataFrame | Scan | Materialized,
        *,
        to: str | Target,
        key: str | Sequence[str] | None = None,
        transform: Transform | PerWorker | PerRow | None = None,
        batch_format: BatchFormat = "arrow",
        batch_rows: int | None = None,
        one_to_one: bool = True,
        checkpoint_every: Duration | None = "30s",
        create: Create | None = None,
        missing_columns: MissingColumns = "error",
        retries: int = 2,
        on_error: OnError = "raise",
        max_errors: float = 0.1,
        cost: float | Callable[[Any], float] = 0.0,
        commit: bool = True,
    ) -> Report:
        """Transform rows and append them to a table in one atomic commit, exactly once.

        Runs on the driver; the transform runs on the executors. Call it again with the same run
        id to resume: rows that are done are not computed again, and a commit is never repeated.

        Args:
            source: A Spark DataFrame, classic or Connect; a scan (`hf.scan_parquet`, ...); or
                `hf.materialize(df)`.
            to: `catalog.namespace.table` through the session's settings, `hf.IcebergTable`, a
                Lance dataset's URI, or `hf.LanceTable`.
            key: The column or columns that identify a DataFrame's rows; leave it out for a scan.
            transform: A function of one batch, `hf.per_row(...)` or `hf.per_worker(...)`. It
                returns a pyarrow RecordBatch or Table, a pandas or polars DataFrame, a dict of
                columns, or an iterable of these.
            batch_format: What the transform gets: a pyarrow RecordBatch ("arrow"), or a "pandas"
                or "polars" DataFrame.
            batch_rows: How many rows the transform gets at a time; adaptive by default.
            one_to_one: Whether the transform must return as many rows as it gets. If False, it may
                drop or multiply rows.
            checkpoint_every: How much work of each task a kill may cost. If None, only rows in
                closed table files are kept.
            create: How to create the table if it does not exist.
            missing_columns: "error": the output must have all columns; "null": fill missing ones.
            retries: How often rows are retried after their transform failed.
            on_error: "raise": a failing row fails the job; "quarantine": the row is set aside.
            max_errors: How many rows may be set aside: a number, or a fraction of the input.
            cost: The cost of a row, or a function of its answer or output batch; the report sums
                it. Calls that failed or timed out are not counted.
            commit: If False, all is staged and checked, and the table stays as it is: look with
                `staged_rows()`, then call `commit()`.

        Raises:
            SettingsError: An argument or a setting cannot be used.
            StoreError: The store cannot hold a ledger, or does not answer.
            RunError: Another job has the id, a driver has taken over, or the budget is reached.
            JobError: The work on the executors failed; nothing was committed.
            CommitError: The table could not be written; staged files are kept.
        """
        return self._write("append", source, to, key, self._options(locals()), create)

    def overwrite(  # noqa: PLR0913 - each is a choice of the user's.
        self,
        source: SparkDataFrame | Scan | Materialized,
        *,
        to: str | Target,
        key: str | Sequence[str] | None = None,
        transform: Transform | PerWorker | PerRow | None = None,
        batch_format: BatchFormat = "arrow",
        batch_rows: int | None = None,
        one_to_one: bool = True,
        checkpoint_every: Duration | None = "30s",
        where: Filter | None = None,
        create: Create | None = None,
        missing_columns: MissingColumns = "error",
        retries: int = 2,
        cost: float | Callable[[Any], float] = 0.0,
        commit: bool = True,
        allow_empty: bool = False,
        if_table_changed: IfTableChanged = "replace",
        isolation_level: IsolationLevel = "serializable",
        based_on: int | None = None,
    ) -> Report:
        """Transform rows and put them in place of all rows of a table or dataset, exactly once.

        The old rows stay readable until all new ones are there, and by time travel after that.
        Resumes like `append`, whose arguments have the same meaning here. Rows that others add
        meanwhile are replaced, too, unless you say otherwise.

        Args:
            source: As for `append`. A scan of the table itself binds the run to the rows it read.
            to: As for `append`. Indices of a Lance dataset stay, and find the new rows.
            key: As for `append`.
            transform: As for `append`.
            batch_format: As for `append`.
            batch_rows: As for `append`.
            one_to_one: As for `append`.
            checkpoint_every: As for `append`.
            where: Replace only rows for which this filter is true (not NULL), on Iceberg: a string
                ("day = '2026-11-18'") or triples, as for `hf.scan_iceberg`. It must be true for
                every new row.
            create: As for `append`.
            missing_columns: As for `append`.
            retries: As for `append`. A row that fails fails the job: its old version would be gone.
            cost: As for `append`.
            commit: As for `append`.
            allow_empty: Whether no rows at all may replace the table's.
            if_table_changed: "replace": the rows that are there at the commit go; "raise": raise
                `TableChangedError` if they are not those of the run's first start.
            isolation_level: "serializable": rows that others add meanwhile go, too; "snapshot":
                they stay, as long as the others do nothing else to the rows to be replaced.
            based_on: The snapshot that the input was computed from, if that is this table: raise
                `TableChangedError` if the table's rows are no longer those of that snapshot.

        Raises:
            EmptyOutputError: There are no rows to write.
            TableChangedError: The rows have changed, and the run depends on them.
            HoldfastError: As for `append`.
        """
        return self._write("overwrite", source, to, key, self._options(locals()), create)

    def overwrite_partitions(  # noqa: PLR0913 - each is a choice of the user's.
        self,
        source: SparkDataFrame | Scan | Materialized,
        *,
        to: str | Target,
        key: str | Sequence[str] | None = None,
        transform: Transform | PerWorker | PerRow | None = None,
        batch_format: BatchFormat = "arrow",
        batch_rows: int | None = None,
        one_to_one: bool = True,
        checkpoint_every: Duration | None = "30s",
        missing_columns: MissingColumns = "error",
        retries: int = 2,
        cost: float | Callable[[Any], float] = 0.0,
        commit: bool = True,
        if_table_changed: IfTableChanged = "replace",
        isolation_level: IsolationLevel = "serializable",
        based_on: int | None = None,
    ) -> Report:
        """Transform rows and put them in place of the partitions that they are in, exactly once.

        Other partitions are left alone; without rows, nothing is replaced. The table must be
        partitioned, and all its files by its current partition spec. Otherwise as `overwrite`.

        Args:
            source: As for `overwrite`.
            to: An Iceberg table: `catalog.namespace.table` or `hf.IcebergTable`.
            key: As for `append`.
            transform: As for `append`.
            batch_format: As for `append`.
            batch_rows: As for `append`.
            one_to_one: As for `append`.
            checkpoint_every: As for `append`.
            missing_columns: As for `append`.
            retries: As for `overwrite`.
            cost: As for `append`.
            commit: As for `append`.
            if_table_changed: As for `overwrite`, whichever partition has changed.
            isolation_level: As for `overwrite`, in the partitions that are replaced.
            based_on: As for `overwrite`.

        Raises:
            UnsupportedTableError: The table's partitions cannot be replaced.
            TableChangedError: The rows have changed, and the run depends on them.
            HoldfastError: As for `append`.
        """
        return self._write("overwrite_partitions", source, to, key, self._options(locals()), None)

    def upsert(  # noqa: PLR0913 - each is a choice of the user's.
        self,
        source: SparkDataFrame | Scan | Materialized,
        *,
        to: str | Target,
        on: str | Sequence[str],
        delete_column: str | None = None,
        key: str | Sequence[str] | None = None,
        transform: Transform | PerWorker | PerRow | None = None,
        batch_format: BatchFormat = "arrow",
        batch_rows: int | None = None,
        one_to_one: bool = True,
        checkpoint_every: Duration | None = "30s",
        missing_columns: MissingColumns = "error",
        retries: int = 2,
        on_error: OnError = "raise",
        max_errors: float = 0.1,
        cost: float | Callable[[Any], float] = 0.0,
        commit: bool = True,
        if_table_changed: IfTableChanged = "replace",
        isolation_level: IsolationLevel = "serializable",
        based_on: int | None = None,
        write_mode: WriteMode | None = None,
    ) -> Report:
        """Transform rows and merge them into a table: each takes the place of the row of its key.

        Rows whose key is not in the table are added; rows of the table whose key is not among the
        new ones stay. Resumes like `append`, whose arguments have the same meaning here. Files that
        hold replaced rows are written anew without them, or get position deletes; others are not
        touched.

        Args:
            source: As for `overwrite`.
            to: An Iceberg table: `catalog.namespace.table` or `hf.IcebergTable`.
            on: The column or columns to merge on. Every new row has a value there, and no two have
                the same. If several rows of the table have it, the new row replaces them all.
            delete_column: A boolean column of the output, and not of the table. Where it is true,
                the row is not written, and the table's row of its key goes. NULL counts as false.
            key: As for `append`; by default `on`.
            transform: As for `append`.
            batch_format: As for `append`.
            batch_rows: As for `append`.
            one_to_one: As for `append`.
            checkpoint_every: As for `append`.
            missing_columns: As for `append`: a row is replaced whole.
            retries: As for `append`.
            on_error: As for `append`. A row that is set aside leaves the table's row as it is.
            max_errors: As for `append`.
            cost: As for `append`.
            commit: As for `append`.
            if_table_changed: As for `overwrite`.
            isolation_level: As for `overwrite`; "snapshot" may leave a key in two rows.
            based_on: As for `overwrite`.
            write_mode: "copy-on-write" or "merge-on-read": whether such files are written anew, or
                get position deletes; by default the table's `write.merge.mode` decides.

        Raises:
            SettingsError: An argument or a setting cannot be used.
            DuplicateOutputError: Several new rows have the same key.
            UnsupportedTableError: The table's rows cannot be replaced one by one.
            TableChangedError: The rows have changed, and the run depends on them.
            HoldfastError: As for `append`.
        """
        options = self._options({**locals(), "on": () if on is None else on})
        key = key_of_upsert(source, key, options.on_columns)
        return self._write("upsert", source, to, key, options, None)

    def remaining(self, source: SparkDataFrame, *, key: str | Sequence[str]) -> SparkDataFrame:
        """Return the rows that are not done yet, for jobs whose costly step is in the DataFrame.

        Runs on the driver. Claims the run first, so the set of finished rows can no longer change;
        other starts of the run wait for this one, for an hour or until the write has ended. Then
        use the same `Run` to append what the costly step makes of these rows. Every row must arrive
        there with its key: the write is checked against the checksums of this input.

        Args:
            source: The whole input.
            key: The column or columns that identify the rows.

        Raises:
            SettingsError: An argument or a setting cannot be used.
            StoreError: The store cannot hold a ledger, or does not answer.
            RunAbortedError: The run was aborted, and none of it has landed.
            RunError: The id belongs to another job, or another driver has taken over.
            JobError: The input could not be read, or rows have no key.
        """
        from holdfast.spark import session as spark  # noqa: PLC0415 - pyspark is optional.
        from holdfast.spark.dataframe import DataFrameSubmitter  # noqa: PLC0415
        from holdfast.spark.jobs import spark_errors  # noqa: PLC0415
        from holdfast.spark.keys import RowsLeft  # noqa: PLC0415

        session, key = spark.session_of(source), spark.checked_key(source, key)
        ledger, options = self._ledger(session), WriteOptions(**self._common)
        try:
            self._prepared = prepare(ledger, DataFrameSubmitter(source, key), key, options)
        except RunAbortedError:
            refuse_doubt(ledger, self._open_sink(None))
            raise
        if self._prepared.has_landed:
            return source.limit(0)
        with spark_errors():
            return RowsLeft(source, key, self._prepared.book.finished).rows()

    def quarantined(self) -> SparkDataFrame:
        """Return the failed rows as a DataFrame.

        Its columns are `key` and `input` (structs; `select("input.*")` gives the original rows),
        `error`, `attempts`, and `epoch`, the number of the claim under which the row failed.

        Raises:
            SettingsError: No store is named, or there is no Spark session.
            StoreError: The ledger is damaged or does not answer.
        """
        from holdfast.spark.dataframe import quarantine_frame  # noqa: PLC0415 - pyspark is optional.

        session = active_session()
        if session is None:
            raise SettingsError(what="no Spark session is active", cure="start one first")
        ledger = self._known_ledger(session)
        return quarantine_frame(session, ledger.storage, quarantine_chunks(ledger))

    def retry_quarantined(
        self,
        *,
        transform: Transform | PerWorker | PerRow | None = None,
        to: str | Target | None = None,
        on: str | Sequence[str] | None = None,
        delete_column: str | None = None,
        **options: Any,  # noqa: ANN401 - those of `append`.
    ) -> Report:
        """Retry the rows that failed, and append the result exactly once; after `upsert`, merge it.

        This is a separate run with the id `<id>+retry`: it is safe to call again, and is committed
        separately from this run, which must have landed. A row that fails again fails the retry
        run, as in `append`; if it is set aside instead, it goes to that run's quarantine, and that
        run's own `retry_quarantined` retries it.

        Args:
            transform: As for `append`.
            to: The table, as the write was given it, if another object has made it: see `commit`.
            on: The key of an upsert, likewise.
            delete_column: That of an upsert, likewise.
            **options: Any other argument of `append`, except the source and the key. The options of
                this `Run` apply to the retry run too.

        Raises:
            RunUnfinishedError: This run has not landed, so its failed rows are not final.
            RunMismatchError: The table or its branch is not the run's.
            SettingsError: No row has failed, or an argument or a setting cannot be used.
            HoldfastError: As for `append`.
        """
        ledger = self._known_ledger(active_session())
        run_file = ledger.run_file()
        if run_file is None or ledger.log.receipt is None:
            raise RunUnfinishedError(run_id=self._run_id)
        if not quarantine_chunks(ledger):
            raise SettingsError(
                what=f"no row of run {self._run_id!r} has failed",
                cure="look at report.quarantined_rows before calling retry_quarantined",
            )
        identity = run_file.identity
        if removes_of(identity) == "columns":
            raise SettingsError(
                what=f"run {self._run_id!r} computes columns, and adds no rows",
                cure="call update_columns with where=, under another run id",
            )
        again = Run(
            f"{self._run_id}+retry",
            store=ledger.store,
            store_options=self._store_options,
            version=self._version,
            progress=self._progress,
            on_event=self._listeners,
            **self._common,
        )
        again._retry_of = self._run_id
        now = WriteOptions(on=on, delete_column=delete_column)
        self._refuse_unasked("retry_quarantined", identity, to, now)
        target = self._target_for(to, identity)
        self._refuse_other(identity, table_uuid=self._open_sink(to)(identity).load().uuid)
        rows = self.quarantined().select("input.*")
        if identity.on:  # Appended, a row would be beside the old one of its key.
            options |= {"on": identity.on, "delete_column": identity.delete_column or None}
        write = again.upsert if identity.on else again.append
        return write(
            rows if identity.key else materialize(rows),  # Rows of a scan have no key.
            to=target,
            key=identity.key or None,
            transform=transform,
            **options,
        )

    def status(self) -> RunStatus:
        """Return the state of the run. Reads only the ledger; safe while the run is at work.

        Raises:
            SettingsError: No store is named.
            StoreError: The ledger is damaged or does not answer.
        """
        return status(self._ledger(active_session()))

    def abort(
        self,
        *,
        to: str | Target | None = None,
        reason: str = "",
        table_is_gone: bool = False,
    ) -> Aborted:
        """Abort the run for good: all of its drivers are fenced.

        Runs on the driver. Calling again is safe. Nothing is deleted: see `sweep`. A post that is
        under way is made to fail. If the table does not show what became of a post, the result says
        so, with a warning; if the post has landed after all, every later call says so.

        Args:
            to: The table, if this object has not written it, and the session's settings do not
                lead to it.
            reason: The reason, recorded in the run log.
            table_is_gone: Set this if the table or the branch was dropped for good. Without it, a
                run with a post in doubt is not aborted while its table cannot be read.

        Raises:
            RunCommittedError: The run has landed.
            RunMismatchError: The branch is not the run's.
            TableOutOfSightError: A post is in doubt, and the table cannot be proven to be the
                run's.
            CommitError: The catalog does not answer; call again.
            StoreError: The ledger is damaged or does not answer.
        """
        ledger = self._known_ledger(active_session())
        self._refuse_other_branch(ledger, to)
        return abort(ledger, self._open_sink(to), reason, table_is_gone=table_is_gone)

    def sweep(self, *, to: str | Target | None = None) -> Swept:
        """Delete what a finished or aborted run no longer needs, and nothing else.

        Runs on the driver. Calling again is safe. The log stays.

        Args:
            to: The table, if this object has not written it, and the session's settings do not
                lead to it.

        Raises:
            RunUnfinishedError: The run may still resume.
            RunMismatchError: The branch is not the run's.
            CommitError: The catalog gave no clear answer; call again.
            StoreError: The ledger is damaged or does not answer.
        """
        ledger = self._known_ledger(active_session())
        self._refuse_other_branch(ledger, to)
        return sweep(ledger, self._open_sink(to))

    def _options(self, given: Mapping[str, Any]) -> WriteOptions:
        """Return the options of a write: most arguments of the verbs are fields of that name."""
        names = {field.name for field in fields(WriteOptions)}
        chosen = {name: value for name, value in given.items() if name in names}
        options = WriteOptions(**self._common, **chosen)
        options.refuse_unpriced()
        return options

    def _ledger(self, session: SparkSession | None) -> Ledger:
        store, storage = open_store(self._store, self._store_options, session)
        return Ledger.open(self._run_id, store, storage, Ports())

    def _known_ledger(self, session: SparkSession | None) -> Ledger:
        ledger = self._ledger(session)
        refuse_unknown(ledger)
        return ledger

    def _open_sink(self, to: str | Target | None) -> Callable[[Identity], Sink]:
        """Return a function that opens the run's table once the table is known."""
        return lambda identity: open_table(
            self._target_for(to, identity), active_session(), of_known_run=True
        )

    def _write(  # noqa: PLR0913, PLR0917 - what the verbs do not put into the options.
        self,
        mode: Mode,
        source: SparkDataFrame | Scan | Materialized,
        to: str | Target,
        key: str | Sequence[str] | None,
        options: WriteOptions,
        create: Create | None,
    ) -> Report:
        started, prepared = time.monotonic(), self._prepared
        with refusal_heard(self._listeners, self._run_id, to):
            writing = Writing.prepare(
                mode,
                asked_target(to),
                open_given=lambda: open_input(source, key),
                open_ledger=lambda session: prepared.ledger if prepared else self._ledger(session),
                options=options,
                create=create,
                of_run={"version": self._version, "retry_of": self._retry_of},
            )
        self._prepared, self._target, self._asked = None, writing.target, writing.identity
        return writing.run(
            prepared,
            lambda report: replace(report, seconds=time.monotonic() - started),
            progress=self._progress,
            listeners=self._listeners,
        )
