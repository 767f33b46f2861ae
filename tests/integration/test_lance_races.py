"""Races on a Lance dataset, commit step only: two drivers of one run, released at one barrier.

Neither is fenced here, which is harder than what the run log allows: both look, post, and look
again until they know that the run has landed. HOLDFAST_RACES sets the number of rounds.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from holdfast.model.records import Intent
from holdfast.sinks.base import MarkFound, Sink
from holdfast.sinks.lance.sink import open_sink
from holdfast.sinks.targets import Create, LanceTable
from tests.contract.lance_tables import LanceDatasetUnderTest
from tests.stack_access import Stack, missing

ROUNDS = int(os.environ.get("HOLDFAST_RACES") or 20)
# A round of creation takes a hundredth of a second there, and few of them are close races.
LOCAL_CREATIONS = 300
TRIES_MAX = 20
IDS = [0, 1, 2]
SCHEMA = pa.schema([("id", pa.int64())])


@dataclass
class Place:
    """The storage that the rounds run on."""

    folder: str
    options: dict[str, str] = field(default_factory=dict)

    def uri(self) -> str:
        """Return a new dataset's URI."""
        return f"{self.folder}/{uuid.uuid4().hex}.lance"


@pytest.fixture(
    params=[
        "local",
        pytest.param("versitygw", marks=pytest.mark.stack),
        pytest.param("minio", marks=pytest.mark.stack),
    ]
)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Return each kind of storage."""
    if request.param == "local":
        return Place(f"file://{tmp_path}")
    stack: Stack = request.getfixturevalue("stack")
    server = stack.s3 if request.param == "versitygw" else stack.minio
    if server is None:
        missing("MinIO is not part of the running stack: make stack WITH=minio")
    return Place(f"s3://{server.bucket}/races-{uuid.uuid4().hex[:8]}", server.store_options())


@dataclass
class Race:
    """One round: a dataset, and the log that both drivers share."""

    table: LanceDatasetUnderTest
    barrier: threading.Barrier
    intents: dict[int, Intent] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def drive(self) -> MarkFound:
        """Act as one driver: look and post until the run has landed."""
        sink = self.table.sink()
        groups = self.table.stage(IDS)
        self.barrier.wait(timeout=60)
        for _ in range(TRIES_MAX):
            number = next(self.numbers)
            attempt = replace(self.table.attempt([], number=number, sink=sink), groups=groups)
            self.intents[number] = attempt.intent
            if found := self.find(sink, attempt.run_id, attempt.mark.run_nonce):
                return found
            attempt.post()
            if found := self.find(sink, attempt.run_id, attempt.mark.run_nonce):
                return found
        raise AssertionError(f"{TRIES_MAX} tries, and the run has not landed")

    def find(self, sink: Sink, run_id: str, nonce: str) -> MarkFound | None:
        """Look for the run, as a driver that reads the shared log does."""
        return sink.find_mark(sink.load(), run_id, nonce, dict(self.intents))

    def append_foreign(self) -> None:
        """Act as another writer."""
        self.barrier.wait(timeout=60)
        self.table.foreign_append()


def race(table: LanceDatasetUnderTest, *others: Callable[[Race], object]) -> list[MarkFound]:
    """Release two drivers, and others with them; return what the drivers found."""
    found = Race(table, threading.Barrier(2 + len(others)))
    with ThreadPoolExecutor(2 + len(others)) as pool:
        drivers = [pool.submit(found.drive) for _ in range(2)]
        rest = [pool.submit(other, found) for other in others]
        for job in rest:
            job.result()
        return [driver.result() for driver in drivers]


@pytest.mark.timeout(1800)
def test_two_drivers_make_one_version(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows are there once, in one new version, and both drivers name it."""
    storage = {**place.options}
    for number in range(ROUNDS):
        table = LanceDatasetUnderTest(place.uri(), storage, monkeypatch, empty=False)
        before = table.load().version
        found = race(table)
        assert Counter(table.rows()) == Counter([-1, *IDS]), f"round {number}"
        assert table.load().version == before + 1, f"round {number}"
        assert found[0] == found[1]


@pytest.mark.timeout(1800)
def test_two_drivers_and_a_foreign_appender(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """What another writer appends at the same moment is there too, once."""
    for number in range(ROUNDS):
        table = LanceDatasetUnderTest(place.uri(), place.options, monkeypatch, empty=False)
        before = table.load().version
        found = race(table, Race.append_foreign)
        assert Counter(table.rows()) == Counter([-1, -1, *IDS]), f"round {number}"
        assert table.load().version == before + 2, f"round {number}"
        assert found[0] == found[1]


@pytest.mark.timeout(1800)
def test_a_dataset_is_created_once(place: Place) -> None:
    """Of two drivers that create it, one does; the other finds it, and never overwrites it."""
    is_local = place.folder.startswith("file:")
    for number in range(max(ROUNDS, LOCAL_CREATIONS) if is_local else ROUNDS):
        target = LanceTable(place.uri(), storage_options=place.options)
        barrier = threading.Barrier(2)

        def create(target: LanceTable, barrier: threading.Barrier) -> str:
            barrier.wait(timeout=60)
            sink = open_sink(
                target,
                settings_under=lambda _: {},
                create=Create(schema=SCHEMA),
                default_schema=lambda: SCHEMA,
            )
            return sink.load().uuid

        with ThreadPoolExecutor(2) as pool:
            ids = {job.result() for job in [pool.submit(create, target, barrier) for _ in "ab"]}
        assert len(ids) == 1, f"round {number}"
        options = LanceDatasetUnderTest.lance_options(place.options)
        dataset = lance.dataset(target.uri, storage_options=options)
        assert dataset.version == 1, f"round {number}"
