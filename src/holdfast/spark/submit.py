"""Submit a task plan as one Spark job: mapInArrow, then collect the tasks' reports."""

from __future__ import annotations

import contextlib
import pickle
import sys
from collections.abc import Iterator, Sequence

from pyspark import cloudpickle
from pyspark.errors import PySparkException

from holdfast._version import __version__
from holdfast.errors import (
    ExecutorSetupError,
    JobFailedError,
    MissingExtraError,
    SettingsError,
    TransformTooLargeError,
)
from holdfast.ledger.key_files import KeyFiles
from holdfast.model.input_sums import InputSums
from holdfast.model.key_examples import KeyExamples
from holdfast.spark import keys
from holdfast.spark.bootstrap import REPORT_SCHEMA, bootstrap
from holdfast.spark.frames import SparkDataFrame
from holdfast.spark.keys import quoted
from holdfast.spark.session import arrow_schema
from holdfast.worker.covered_keys import HASH_COLUMN, needs_hash_column
from holdfast.worker.replay import ITEM_COLUMN, ReplayPlan
from holdfast.worker.reports import TaskReport
from holdfast.worker.task import TaskPlan

try:
    from py4j.protocol import Py4JError
except ImportError:  # A client of Spark Connect needs no JVM bridge.
    Py4JError = PySparkException

_MEGABYTE = 1_000_000
_PAYLOAD_MAX_MB = 50
_REASON_LENGTH_MAX = 2000
# What Spark's worker says before a line of ours can run.
_WRONG_PYTHON = ("No module named 'pyarrow'", "PYTHON_VERSION_MISMATCH", "No module named 'numpy'")


class DataFrameSubmitter:
    """Runs task plans over one DataFrame."""

    def __init__(self, df: SparkDataFrame, key: tuple[str, ...]) -> None:
        """Keep the DataFrame and its key; nothing runs yet."""
        self._df = df
        self._key = key

    def measure(self, finished: KeyFiles) -> InputSums:
        """Read the key columns once and return the sums of the rows that are not finished.

        Raises:
            JobFailedError: Spark could not read the input.
        """
        keys_only = self._df.select(*(quoted(name) for name in self._key))
        left = keys.without_finished(keys_only, self._key, finished)
        with _spark_errors():
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
            left = left.selectExpr("*", f"{keys.hash_sql(self._key)} AS {quoted(HASH_COLUMN)}")
        return _run(left, plan)

    def replay(self, plan: ReplayPlan, items: Sequence[str]) -> list[TaskReport]:
        """Run the replay of work items, each in a task of its own.

        Raises:
            JobFailedError: Spark gave the job up.
        """
        session = self._df.sparkSession
        work = session.createDataFrame([(item,) for item in items], f"{ITEM_COLUMN} string")
        return _run(work.repartition(len(items)), plan)

    def duplicates(self) -> KeyExamples:
        """Return the keys that stand in more than one input row.

        Raises:
            JobFailedError: Spark could not read the input.
        """
        with _spark_errors():
            found, examples = keys.duplicates(self._df, self._key)
        return KeyExamples(keys=found, examples=examples)

    def gone(self, finished: KeyFiles) -> KeyExamples:
        """Return the finished keys that the input no longer has.

        Raises:
            JobFailedError: Spark could not read the input or the key files.
        """
        with _spark_errors():
            found, examples = keys.gone(self._df, self._key, finished)
        return KeyExamples(keys=found, examples=examples)

    def overlaps(self, finished: KeyFiles) -> dict[tuple[str, ...], int]:
        """Return which records share keys, and how many.

        Raises:
            JobFailedError: Spark could not read the key files.
        """
        with _spark_errors():
            return keys.overlaps(self._df, self._key, finished)


def _run(df: SparkDataFrame, plan: TaskPlan | ReplayPlan) -> list[TaskReport]:
    """Run a plan over the DataFrame's partitions; wait for all of them.

    Raises:
        SettingsError: The transform cannot be pickled.
        TransformTooLargeError: The transform carries too much with it.
    """
    try:
        payload: bytes = cloudpickle.dumps(plan)  # type: ignore[no-untyped-call]
    except (TypeError, AttributeError, pickle.PicklingError) as error:
        raise SettingsError(
            what=f"the transform cannot be sent to executors: {error}",
            cure="build what cannot be pickled there: transform=hf.per_worker(YourClass, ...)",
        ) from error
    if len(payload) > _PAYLOAD_MAX_MB * _MEGABYTE:
        raise TransformTooLargeError(size_mb=len(payload) // _MEGABYTE, limit_mb=_PAYLOAD_MAX_MB)
    with _spark_errors():
        rows = df.mapInArrow(bootstrap(payload, __version__), REPORT_SCHEMA).collect()
    return [TaskReport.from_json(row["report"]) for row in rows]


@contextlib.contextmanager
def _spark_errors() -> Iterator[None]:
    """Speak of Spark's failures in our own terms.

    Raises:
        MissingExtraError: PySpark misses a package on the driver.
        ExecutorSetupError: The executors run the wrong Python.
        JobFailedError: Spark gave the job up.
    """
    try:
        yield
    except ImportError as error:
        raise MissingExtraError(what="a Spark job", package="pandas", extra="spark") from error
    except (PySparkException, Py4JError) as error:
        reason = str(error).strip()
        if any(sign in reason for sign in _WRONG_PYTHON):
            raise ExecutorSetupError(
                host="unknown",
                what="its Python lacks pyarrow or is of another version than the driver's",
                cure="set PYSPARK_PYTHON (or spark.pyspark.python) to an environment that has "
                f"holdfast {__version__}; on one machine that is {sys.executable}",
            ) from error
        raise JobFailedError(reason=reason[-_REASON_LENGTH_MAX:]) from error
