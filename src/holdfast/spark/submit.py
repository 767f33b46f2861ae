"""The rows of a DataFrame, as the engine asks for them."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.ledger.key_files import KeyFiles
from holdfast.model.input_sums import InputSums
from holdfast.model.key_examples import KeyExamples
from holdfast.sources.base import TAG_COLUMN
from holdfast.spark import keys
from holdfast.spark.frames import SparkDataFrame
from holdfast.spark.jobs import SparkJobs, run_plan, spark_errors
from holdfast.spark.keys import quoted
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

    @property
    def slots(self) -> int:
        """How many tasks run at a time.

        Raises:
            JobFailedError: Spark does not tell.
        """
        return SparkJobs(self._df.sparkSession).slots

    def measure(self, finished: KeyFiles) -> InputSums:
        """Read the key columns once and return the sums of the rows that are not finished.

        Raises:
            JobFailedError: Spark could not read the input.
        """
        keys_only = self._df.select(*(quoted(name) for name in self._key))
        left = keys.without_finished(keys_only, self._key, finished)
        with spark_errors():
            return InputSums(**keys.sums_of(left, self._key).collect()[0].asDict())

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
        if needs_hash_column(types):
            left = left.selectExpr("*", f"{keys.hash_sql(self._key)} AS {quoted(TAG_COLUMN)}")
        return run_plan(left, plan)

    def replay(self, plan: ReplayPlan, items: Sequence[str]) -> list[TaskReport]:
        """Run the replay of work items, each in a task of its own.

        Raises:
            JobFailedError: Spark gave the job up.
        """
        return SparkJobs(self._df.sparkSession).replay(plan, items)

    def duplicates(self) -> KeyExamples:
        """Return the keys that stand in more than one input row.

        Raises:
            JobFailedError: Spark could not read the input.
        """
        with spark_errors():
            found, examples = keys.duplicates(self._df, self._key)
        return KeyExamples(keys=found, examples=examples)

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
