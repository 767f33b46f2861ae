"""Run: the front door. One run is one write, stable across retries."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Mapping, Sequence

import pyarrow as pa

from holdfast.engine.drive import Driven, Driver
from holdfast.engine.ports import Ports
from holdfast.errors import MissingExtraError, SettingsError
from holdfast.model.identity import Identity
from holdfast.model.report import Report
from holdfast.model.run_id import encode_run_id
from holdfast.sinks.base import Sink
from holdfast.sinks.conform import Conformer
from holdfast.sinks.targets import Create, IcebergTable
from holdfast.spark.frames import SparkDataFrame, SparkSession
from holdfast.storage.locations import normalise
from holdfast.storage.objects import ObjectStorage
from holdfast.worker.task import RowCount
from holdfast.worker.transforms import PerWorker, Transform

_STORE_SETTING = "spark.holdfast.store"
_STORE_VARIABLE = "HOLDFAST_STORE"


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

    def __repr__(self) -> str:
        """Show the id and the store; never the options, which hold credentials."""
        return f"Run({self._run_id!r}, store={self._store!r})"

    def append(  # noqa: PLR0913 - each is a choice of the user's.
        self,
        df: SparkDataFrame,
        *,
        to: str | IcebergTable,
        key: str | Sequence[str],
        transform: Transform | PerWorker | None = None,
        batch_rows: int | None = None,
        rows: RowCount = "same",
        create: Create | None = None,
        version: str = "",
        verify_input: bool = True,
    ) -> Report:
        """Transform the DataFrame's rows and append them to the table in one atomic commit, once.

        Runs on the driver; the transform runs on the executors. Safe to call again with the
        same id: what has landed is not written a second time.

        Args:
            df: A Spark DataFrame, classic or Connect.
            to: `catalog.namespace.table` through the session's settings, or `hf.IcebergTable`.
            key: The column or columns that tell the rows apart.
            transform: Takes one pyarrow RecordBatch; returns a batch, a Table, a dict of
                columns, or an iterable of these. `hf.per_worker` builds it once per process.
            batch_rows: How many rows the transform sees at a time; by default as Spark sends
                them.
            rows: "same": the transform returns as many rows as it gets, for every batch;
                anything else is an error. "any": it may drop or multiply rows.
            create: How to create the table if there is none; ignored if there is one.
            version: The user's own word for the code; another word is another run.
            verify_input: Read the key columns once before the job: refuse NULL keys, and an
                input that is not the one which an earlier start of this run has read.

        Raises:
            SettingsError: An argument or a setting cannot be used.
            StoreError: The store cannot hold a ledger, or does not answer.
            RunError: The id belongs to another job, or another driver has taken over.
            JobError: The work on the executors failed; nothing was committed.
            CommitError: The table could not be written; staged files are kept.
        """
        from holdfast.spark import session as spark  # noqa: PLC0415 - pyspark is optional.

        started = time.monotonic()
        session, key = spark.session_of(df), spark.checked_key(df, key)
        spark.refuse_wap(session)
        store = self._resolve_store(session)
        target = IcebergTable(to) if isinstance(to, str) else to
        sink = _open_sink(target, session, create, spark.arrow_schema(df))
        view = sink.load()
        if transform is None:  # The output is known now: fail before any task starts.
            Conformer(sink.name, spark.arrow_schema(df), sink.writer_spec(view).schema)
        identity = Identity(
            table=sink.name,
            table_uuid=view.uuid,
            branch=target.branch,
            mode="append",
            key=key,
            version=version,
            **spark.semantics(session),
        )
        driven = self._driver(df, key, store, sink).append(
            view,
            identity,
            transform=transform,
            batch_rows=batch_rows,
            rows=rows,
            compare=verify_input,
        )
        spark.forget_cached_table(session, target)
        return self._report(sink.name, driven, time.monotonic() - started)

    def _driver(
        self,
        df: SparkDataFrame,
        key: tuple[str, ...],
        store: tuple[str, Mapping[str, str]],
        sink: Sink,
    ) -> Driver:
        from holdfast.spark.submit import DataFrameSubmitter  # noqa: PLC0415 - pyspark is optional.

        uri, options = store
        return Driver(
            run_id=self._run_id,
            store=uri,
            storage=ObjectStorage(options),
            sink=sink,
            submitter=DataFrameSubmitter(df, key),
            ports=Ports(),
        )

    def _resolve_store(self, session: SparkSession) -> tuple[str, Mapping[str, str]]:
        from holdfast.spark import session as spark  # noqa: PLC0415 - pyspark is optional.

        store = (
            self._store
            or spark.setting(session, _STORE_SETTING)
            or os.environ.get(_STORE_VARIABLE, "")
        )
        if not store:
            raise SettingsError(
                what="no store is named for the run's ledger",
                cure=f"pass Run(store=...), or set {_STORE_SETTING} or {_STORE_VARIABLE}",
            )
        if self._store_options is not None:
            return normalise(store), self._store_options
        return normalise(store), spark.settings_under(session, f"{_STORE_SETTING}.")

    def _report(self, table: str, driven: Driven, seconds: float) -> Report:
        landed = driven.landed
        if not driven.input_compared:
            warnings.warn(
                f"run {self._run_id!r}: the input was not compared with what an earlier start "
                "of this run may have read",
                stacklevel=3,
            )
        return Report(
            run_id=self._run_id,
            table=table,
            outcome="already_committed" if driven.was_landed else "committed",
            snapshot_id=landed.receipt.snapshot_id,
            rows=landed.receipt.rows,
            files=landed.receipt.files,
            size_bytes=landed.receipt.size_bytes,
            tasks=driven.tasks,
            posts=landed.posts,
            seconds=seconds,
            inherited=driven.inherited,
            input_compared=driven.input_compared,
            still_in_table="yes" if landed.present else "unknown",
        )


def _open_sink(
    target: IcebergTable, session: SparkSession, create: Create | None, schema: pa.Schema
) -> Sink:
    from holdfast.spark import session as spark  # noqa: PLC0415 - pyspark is optional.

    try:
        from holdfast.sinks.iceberg.open import open_sink  # noqa: PLC0415 - so is pyiceberg.
    except ImportError as error:
        raise MissingExtraError(
            what="an Iceberg table", package=error.name or "pyiceberg", extra="iceberg"
        ) from error
    return open_sink(
        target,
        settings_under=lambda prefix: spark.settings_under(session, prefix),
        create=create,
        default_schema=schema,
    )
