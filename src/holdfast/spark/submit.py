"""Submit a task plan as one Spark job: mapInArrow, then collect the tasks' reports."""

from __future__ import annotations

import pickle
import sys

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
from holdfast.model.input_sums import InputSums
from holdfast.spark.bootstrap import REPORT_SCHEMA, bootstrap
from holdfast.spark.frames import SparkDataFrame
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

    def measure(self) -> InputSums:
        """Read the key columns once and return their sums.

        Raises:
            JobFailedError: Spark could not read the input.
        """
        columns = ["`" + name.replace("`", "``") + "`" for name in self._key]
        digest = f"xxhash64({', '.join(columns)})"
        nulls = " OR ".join(f"{column} IS NULL" for column in columns)
        sums = self._df.selectExpr(
            "count(*) AS rows",
            f"count(CASE WHEN {nulls} THEN 1 END) AS null_keys",
            f"coalesce(sum({digest} & 4294967295), 0) AS low",
            f"coalesce(sum(shiftrightunsigned({digest}, 32)), 0) AS high",
        )
        try:
            row = sums.collect()[0]
        except (PySparkException, Py4JError) as error:
            raise JobFailedError(reason=str(error).strip()[-_REASON_LENGTH_MAX:]) from error
        return InputSums(**row.asDict())

    def submit(self, plan: TaskPlan) -> list[TaskReport]:
        """Run the plan over the DataFrame's partitions; wait for all of them.

        Raises:
            SettingsError: The transform cannot be pickled.
            TransformTooLargeError: The transform carries too much with it.
            MissingExtraError: PySpark misses a package on the driver.
            ExecutorSetupError: The executors run the wrong Python.
            JobFailedError: Spark gave the job up.
        """
        try:
            payload: bytes = cloudpickle.dumps(plan)  # type: ignore[no-untyped-call]
        except (TypeError, AttributeError, pickle.PicklingError) as error:
            raise SettingsError(
                what=f"the transform cannot be sent to executors: {error}",
                cure="build what cannot be pickled there: transform=hf.per_worker(YourClass, ...)",
            ) from error
        if len(payload) > _PAYLOAD_MAX_MB * _MEGABYTE:
            raise TransformTooLargeError(
                size_mb=len(payload) // _MEGABYTE, limit_mb=_PAYLOAD_MAX_MB
            )
        try:
            rows = self._df.mapInArrow(bootstrap(payload, __version__), REPORT_SCHEMA).collect()
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
        return [TaskReport.from_json(row["report"]) for row in rows]
