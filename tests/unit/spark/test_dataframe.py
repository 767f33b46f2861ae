"""Submitting a job: the SQL of a row's hash, and our own errors for what goes wrong."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.sql import types as st
from pyspark.sql.types import LongType, StructField, StructType

from holdfast.errors import JobFailedError, SettingsError
from holdfast.ledger.row_files import KeyFiles
from holdfast.spark.dataframe import DataFrameSubmitter, column_types, row_hash_sql
from holdfast.spark.jobs import reports_of
from holdfast.worker.reports import TaskReport
from holdfast.worker.task import TaskPlan
from tests.fakes.logs import job_ledger
from tests.fakes.memory_storage import MemoryStorage
from tests.fakes.memory_writer import MemoryWriterSpec

# ---- The SQL of a row's hash, by type. What Spark makes of it:
# tests/integration/test_input_values
INT = st.IntegerType()


def hash_of(kind: st.DataType, name: str = "c") -> str:
    """Return the SQL that hashes one column, without the salt."""
    schema = st.StructType([st.StructField(name, kind)])
    found = re.fullmatch(r"xxhash64\(\d+L(?:, (.*))?\)", row_hash_sql(schema, ["_0"]))
    assert found is not None
    return found[1]


# What makes the hashes of two different values differ: a mark for NULL, a length, sorted entries.
NULL_AT = "if(exists({0}, {1} -> {1} IS NULL), xxhash64(transform({0}, {1} -> {1} IS NULL)), 0L)"
EXPRESSIONS = {
    "plain": (INT, "_0 IS NULL, _0"),
    "void": (st.NullType(), "_0 IS NULL"),
    "struct": (
        st.StructType([st.StructField("a`b", INT), st.StructField("c", st.NullType())]),
        "_0 IS NULL, _0.`a``b` IS NULL, _0.`a``b`, _0.`c` IS NULL",
    ),
    "array": (
        st.ArrayType(INT),
        f"coalesce(size(_0), -1), {NULL_AT.format('_0', 'e0')}, _0",
    ),
    "array of structs": (
        st.ArrayType(st.StructType([st.StructField("x", INT)])),
        "coalesce(size(_0), -1), transform(_0, e0 -> xxhash64(e0 IS NULL, e0.`x` IS NULL, e0.`x`))",
    ),
    "array of arrays": (
        st.ArrayType(st.ArrayType(INT)),
        (
            "coalesce(size(_0), -1), transform(_0, e0 -> xxhash64(coalesce(size(e0), -1), "
            f"{NULL_AT.format('e0', 'e1')}, e0))"
        ),
    ),
    "map": (
        st.MapType(st.StringType(), INT),
        (
            "coalesce(size(_0), -1), sort_array(transform(map_entries(_0), e0 -> xxhash64("
            "e0.key IS NULL, e0.key, e0.value IS NULL, e0.value)))"
        ),
    ),
}


@pytest.mark.parametrize("kind", EXPRESSIONS)
def test_each_type_is_hashed_so_that_different_values_differ(kind: str) -> None:
    """Spark's own hash skips NULLs, ignores lengths and refuses maps."""
    given, expected = EXPRESSIONS[kind]
    assert hash_of(given) == expected


def schema_of(**columns: st.DataType) -> st.StructType:
    """Return a schema with these columns."""
    return st.StructType([st.StructField(name, kind) for name, kind in columns.items()])


def test_column_names_and_types_matter_but_not_their_order() -> None:
    """A column that is new, renamed or of another type changes every row's hash."""
    first = row_hash_sql(schema_of(a=INT, b=INT), ["x", "y"])
    assert first == row_hash_sql(schema_of(b=INT, a=INT), ["y", "x"])
    others = [
        row_hash_sql(schema_of(a=INT, c=INT), ["x", "y"]),
        row_hash_sql(schema_of(a=INT, b=st.LongType()), ["x", "y"]),
        row_hash_sql(schema_of(a=INT), ["x"]),
    ]
    assert len({first, *others}) == 4


def test_columns_are_named_with_their_types() -> None:
    """So that an error can say which of them are new or gone."""
    schema = schema_of(b=st.MapType(INT, INT), a=st.StringType())
    assert column_types(schema) == ("a string", "b map<int,int>")


def test_whether_a_column_may_be_null_is_not_hashed() -> None:
    """The same values may come from a file that declares nullability and from one that does not."""
    loose, strict = (
        st.StructType([st.StructField("a", INT, nullable)]) for nullable in (True, False)
    )
    assert row_hash_sql(loose, ["x"]) == row_hash_sql(strict, ["x"])


# ---- Submitting a job: every failure on the way to Spark and back raises one of our errors
NOTHING_FINISHED = KeyFiles(storage=MemoryStorage(), uris={})


class FailingFrame:
    """A DataFrame whose job ends with the given error."""

    schema = StructType([StructField("id", LongType())])
    columns = ("id",)

    def __init__(self, error: Exception) -> None:
        """Keep the error."""
        self.jobs = 0
        self._error = error

    def mapInArrow(self, *_: object) -> FailingFrame:  # noqa: N802 - PySpark's name.
        """Plan the job; Spark runs nothing yet."""
        return self

    def collect(self) -> list[Any]:
        """Run the job."""
        self.jobs += 1
        raise self._error


def plan(transform: Callable[[pa.RecordBatch], Any] | None = None) -> TaskPlan:
    """Return a plan with this transform."""
    return TaskPlan(
        transform=transform,
        batch_rows=None,
        key=("id",),
        writer=MemoryWriterSpec(pa.schema([("id", pa.int64())])),
        ledger=job_ledger(),
        job_nonce="job",
    )


class SummedFrame:
    """A DataFrame whose sums Spark has computed."""

    schema = StructType([StructField("id", LongType()), StructField("a.b", st.StringType())])
    columns = ("id", "a.b")

    def toDF(self, *_: str) -> SummedFrame:  # noqa: N802 - PySpark's name.
        """Return the same rows under other names."""
        return self

    def select(self, *_: str) -> SummedFrame:
        """Return some columns."""
        return self

    def collect(self) -> list[Any]:
        """Return the sums."""
        sums = {"rows": 3, "null_keys": 0, "low": 1, "high": 1, "doubled": 0}
        return [SimpleNamespace(asDict=lambda: sums)]


def test_a_look_at_whole_rows_notes_the_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """If rows differ at a later start, its error says which columns are new or gone."""
    monkeypatch.setattr(
        "holdfast.spark.dataframe.sums_and_doubles_of", lambda frame, _key, **_row: frame
    )
    submitter = DataFrameSubmitter(SummedFrame(), ("id",))
    found, _ = submitter.look(whole_rows=True)
    assert found.columns == ("a.b string", "id bigint")
    only_keys, _ = submitter.look()
    assert only_keys.columns == ()


@pytest.mark.parametrize(
    "error",
    [
        Py4JError("An error occurred while calling o51.collectToPython"),
        Py4JNetworkError("Answer from Java side is empty"),
        PySparkException("Job aborted due to stage failure"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_whatever_ends_the_job_is_a_failed_job(error: Exception) -> None:
    """A driver JVM that dies raises no PySpark error; the user still sees ours."""
    frame = FailingFrame(error)
    with pytest.raises(JobFailedError, match="Spark could not finish the job") as caught:
        DataFrameSubmitter(frame, ("id",)).submit(plan(), NOTHING_FINISHED)
    assert frame.jobs == 1
    assert caught.value.retry_safe
    assert str(error) in caught.value.reason


def test_what_the_jvm_says_is_told_without_its_stack() -> None:
    """A worker that dies leaves hundreds of frames, and the cause between them."""
    frames = [
        f"\tat org.apache.spark.api.python.Runner{n}.read(Runner.scala:{n})" for n in range(90)
    ]
    cause = "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)"
    whole = ["Job aborted due to stage failure", *frames, cause, *frames]
    whole += ["Caused by: java.io.EOFException", *frames, "\t... 36 more"]
    with pytest.raises(JobFailedError) as caught:
        DataFrameSubmitter(FailingFrame(Py4JError("\n".join(whole))), ("id",)).submit(
            plan(), NOTHING_FINISHED
        )
    told = ["Job aborted due to stage failure", cause, "Caused by: java.io.EOFException"]
    assert caught.value.reason.splitlines() == told


class NamedFrame:
    """A DataFrame that looks its columns up by name, as PySpark's `mapInArrow` does."""

    def __init__(self, columns: Sequence[str]) -> None:
        """Keep the names of the columns, which hold their own positions."""
        self.columns = list(columns)
        self.reports: list[Any] = []

    def toDF(self, *columns: str) -> NamedFrame:  # noqa: N802 - PySpark's name.
        """Return the same rows under other names."""
        return NamedFrame(columns)

    def mapInArrow(self, task: Callable[[Any], Any], _schema: str) -> NamedFrame:  # noqa: N802
        """Run the task over one batch."""
        assert not any(sign in name for name in self.columns for sign in ".`")
        values = [pa.array([number]) for number in range(len(self.columns))]
        batch = pa.RecordBatch.from_arrays(values, names=self.columns)
        self.reports = [row for answer in task(iter([batch])) for row in answer.to_pylist()]
        return self

    def collect(self) -> list[Any]:
        """Return what the task reported."""
        return self.reports


@pytest.mark.parametrize("names", [["id", "n"], ["c1", "a.b"], ["with`tick", "c0"]])
def test_a_column_whose_name_reads_as_a_path_arrives_under_its_name(names: list[str]) -> None:
    """PySpark looks columns up by name, and reads a dot as a path into a struct."""
    seen: list[tuple[list[str], list[Any]]] = []
    SEEN[id(seen)] = seen
    reports_of(NamedFrame(names), Watching(id(seen)))
    assert seen == [(names, [0, 1])]


# What `Watching` has seen, by the number that its test gave it.
SEEN: dict[int, list[tuple[list[str], list[Any]]]] = {}


@dataclass(frozen=True)
class Watching:
    """A plan that records what it receives."""

    number: int

    def run(self, batches: Iterable[pa.RecordBatch], **_: int) -> TaskReport:
        """Record the names and the first row of each batch."""
        for batch in batches:
            SEEN[self.number].append((batch.schema.names, list(batch.to_pylist()[0].values())))
        return TaskReport(place=0)


def test_a_transform_that_cannot_be_pickled_is_refused_with_advice() -> None:
    """Locks, clients and open files belong on the worker; no job is started with them."""
    lock = threading.Lock()

    def guarded(batch: pa.RecordBatch) -> pa.RecordBatch:
        with lock:
            return batch

    frame = FailingFrame(AssertionError("submitted"))
    with pytest.raises(SettingsError, match=r"hf\.per_worker") as caught:
        DataFrameSubmitter(frame, ("id",)).submit(plan(guarded), NOTHING_FINISHED)
    assert "lock" in caught.value.what
    assert frame.jobs == 0
