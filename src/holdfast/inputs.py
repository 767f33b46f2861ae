"""Inputs: what the user wants to read, as the engine sees it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

import pyarrow as pa

from holdfast.engine.claim import SettledInput
from holdfast.engine.ports import Submitter
from holdfast.engine.scan_input import ScanRows, pin
from holdfast.errors import SettingsError
from holdfast.ledger.ledger import Ledger
from holdfast.ledger.row_files import KeyFiles
from holdfast.model.coverage import Pins
from holdfast.opening import active_session, open_scan
from holdfast.sources.materialized import Materialized, MaterializedScan, identity_of
from holdfast.sources.scans import Scan, names_of
from holdfast.spark import SparkDataFrame, SparkSession
from holdfast.storage.objects import ObjectStorage
from holdfast.worker.probe import TrialPlan
from holdfast.worker.reports import TaskReport
from holdfast.worker.task import ScanTask


class Input(SettledInput, Protocol):
    """Rows to be read, and what a write needs to know about them."""

    session: SparkSession | None
    # Whether each start compares it with what an earlier start has read.
    compares: bool
    # What is read, as it was named: URIs, or a table; empty for a DataFrame.
    reads: tuple[str, ...]

    @property
    def key(self) -> tuple[str, ...]:
        """The columns that identify a row; empty for a scan."""

    @property
    def identity(self) -> str:
        """What is read, apart from the key; empty for a DataFrame."""

    def schema(self) -> pa.Schema:
        """Return the columns."""


class SampledInput(Input, Protocol):
    """Rows of which a few can be tried."""

    def sample(self, plan: TrialPlan) -> tuple[list[TaskReport], int]:
        """Try the first rows; return the tasks' reports, and how many rows there are in all.

        Raises:
            SettingsError: These rows cannot be tried.
            JobError: The input could not be read.
        """


class DataFrameInput:
    """Rows of a DataFrame, identified by their key."""

    identity = ""
    compares = True
    reads: tuple[str, ...] = ()

    def __init__(self, df: SparkDataFrame, key: str | Sequence[str] | None) -> None:
        """Check that the key identifies rows.

        Raises:
            SettingsError: The key is missing or cannot be used, or `df` is not a DataFrame.
        """
        from holdfast.spark import session as spark  # noqa: PLC0415 - pyspark is optional.
        from holdfast.spark.dataframe import DataFrameSubmitter  # noqa: PLC0415

        self.session = spark.session_of(df)
        self.key = spark.checked_key(df, key if key is not None else ())
        self._schema = spark.arrow_schema(df)
        self._df = df
        self.submitter: Submitter = DataFrameSubmitter(df, self.key)

    def settle(self, ledger: Ledger, *, compare: bool) -> None:
        """Do nothing: each start works out which keys are done."""

    def schema(self) -> pa.Schema:
        """Return the DataFrame's columns."""
        return self._schema

    def sample(self, plan: TrialPlan) -> tuple[list[TaskReport], int]:
        """Try the rows that Spark returns first, and count the others."""
        from holdfast.spark.dataframe import DataFrameSubmitter  # noqa: PLC0415 - as above.
        from holdfast.spark.jobs import spark_errors  # noqa: PLC0415

        nothing = KeyFiles(storage=ObjectStorage({}))
        with spark_errors():
            rows, total = self._df.limit(plan.rows_max), self._df.count()
        return DataFrameSubmitter(rows, self.key).submit(plan, nothing), total


class ScanInput:
    """Rows of files, identified by their position."""

    key: tuple[str, ...] = ()
    compares = True

    def __init__(self, scan: Scan, key: str | Sequence[str] | None) -> None:
        """Keep the scan; nothing is read yet.

        Raises:
            SettingsError: A key was given, or there is no Spark session.
        """
        _refuse_key(key)
        self.session = active_session()
        if self.session is None:
            raise SettingsError(what="no Spark session is active", cure="start one first")
        self._scan = open_scan(scan, self.session)
        self.reads = names_of(scan)
        self.identity = self._scan.identity
        self._submitter: Submitter | None = None
        self._pins: Pins | None = None

    @property
    def submitter(self) -> Submitter:
        """The submitter that reads the input, once it is settled."""
        assert self._submitter is not None  # noqa: S101 - the engine settles it first.
        return self._submitter

    def settle(self, ledger: Ledger, *, compare: bool) -> None:
        """Pin the files, or compare them with the pinned ones.

        Raises:
            RunMismatchError: This start names different files from the first.
            InputChangedError: A pinned file was changed or deleted.
        """
        from holdfast.spark.jobs import SparkJobs  # noqa: PLC0415 - pyspark is optional.

        pins = pin(ledger, self._scan, compare=compare, found=self._pins)
        self._pins, self._submitter = pins, ScanRows(self._scan, pins, SparkJobs(self.session))

    def schema(self) -> pa.Schema:
        """Return the columns that the transform gets."""
        if self._pins is None:  # To create the table, before the run can be claimed.
            self._pins = self._scan.pin()
        return self._scan.schema(self._pins)

    def sample(self, plan: TrialPlan) -> tuple[list[TaskReport], int]:
        """Try the rows of the first files."""
        from holdfast.spark.jobs import SparkJobs  # noqa: PLC0415 - pyspark is optional.

        pins = self._scan.pin()
        slices = [part for item in pins.items(pins.whole, 1, 1 << 60) for part in item]
        scan = ScanTask(reader=self._scan.reader(pins), items=[slices])
        jobs, total = SparkJobs(self.session), pins.whole.rows
        return jobs.run(replace(plan, scan=scan), 1) if slices else [], total


class MaterializedInput:
    """Rows of a DataFrame that is written once, then identified by their position."""

    key: tuple[str, ...] = ()
    compares = False
    reads: tuple[str, ...] = ()

    def __init__(self, rows: Materialized, key: str | Sequence[str] | None) -> None:
        """Keep the DataFrame; nothing is written yet.

        Raises:
            SettingsError: A key was given, or the DataFrame cannot be written as Parquet.
        """
        from holdfast.spark import session as spark  # noqa: PLC0415 - pyspark is optional.

        _refuse_key(key)
        self.session = spark.session_of(rows.df)
        self._df = rows.df
        self._schema = spark.arrow_schema(rows.df)
        if len(set(self._schema.names)) != len(self._schema):
            raise SettingsError(
                what=f"the DataFrame has duplicate column names: {self._schema.names}",
                cure="rename the duplicates",
            )
        self.identity = identity_of(self._schema)
        self._submitter: Submitter | None = None

    @property
    def submitter(self) -> Submitter:
        """The submitter that reads the input, once it is settled."""
        assert self._submitter is not None  # noqa: S101 - the engine settles it first.
        return self._submitter

    def settle(self, ledger: Ledger, *, compare: bool) -> None:  # noqa: ARG002 - nothing to compare.
        """Write the rows, unless an earlier start has done so."""
        from holdfast.spark.jobs import SparkJobs, reports_of  # noqa: PLC0415 - pyspark is optional.

        scan = MaterializedScan(
            ledger.storage,
            ledger.layout.input_files(ledger.ports.new_nonce()),
            self._schema,
            partial(reports_of, self._df),
        )
        pins = pin(ledger, scan, compare=False)
        self._submitter = ScanRows(scan, pins, SparkJobs(self.session))

    def schema(self) -> pa.Schema:
        """Return the DataFrame's columns."""
        return self._schema

    def sample(self, plan: TrialPlan) -> tuple[list[TaskReport], int]:  # noqa: ARG002
        """Refuse: nothing may be left of a trial.

        Raises:
            SettingsError: Always.
        """
        raise SettingsError(
            what="the rows of hf.materialize(df) cannot be tried before they are written",
            cure="try the DataFrame itself, with key= any column that is not NULL",
        )


def key_of_upsert(
    source: object, key: str | Sequence[str] | None, on: Sequence[str]
) -> str | Sequence[str] | None:
    """Return the key of an upsert's input: that of a DataFrame is `on`, unless it is given.

    Raises:
        SettingsError: None is given, and the DataFrame lacks the columns of `on`.
    """
    if key is not None or isinstance(source, Scan | Materialized):
        return key
    columns = getattr(source, "columns", on)
    if lacks := [name for name in on if name not in columns]:
        raise SettingsError(
            what=f"the DataFrame has no column {lacks[0]!r}, which on= names, and there is no key=",
            cure="name the columns that identify the DataFrame's rows: key=...",
        )
    return on


def open_input(
    rows: SparkDataFrame | Scan | Materialized, key: str | Sequence[str] | None
) -> SampledInput:
    """Return the user's input as the engine sees it.

    Raises:
        SettingsError: The input cannot be read.
    """
    if isinstance(rows, Materialized):
        return MaterializedInput(rows, key)
    return ScanInput(rows, key) if isinstance(rows, Scan) else DataFrameInput(rows, key)


def _refuse_key(key: str | Sequence[str] | None) -> None:
    """Refuse a key where none is needed.

    Raises:
        SettingsError: A key was given.
    """
    if key:
        raise SettingsError(
            what="key= cannot be used with a scan",
            cure="leave it out: rows are identified by their position",
        )
