"""Run: the front door. One run is one write, stable across retries."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any

from holdfast.engine.claim import Prepared, prepare, refuse_new_table
from holdfast.engine.cleanup import Aborted, Swept, abort, sweep
from holdfast.engine.drive import Driver, warn_of_doubts
from holdfast.engine.options import (
    Choices,
    Duration,
    IfCommitted,
    MissingColumns,
    Mode,
    Takeover,
    VerifyInput,
)
from holdfast.engine.resolve import refuse_doubt
from holdfast.engine.watch import quarantine_chunks, run_folders, status
from holdfast.errors import LedgerDamagedError, RunAbortedError, RunUnfinishedError, SettingsError
from holdfast.inputs import open_input
from holdfast.ledger.ledger import Ledger
from holdfast.ledger.ports import Ports
from holdfast.model.history import RunStatus
from holdfast.model.limits import DEFAULT_LIMITS, Limits
from holdfast.model.records import Identity, decode_run_id, encode_run_id, is_run_folder
from holdfast.model.report import Report
from holdfast.opening import active_session, open_store, open_table
from holdfast.progress.watching import shown
from holdfast.sinks.base import Sink, WriterSpec
from holdfast.sinks.conform import Conformer
from holdfast.sinks.targets import Create, Target, target_of
from holdfast.sources.materialized import Materialized, materialize
from holdfast.sources.scans import Scan
from holdfast.spark.frames import SparkDataFrame, SparkSession
from holdfast.storage.locations import normalise
from holdfast.worker.task import OnError, RowCount
from holdfast.worker.transforms import PerRow, PerWorker, Transform


class Run:
    """One exactly-once write, by an id that stays the same across retries.

    Args:
        run_id: The user's own id; a scheduler's run id is fine as it is.
        store: Where the run's ledger stands: a URI. By default the session's
            `spark.holdfast.store`, else the environment's `HOLDFAST_STORE`.
        store_options: Storage options for the store in Iceberg's names (`s3.endpoint`,
            `s3.access-key-id`, ...). By default the session's `spark.holdfast.store.*`, else
            the environment's credential chain.

    Raises:
        SettingsError: The id or the store cannot be used.
    """

    def __init__(
        self,
        run_id: str,
        *,
        store: str | None = None,
        store_options: Mapping[str, str] | None = None,
    ) -> None:
        """Keep the arguments; nothing is read or written yet."""
        encode_run_id(run_id)
        self._run_id = run_id
        self._store = normalise(store) if store is not None else None
        self._store_options = store_options
        # What `remaining` has claimed and measured, for the write that follows.
        self._prepared: Prepared | None = None
        # The run whose failed rows this one tries again.
        self._retry_of = ""

    def __repr__(self) -> str:
        """Show the id and the store; never the options, which hold credentials."""
        return f"Run({self._run_id!r}, store={self._store!r})"

    def append(  # noqa: PLR0913 - each is a choice of the user's.
        self,
        df: SparkDataFrame | Scan | Materialized,
        *,
        to: str | Target,
        key: str | Sequence[str] | None = None,
        transform: Transform | PerWorker | PerRow | None = None,
        checkpoint_every: Duration | None = "30s",
        batch_rows: int | None = None,
        rows: RowCount = "same",
        missing_columns: MissingColumns = "error",
        create: Create | None = None,
        version: str = "",
        verify_input: VerifyInput = "keys",
        if_committed: IfCommitted = "compare",
        takeover: Takeover = "wait",
        retries: int = 2,
        strict_code: bool = False,
        on_error: OnError = "raise",
        max_errors: float = 0.1,
        cost: float | Callable[[Any], float] = 0.0,
        limits: Limits = DEFAULT_LIMITS,
        progress: bool | None = None,
    ) -> Report:
        """Transform rows and append them to the table in one atomic commit, once.

        Runs on the driver; the transform runs on the executors. Safe to call again with the
        same id: rows that are done are not computed again, and what has landed stays as it is.

        Args:
            df: A Spark DataFrame, classic or Connect; a scan (`hf.scan_parquet`, ...); or
                `hf.materialize(df)`.
            to: `catalog.namespace.table` through the session's settings, `hf.IcebergTable`, a
                Lance dataset's URI, or `hf.LanceTable`.
            key: The column or columns that tell a DataFrame's rows apart; none for a scan.
            transform: Takes one pyarrow RecordBatch; returns a batch, a Table, a dict of
                columns, or an iterable of these. See also `hf.per_worker` and `hf.per_row`.
            checkpoint_every: How much work a kill may cost, per task; None for less safety.
            batch_rows: How many rows the transform sees at a time; by default it adapts.
            rows: "same": as many rows out as in, for every batch; "any": it may differ.
            missing_columns: "error": output must have all columns; "null": fill what it lacks.
            create: How to create the table if there is none; ignored if there is one.
            version: The user's own word for the code; another word is another run.
            verify_input: "keys": read the key columns before the job, and check that every row is
                done, once. "rows": read all columns, and notice other values under the same keys
                too. False: neither. Files of a scan are always compared.
            if_committed: "compare" the input with what has landed, or "return" at once.
            takeover: While another driver lives: "wait" for its end, take over "now", or "never".
            retries: How many further passes a failing transform gets.
            strict_code: Refuse to go on when the transform's code has changed.
            on_error: "raise": a failing row ends the job; "quarantine": it is set aside.
            max_errors: How many rows may be set aside: a number, or a share of the input.
            cost: What a row costs, or a function of its answer or output batch; the report sums it.
            limits: How much a worker may hold in memory, as `hf.Limits`.
            progress: Show the run while it is at work. By default where stderr is a terminal, and
                in a notebook; elsewhere as a log line each minute.

        Raises:
            SettingsError: An argument or a setting cannot be used.
            StoreError: The store cannot hold a ledger, or does not answer.
            RunError: The id belongs to another job, or another driver has taken over.
            JobError: The work on the executors failed; nothing was committed.
            CommitError: The table could not be written; staged files are kept.
        """
        given = locals()  # Most arguments are choices, of the same name.
        choices = Choices(**{one.name: given[one.name] for one in fields(Choices)})
        return self._write(
            "append", df, to, key, choices, create=create, version=version, progress=progress
        )

    def remaining(
        self, df: SparkDataFrame, *, key: str | Sequence[str], takeover: Takeover = "wait"
    ) -> SparkDataFrame:
        """Return the rows that are still to do, for jobs whose costly step is in the DataFrame.

        Runs on the driver. Claims the run first, so what is finished cannot change any more; other
        starts of the run wait for this one, for an hour or until the write has ended. Then use
        the same `Run` to append what the costly step makes of these rows. Every row and
        its key must arrive there: the sums of this input are the ones that are checked.

        Args:
            df: The whole input.
            key: The column or columns that tell the rows apart.
            takeover: While another driver lives: "wait" for its end, take over "now", or "never".

        Raises:
            SettingsError: An argument or a setting cannot be used.
            StoreError: The store cannot hold a ledger, or does not answer.
            RunAbortedError: The run was given up, and nothing of it has landed.
            RunError: The id belongs to another job, or another driver has taken over.
            JobError: The input could not be read, or rows have no key.
        """
        from holdfast.spark import session as spark  # noqa: PLC0415 - pyspark is optional.
        from holdfast.spark.dataframe import DataFrameSubmitter, without_finished  # noqa: PLC0415

        session, key = spark.session_of(df), spark.checked_key(df, key)
        ledger, choices = self._ledger(session), Choices(takeover=takeover)
        try:
            self._prepared = prepare(ledger, DataFrameSubmitter(df, key), key, choices)
        except RunAbortedError:
            refuse_doubt(ledger, self._open_sink(None))
            raise
        if self._prepared.has_landed:
            return df.limit(0)
        return without_finished(df, key, self._prepared.book.finished)

    def quarantined(self) -> SparkDataFrame:
        """Return the rows that failed, as a DataFrame.

        Its columns: `key` and `input` (structs; `select("input.*")` gives the rows as they came),
        `error`, `attempts`, and `epoch`, the number of the claim under which the row failed.

        Raises:
            SettingsError: No store is named, or there is no Spark session.
            StoreError: The ledger is damaged or does not answer.
        """
        from holdfast.spark.dataframe import quarantine_frame  # noqa: PLC0415 - pyspark is optional.

        session = active_session()
        if session is None:
            raise SettingsError(what="no Spark session is active", cure="start one first")
        ledger = self._ledger(session)
        return quarantine_frame(session, ledger.storage, quarantine_chunks(ledger))

    def retry_quarantined(
        self,
        *,
        transform: Transform | PerWorker | PerRow | None = None,
        to: str | Target | None = None,
        **options: Any,  # noqa: ANN401 - those of `append`.
    ) -> Report:
        """Try the rows that failed again, and append what they become, once.

        This is a run of its own, called `<id>+retry`: safe to call again, and committed apart
        from this one, which must have landed. Rows that fail again end it, as in `append`; set
        aside, they are in the quarantine of that run, and its own `retry_quarantined` tries them.

        Args:
            transform: As for `append`.
            to: The table, if the session's settings do not lead to it.
            **options: Any other argument of `append`, apart from the key and the DataFrame.

        Raises:
            RunUnfinishedError: This run has not landed: which rows fail is not settled.
            SettingsError: No row has failed, or an argument or a setting cannot be used.
            HoldfastError: As for `append`.
        """
        ledger = self._ledger(active_session())
        ledger.log.refresh()
        run_file = ledger.run_file()
        if run_file is None or ledger.log.receipt is None:
            raise RunUnfinishedError(run_id=self._run_id)
        if not quarantine_chunks(ledger):
            raise SettingsError(
                what=f"no row of run {self._run_id!r} has failed",
                cure="look at report.quarantined_rows before calling retry_quarantined",
            )
        identity = run_file.identity
        again = Run(f"{self._run_id}+retry", store=ledger.store, store_options=self._store_options)
        again._retry_of = self._run_id
        rows = self.quarantined().select("input.*")
        return again.append(
            rows if identity.key else materialize(rows),  # Rows of a scan have no key.
            to=to or target_of(identity.table, identity.branch),
            key=identity.key or None,
            transform=transform,
            **options,
        )

    def status(self) -> RunStatus:
        """Return where the run stands. Reads the ledger only; safe while the run is at work.

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
        """Give the run up, for good: every driver of it is fenced.

        Runs on the driver. Calling again is safe. Nothing is deleted: see `sweep`. A post that is
        under way is made to fail. If the table does not tell what became of a post, the result
        says so, with a warning; should it have landed, every later call says so.

        Args:
            to: The table, if the session's settings do not lead to it.
            reason: Why, recorded in the run log.
            table_is_gone: Say so if the table or the branch was dropped for good. Without it, a
                run with a post in doubt is not given up while its table cannot be seen.

        Raises:
            RunCommittedError: The run has landed.
            TableOutOfSightError: A post is in doubt, and the table is not provably the run's.
            CommitError: The catalog does not answer; call again.
            StoreError: The ledger is damaged or does not answer.
        """
        ledger, open_sink = self._ledger(active_session()), self._open_sink(to)
        return abort(ledger, open_sink, reason, table_is_gone=table_is_gone)

    def sweep(self, *, to: str | Target | None = None) -> Swept:
        """Delete what a finished or aborted run no longer needs, and nothing else.

        Runs on the driver. Calling again is safe. The log stays.

        Args:
            to: The table, if the session's settings do not lead to it.

        Raises:
            RunUnfinishedError: The run may still go on.
            CommitError: The catalog gave no clear answer; call again.
            StoreError: The ledger is damaged or does not answer.
        """
        return sweep(self._ledger(active_session()), self._open_sink(to))

    def _ledger(self, session: SparkSession | None) -> Ledger:
        store, storage = open_store(self._store, self._store_options, session)
        return Ledger.open(self._run_id, store, storage, Ports())

    def _open_sink(self, to: str | Target | None) -> Callable[[Identity], Sink]:
        """Return how the run's table is opened, once it is known which one it is."""

        def open_sink(identity: Identity) -> Sink:
            target = target_of(to or identity.table, identity.branch)
            return open_table(target, active_session(), of_known_run=True)

        return open_sink

    def _write(  # noqa: PLR0913 - what the verbs do not put into the choices.
        self,
        mode: Mode,
        rows: SparkDataFrame | Scan | Materialized,
        to: str | Target,
        key: str | Sequence[str] | None,
        choices: Choices,
        *,
        create: Create | None,
        version: str,
        progress: bool | None,
    ) -> Report:
        from holdfast.spark import session as spark  # noqa: PLC0415 - pyspark is optional.

        started, target = time.monotonic(), target_of(to)
        if self._prepared is not None:
            self._prepared.check(choices)
        given = open_input(rows, key)
        if given.identity:  # To compare the files of a scan costs next to nothing.
            choices = replace(choices, verify_input="keys")
        spark.refuse_wap(given.session)
        prepared = self._prepared
        ledger = prepared.ledger if prepared else self._ledger(given.session)
        identity_on = partial(
            Identity,
            branch=target.branch,
            mode=mode,
            key=given.key,
            version=version,
            retry_of=self._retry_of,
            input=given.identity,
            **spark.semantics(given.session),
        )
        refuse = partial(refuse_new_table, ledger, identity_on)
        sink = open_table(target, given.session, create, given.schema, before_create=refuse)
        view = sink.load()
        self._prepared = None

        def check_output(spec: WriterSpec) -> None:
            if choices.transform is None:  # It is known now: fail before any task starts.
                Conformer(spec.table, given.schema(), spec.schema, may_lack=spec.may_lack)

        driver = Driver(
            ledger=ledger,
            sink=sink,
            input=given,
            prepared=prepared,
            check_output=check_output,
        )
        identity = identity_on(table=sink.name, table_uuid=view.uuid)
        with shown(ledger, sink.name, wanted=progress):
            report = driver.write(view, identity, choices)
        spark.forget_cached_table(given.session, target)
        warn_of_doubts(report)
        report = replace(
            report,
            seconds=time.monotonic() - started,
            unindexed_rows=sink.unindexed_rows(),
        )
        return report if given.compares else replace(report, input_compared=None)


def runs(
    store: str | None = None, *, store_options: Mapping[str, str] | None = None
) -> list[RunStatus]:
    """Return where all runs of a store stand. Reads the ledgers only.

    A run whose ledger cannot be read is "damaged", with the reason in `error`; a folder that is
    no run is left out. Neither hides the others.

    Args:
        store: The store's URI; by default as for `Run`.
        store_options: As for `Run`.

    Raises:
        SettingsError: No store is named.
        StoreUnavailableError: The store does not answer.
    """
    uri, storage = open_store(store, store_options, active_session())
    ids = map(decode_run_id, filter(is_run_folder, run_folders(storage, uri)))
    return [_status(Ledger.open(run_id, uri, storage, Ports())) for run_id in ids]


def _status(ledger: Ledger) -> RunStatus:
    try:
        return status(ledger, with_tasks=False)
    except LedgerDamagedError as error:
        return RunStatus.damaged(ledger.run_id, f"{error.uri}: {error.reason}")
