"""Run plans as Spark jobs: mapInArrow, then collect the tasks' reports. Checkups too."""

from __future__ import annotations

import contextlib
import json
import re
import sys
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark import cloudpickle
from pyspark.errors import (
    AnalysisException,
    IllegalArgumentException,
    ParseException,
    PySparkAttributeError,
    PySparkException,
    PySparkTypeError,
    PySparkValueError,
)
from pyspark.sql import SparkSession as PySparkSession
from pyspark.sql import functions as sf

from holdfast._version import __version__
from holdfast.errors import (
    ExecutorSetupError,
    JobFailedError,
    MissingExtraError,
    SettingsError,
    TransformTooLargeError,
)
from holdfast.model.lasting import passes_by_text, text_lasts
from holdfast.sources.materialized import WritePlan
from holdfast.spark import SparkDataFrame, SparkSession
from holdfast.spark.bootstrap import REPORT_SCHEMA, bootstrap
from holdfast.worker.replay import ITEM_COLUMN
from holdfast.worker.reports import CheckupPlan, TaskReport
from holdfast.worker.task import ItemPlan, TaskPlan

# ---- Run plans as Spark jobs: mapInArrow, then collect the tasks' reports

try:
    from py4j.protocol import Py4JError
except ImportError:  # A Spark Connect client needs no JVM bridge.
    Py4JError = PySparkException

_MEGABYTE = 1_000_000
_PAYLOAD_MAX_MB = 50
_REASON_LENGTH_MAX = 2000
_FRAME = re.compile(r"\s+at \S+\(.*\)$|\s*\.\.\. \d+ more$")
# What Spark's worker reports before any of our code can run.
_REFUSED_QUERIES = (
    AnalysisException,
    IllegalArgumentException,
    ParseException,
    PySparkAttributeError,
    PySparkTypeError,
    PySparkValueError,
)
# SQLSTATE classes: data exceptions, and syntax errors or missing permissions.
_LASTING_STATES = ("22", "42")
# What one of our errors says when it was raised in a task.
_OWN_WORD = re.compile(r"^ *Worth a retry: (yes|no)", re.MULTILINE)
# A user's Python function; classes of Hadoop and the JVM.
_LASTING_FAILURES = re.compile(
    r"^(?:ArithmeticError|AssertionError|AttributeError|ImportError|IndexError|KeyError|"
    r"ModuleNotFoundError|NameError|NotImplementedError|TypeError|ValueError|ZeroDivisionError)\b|"
    r"\b(?:AccessControlException|AccessDeniedException|ClassNotFoundException|"
    r"NoClassDefFoundError|UnknownStoreException|UnsupportedFileSystemException)\b|"
    r"No FileSystem for scheme",
    re.MULTILINE,
)
# A client in a user's function, however the function wrapped its error.
_PASSING_FAILURES = re.compile(
    r"^(?:requests\.exceptions\.\w*(?:Connection|Timeout)\w*|httpx\.\w+|ConnectionError|"
    r"ConnectionResetError|ConnectionRefusedError|TimeoutError)\b",
    re.MULTILINE,
)
_WRONG_PYTHON = ("No module named 'pyarrow'", "PYTHON_VERSION_MISMATCH", "No module named 'numpy'")


class SparkJobs:
    """Runs plans over work items that are known by number."""

    def __init__(self, session: SparkSession) -> None:
        """Keep the session; nothing runs yet."""
        self._session = session

    @property
    def slots(self) -> int:
        """How many tasks run at once.

        Raises:
            JobFailedError: Spark does not report its parallelism.
        """
        with spark_errors():
            try:
                return max(1, int(self._session.sparkContext.defaultParallelism))
            except (AttributeError, PySparkException):  # Connect: count how Spark splits a range.
                numbers = self._session.range(1 << 20).selectExpr("spark_partition_id() AS place")
                return max(1, int(numbers.distinct().count()))

    def run(self, plan: TaskPlan, items: int) -> list[TaskReport]:
        """Run a plan over this many items, each in its own task, and wait for all.

        Raises:
            SettingsError: The transform cannot be pickled.
            TransformTooLargeError: The pickled transform is too large.
            MissingExtraError: PySpark lacks a package on the driver.
            ExecutorSetupError: The executors run the wrong Python.
            JobFailedError: Spark gave up on the job.
        """
        return run_plan(self._session.range(0, items, 1, max(1, items)), plan)

    def items(self, plan: ItemPlan, items: Sequence[str]) -> list[TaskReport]:
        """Run a plan over string work items, each in its own task.

        Raises:
            JobFailedError: Spark gave up on the job.
        """
        return run_plan(one_a_partition(self._session, items), plan)


class JobsBeside:
    """Jobs that another thread runs beside a plan; they can be cancelled without the plan."""

    def __init__(self, session: SparkSession) -> None:
        """Keep the session; nothing runs yet."""
        self._session = session
        self._name = f"holdfast-{uuid.uuid4().hex}"

    def begin(self) -> None:
        """Tag all jobs that this thread starts from now on."""
        try:
            context = self._session.sparkContext
        except (AttributeError, PySparkException):  # Spark Connect.
            self._session.addTag(self._name)
            return
        context.setJobGroup(self._name, "holdfast: compare keys")
        # Under FAIR scheduling, its own pool: in the plan's pool it would wait for the plan.
        context.setLocalProperty("spark.scheduler.pool", "holdfast")

    def cancel(self) -> None:
        """Cancel them, as far as Spark allows; the rest end on their own."""
        with contextlib.suppress(AttributeError, PySparkException, Py4JError):
            try:
                context = self._session.sparkContext
            except (AttributeError, PySparkException):
                self._session.interruptTag(self._name)
            else:
                context.cancelJobGroup(self._name)


def one_a_partition(session: SparkSession, items: Sequence[str]) -> SparkDataFrame:
    """Return work items as a DataFrame with each in its own partition.

    Not with `repartition`, which distributes rows from a random start: several may end up together,
    and one task then works for a long time while others are idle.
    """
    texts = sf.array(*(sf.lit(item) for item in items))
    number = (sf.col("id") + 1).cast("int")
    numbers = session.range(0, len(items), 1, len(items))
    return numbers.select(sf.element_at(texts, number).alias(ITEM_COLUMN))


def run_plan(df: SparkDataFrame, plan: TaskPlan | ItemPlan) -> list[TaskReport]:
    """Run a plan over the DataFrame's partitions, and wait for all of them.

    Raises:
        SettingsError: The transform cannot be pickled.
        TransformTooLargeError: The pickled transform is too large.
    """
    return [TaskReport.from_json(report) for report in reports_of(df, plan)]


def reports_of(
    df: SparkDataFrame, plan: TaskPlan | ItemPlan | WritePlan | CheckupPlan
) -> list[str]:
    """Run a plan over the DataFrame's partitions, and return each task's report as JSON.

    Raises:
        SettingsError: The transform cannot be pickled.
        TransformTooLargeError: The pickled transform is too large.
    """
    try:
        payload: bytes = cloudpickle.dumps(plan)  # type: ignore[no-untyped-call]
    except PySparkException as error:
        raise SettingsError(
            what="the transform uses the Spark session or a DataFrame, which executors do not have",
            cure="join what it needs to the source, or collect it before and pass the values",
        ) from error
    except Exception as error:  # Classes of the user may raise anything.
        raise SettingsError(
            what=f"the transform cannot be sent to executors: {error}",
            cure="build what cannot be pickled on the worker: "
            "transform=hf.per_worker(YourClass, ...)",
        ) from error
    if len(payload) > _PAYLOAD_MAX_MB * _MEGABYTE:
        raise TransformTooLargeError(size_mb=len(payload) // _MEGABYTE, limit_mb=_PAYLOAD_MAX_MB)
    with spark_errors():
        df, names = _without_paths(df)
        rows = df.mapInArrow(bootstrap(payload, __version__, names), REPORT_SCHEMA).collect()
    return [row["report"] for row in rows]


def _without_paths(df: SparkDataFrame) -> tuple[SparkDataFrame, tuple[str, ...]]:
    """Return the DataFrame with numbered columns if a name looks like a path, and the names.

    PySpark 4.1's `mapInArrow` looks up each column by name, without quoting it.
    """
    names = tuple(df.columns)
    if not any(sign in name for name in names for sign in ".`"):
        return df, ()
    return df.toDF(*(f"c{number}" for number in range(len(names)))), names


@contextlib.contextmanager
def spark_errors() -> Iterator[None]:
    """Translate Spark's failures into our own errors.

    Raises:
        MissingExtraError: PySpark lacks a package on the driver.
        ExecutorSetupError: The executors run the wrong Python.
        JobFailedError: Spark gave up on the job.
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
                what="its Python lacks pyarrow, or its version differs from the driver's",
                cure="set PYSPARK_PYTHON (or spark.pyspark.python) to an environment that has "
                f"holdfast {__version__}; on one machine that is {sys.executable}",
            ) from error
        raise JobFailedError(
            reason=_without_frames(reason), retry_safe=not _job_lasts(error, reason)
        ) from error


def _without_frames(reason: str) -> str:
    """Return the end of a message from the JVM, where the cause is, without its stack frames."""
    lines = [line for line in reason.splitlines() if not _FRAME.match(line)]
    while len(lines) > 1 and sum(map(len, lines)) > _REASON_LENGTH_MAX:
        del lines[0]
    return "\n".join(lines)[-_REASON_LENGTH_MAX:]


def _job_lasts(error: Exception, reason: str) -> bool:
    """Whether the same job would fail the same way later.

    That is so for a query that Spark refuses: a path, a column, a type, a value that cannot be
    cast. Lost executors, a store that does not answer, and anything unknown may be transient. If
    one of our own errors was raised in a task, what it says about a retry counts.
    """
    if passes_by_text(reason) or _PASSING_FAILURES.search(reason):
        return False  # Even if wrapped: to Spark, an unreachable metastore is a refused query.
    if isinstance(error, _REFUSED_QUERIES):
        return True
    if own := _OWN_WORD.findall(reason):
        return "no" in own
    state = None
    with contextlib.suppress(Exception):  # It asks the JVM, which may be what has died.
        state = error.getSqlState() if isinstance(error, PySparkException) else None
    if (state or "").startswith(_LASTING_STATES) or _LASTING_FAILURES.search(reason):
        return True
    return text_lasts(reason)


# ---- Start a session for a checkup, and run the checks on each executor

_QUIET = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}


@contextlib.contextmanager
def session_at(url: str) -> Iterator[SparkSession]:
    """Start a session, and stop it at the end.

    Args:
        url: A master (`local[*]`, `spark://...`, `yarn`), or a Spark Connect server (`sc://...`).

    Raises:
        MissingExtraError: PySpark lacks a package.
        JobFailedError: The session does not start.
    """
    builder: Any = PySparkSession.builder
    with spark_errors():
        if url.startswith("sc://"):
            session = builder.remote(url).getOrCreate()
            session.range(1).count()  # Until then no server was contacted.
        else:
            for name, value in _QUIET.items():
                builder = builder.config(name, value)
            session = builder.master(url).appName("holdfast doctor").getOrCreate()
            session.sparkContext.setLogLevel("ERROR")
    try:
        yield session
    finally:
        session.stop()


def checkups(session: SparkSession, plan: CheckupPlan) -> list[dict[str, Any]]:
    """Run one task for each slot, and return their reports.

    Raises:
        ExecutorSetupError: The executors run the wrong Python.
        JobFailedError: Spark gave up on the job.
    """
    slots = SparkJobs(session).slots
    reports = reports_of(session.range(0, slots, 1, slots), plan)
    return [json.loads(report) for report in reports]
