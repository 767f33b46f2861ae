"""The rows of a DataFrame, as the engine asks for them."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.ledger.key_files import KeyFiles
from holdfast.model.input_sums import InputSums
from holdfast.model.key_examples import KeyExamples
from holdfast.sources.base import KEY_HASH, ROW_HASH, TAG_COLUMN
from holdfast.spark import keys
from holdfast.spark.frames import SparkDataFrame
from holdfast.spark.jobs import JobsBeside, SparkJobs, run_plan, spark_errors
from holdfast.spark.keys import quoted
from holdfast.spark.row_hash import column_types, row_hash_sql
from holdfast.spark.session import arrow_schema
from holdfast.worker.covered_keys import needs_hash_column
from holdfast.worker.replay import ReplayPlan
from holdfast.worker.reports import TaskReport
from holdfast.worker.task import TaskPlan


class DataFrameSubmitter:
    """Runs task plans over one DataFrame."""

    def __init__(self, df: SparkDataFrame, key: tuple[str, ...]) -> None:
        """Keep the DataFrame and its key; nothing runs yet."""
        self._df = df
        self._key = key
        self._jobs_beside: JobsBeside | None = None

    @property
    def slots(self) -> int:
        """How many tasks run at a time.

        Raises:
            JobFailedError: Spark does not tell.
        """
        return SparkJobs(self._df.sparkSession).slots

    def measure(self, finished: KeyFiles, *, whole_rows: bool = False) -> InputSums:
        """Read the input once and return the sums of the rows that are not finished.

        Args:
            finished: The keys of rows to leave out.
            whole_rows: Sum whole rows as well; else only the key columns are read.

        Raises:
            JobFailedError: Spark could not read the input, or cannot hash its rows.
        """
        if not whole_rows:
            keys_only = self._df.select(*(quoted(name) for name in self._key))
            left = keys.without_finished(keys_only, self._key, finished)
            with spark_errors():
                return InputSums(**keys.sums_of(left, self._key).collect()[0].asDict())
        left = keys.without_finished(self._df, self._key, finished)
        with spark_errors():
            rows, key, row = self._numbered(left)
            sums = keys.sums_of(rows, key, row=row).collect()[0].asDict()
        return InputSums(**sums, columns=column_types(self._df.schema))

    def look(self, *, whole_rows: bool = False) -> tuple[InputSums, int]:
        """Return the sums of the whole input, and how many keys of a sample appear in two rows.

        Args:
            whole_rows: Sum whole rows as well; else only the key columns are read.

        Raises:
            JobFailedError: Spark could not read the input, or cannot hash its rows.
        """
        with spark_errors():
            if whole_rows:
                rows, key, row = self._numbered(self._df)
                found = keys.sums_and_doubles_of(rows, key, row=row)
            else:
                keys_only = self._df.select(*(quoted(name) for name in self._key))
                found = keys.sums_and_doubles_of(keys_only, self._key)
            sums = found.collect()[0].asDict()
        doubled = sums.pop("doubled")
        columns = column_types(self._df.schema) if whole_rows else ()
        return InputSums(**sums, columns=columns), doubled

    def submit(self, plan: TaskPlan, finished: KeyFiles) -> list[TaskReport]:
        """Run the plan over the partitions of the rows that are not finished; wait for all.

        Raises:
            SettingsError: The transform cannot be pickled.
            TransformTooLargeError: The transform carries too much with it.
            MissingExtraError: PySpark misses a package on the driver.
            ExecutorSetupError: The executors run the wrong Python.
            JobFailedError: Spark gave the job up.
        """
        left = keys.without_finished(self._df, self._key, finished)
        types = [arrow_schema(self._df).field(name).type for name in self._key]
        needs_hash = needs_hash_column(types)
        if plan.whole_rows:
            with spark_errors():
                rows, key, row = self._numbered(left)
                hashes = f"'{ROW_HASH}', {row}"
                if needs_hash:
                    hashes += f", '{KEY_HASH}', {keys.hash_sql(key)}"
                tagged = rows.selectExpr("*", f"named_struct({hashes})")
                left = tagged.toDF(*self._df.columns, TAG_COLUMN)
        elif needs_hash:
            left = left.selectExpr("*", f"{keys.hash_sql(self._key)} AS {quoted(TAG_COLUMN)}")
        return run_plan(left, plan)

    def _numbered(self, df: SparkDataFrame) -> tuple[SparkDataFrame, list[str], str]:
        """Return the rows with columns named by position, the key, and the hash of a whole row.

        Names may differ in case alone, or not at all: then Spark cannot tell them apart.
        """
        names = [f"_{index}" for index in range(len(self._df.columns))]
        key = [names[self._df.columns.index(name)] for name in self._key]
        return df.toDF(*names), key, row_hash_sql(self._df.schema, names)

    def replay(self, plan: ReplayPlan, items: Sequence[str]) -> list[TaskReport]:
        """Run the replay of work items, each in a task of its own.

        Raises:
            JobFailedError: Spark gave the job up.
        """
        return SparkJobs(self._df.sparkSession).replay(plan, items)

    def duplicates(self, *, beside: bool = False) -> KeyExamples:
        """Return the keys that appear in more than one input row.

        Args:
            beside: Whether it is asked by another thread, while a plan runs.

        Raises:
            JobFailedError: Spark could not read the input.
        """
        with spark_errors():
            if beside:
                self._jobs_beside = JobsBeside(self._df.sparkSession)
                self._jobs_beside.begin()
            found, examples = keys.duplicates(self._df, self._key)
        return KeyExamples(keys=found, examples=examples)

    def cancel_beside(self) -> None:
        """End what was asked by another thread and is still running."""
        if self._jobs_beside is not None:
            self._jobs_beside.cancel()

    def gone(self, finished: KeyFiles) -> KeyExamples:
        """Return the finished keys that the input no longer has.

        Raises:
            JobFailedError: Spark could not read the input or the key files.
        """
        with spark_errors():
            found, examples = keys.gone(self._df, self._key, finished)
        return KeyExamples(keys=found, examples=examples)

    def overlaps(self, finished: KeyFiles) -> dict[tuple[str, ...], int]:
        """Return which records share keys, and how many.

        Raises:
            JobFailedError: Spark could not read the key files.
        """
        with spark_errors():
            return keys.overlaps(self._df, self._key, finished)
