"""Submitting a job: what goes wrong on the way to Spark and back has an error of ours."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.sql.types import LongType, StructField, StructType

from holdfast.errors import JobFailedError, SettingsError
from holdfast.ledger.row_files import KeyFiles
from holdfast.spark.dataframe import DataFrameSubmitter
from holdfast.spark.jobs import reports_of
from holdfast.worker.reports import TaskReport
from holdfast.worker.task import TaskPlan
from tests.fakes.logs import job_ledger
from tests.fakes.memory_storage import MemoryStorage
from tests.fakes.memory_writer import MemoryWriterSpec

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
    """A driver JVM that dies does not speak PySpark's language, and the user reads ours."""
    frame = FailingFrame(error)
    with pytest.raises(JobFailedError, match="Spark could not finish the job") as caught:
        DataFrameSubmitter(frame, ("id",)).submit(plan(), NOTHING_FINISHED)
    assert frame.jobs == 1
    assert caught.value.retry_safe
    assert str(error) in caught.value.reason


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
        """Return what the task has said."""
        return self.reports


@pytest.mark.parametrize("names", [["id", "n"], ["c1", "a.b"], ["with`tick", "c0"]])
def test_a_column_whose_name_reads_as_a_path_arrives_under_its_name(names: list[str]) -> None:
    """PySpark looks columns up by their names, and takes a dot for the way into a struct."""
    seen: list[tuple[list[str], list[Any]]] = []
    SEEN[id(seen)] = seen
    reports_of(NamedFrame(names), Watching(id(seen)))
    assert seen == [(names, [0, 1])]


# What `Watching` has seen, by the number that its test gave it.
SEEN: dict[int, list[tuple[list[str], list[Any]]]] = {}


@dataclass(frozen=True)
class Watching:
    """A plan that notes what it gets."""

    number: int

    def run(self, batches: Iterable[pa.RecordBatch], **_: int) -> TaskReport:
        """Note the names and the first row of each batch."""
        for batch in batches:
            SEEN[self.number].append((batch.schema.names, list(batch.to_pylist()[0].values())))
        return TaskReport(place=0)


def test_a_transform_that_cannot_be_pickled_is_refused_with_advice() -> None:
    """Locks, clients and open files are built on the worker; no job is started for them."""
    lock = threading.Lock()

    def guarded(batch: pa.RecordBatch) -> pa.RecordBatch:
        with lock:
            return batch

    frame = FailingFrame(AssertionError("submitted"))
    with pytest.raises(SettingsError, match=r"hf\.per_worker") as caught:
        DataFrameSubmitter(frame, ("id",)).submit(plan(guarded), NOTHING_FINISHED)
    assert "lock" in caught.value.what
    assert frame.jobs == 0
