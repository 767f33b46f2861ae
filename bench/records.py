"""A run of 10,000 task records: what it costs to seal, read and sweep them.

Tasks in this process write them, two rows in each; only what a driver does with them is measured.
Their driver dies before it seals any. A new start takes them over and commits; the status is read
before and after, and a sweep comes last. Everything goes to the S3 server and the catalog, the
store's requests through a proxy that counts them. The other side is the same records, listed and
fetched by the store's client alone, as many at a time as Holdfast fetches: the ratio is that of the
first status, which reads and checks every record, over that.
"""

from __future__ import annotations

import contextlib
import statistics
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import obstore
from obstore.store import S3Store
from pyiceberg.catalog import load_catalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

import holdfast as hf
from bench.counting_proxy import CountingProxy, count_requests
from bench.session import open_stack
from holdfast.engine import input_check
from holdfast.engine.cleanup import sweep
from holdfast.engine.drive import Driver
from holdfast.engine.input_check import all_differ
from holdfast.engine.options import WriteOptions
from holdfast.engine.watch import status
from holdfast.engine.workbook import Workbook
from holdfast.ledger.ledger import Ledger
from holdfast.ledger.ports import Ports
from holdfast.model.records import Identity
from holdfast.model.report import Report
from holdfast.opening import open_table
from holdfast.sinks.base import Sink
from holdfast.storage.objects import ObjectStorage
from tests.fakes.memory_submitter import MemorySubmitter
from tests.fakes.unpinned import Unpinned
from tests.stack_access import Stack

_RECORDS = 10_000
_ROWS = 2 * _RECORDS
_AT_A_TIME = 16
_ROUNDS = 3


class _DriverEndedError(Exception):
    """Ends the first driver."""


class _Meter:
    """Measures steps: seconds, requests, and how far memory rose above what it was before."""

    def __init__(self, proxy: CountingProxy) -> None:
        """Count what comes through the proxy."""
        self._proxy = proxy
        self.steps: dict[str, dict[str, float]] = {}

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Measure one step."""
        self._proxy.reset()
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        before, started = _memory_mb("VmRSS"), time.monotonic()
        yield
        self.steps[name] = {
            "seconds": round(time.monotonic() - started, 2),
            "requests": len(self._proxy.settled()),
            "more_mb": round(_memory_mb("VmHWM") - before, 1),
        }
        print(f"  {name:<18} {self.steps[name]}", flush=True)

    def part(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that adds its seconds to a part of a step."""

        def timed(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - whatever it takes.
            started = time.monotonic()
            try:
                return function(*arguments, **named)
            finally:
                so_far = self.steps.setdefault(name, {"seconds": 0.0})
                so_far["seconds"] = round(so_far["seconds"] + time.monotonic() - started, 2)

        return timed


def _memory_mb(field: str) -> float:
    """Return a figure of this process's memory from the kernel.

    Raises:
        SystemExit: The kernel does not report it.
    """
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) / 1024
    raise SystemExit(f"/proc/self/status has no {field}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """One run, whose tasks run in this process."""

    stack: Stack
    store: str
    table: str

    def ledger(self) -> Ledger:
        """Open the run's ledger as a driver does."""
        storage = ObjectStorage(self.stack.s3.store_options())
        return Ledger.open("records", f"s3://{self.stack.s3.bucket}/{self.store}", storage, Ports())

    def sink(self, _identity: Identity | None = None) -> Sink:
        """Open the table."""
        target = hf.IcebergTable(self.table, catalog=self.stack.rest_catalog_properties())
        return open_table(target, None)

    def start(self) -> Report:
        """Start a driver."""
        # Far apart, so that the records' ranges alone do not prove that no key is there twice.
        tasks = (range(number, _ROWS, _RECORDS) for number in range(_RECORDS))
        rows = MemorySubmitter(*tasks)
        sink = self.sink()
        view = sink.load()
        identity = Identity(
            table=sink.name,
            table_uuid=view.uuid,
            branch="main",
            mode="append",
            key=("id",),
            session_time_zone="UTC",
            ansi_mode="true",
            version="",
        )
        driver = Driver(ledger=self.ledger(), sink=sink, input=Unpinned(rows))
        return driver.write(view, identity, WriteOptions(takeover="now"))


def _objects_alone(stack: Stack, folder: str) -> int:
    """List a folder and fetch its records with the store's client; return how many there are."""
    store = S3Store(
        stack.s3.bucket,
        endpoint=stack.s3.endpoint,
        access_key_id=stack.s3.access_key,
        secret_access_key=stack.s3.secret_key,
        region=stack.s3.region,
        client_options={"allow_http": True},
    )
    paths = [item["path"] for page in obstore.list(store, folder) for item in page]
    paths = [path for path in paths if path.endswith(".json")]
    with ThreadPoolExecutor(_AT_A_TIME) as pool:
        return sum(1 for _ in pool.map(lambda path: obstore.get(store, path).bytes(), paths))


def run() -> dict[str, Any]:
    """Measure and return the figures.

    Raises:
        SystemExit: The rows did not arrive.
    """
    stack = open_stack()
    with count_requests(stack.s3.endpoint) as proxy:
        wired = replace(stack, s3=replace(stack.s3, endpoint=proxy.url))
        catalog = load_catalog("bench", **stack.rest_catalog_properties())
        catalog.create_namespace_if_not_exists("bench")
        name = f"records_{uuid.uuid4().hex[:12]}"
        catalog.create_table(f"bench.{name}", Schema(NestedField(1, "id", LongType())))
        job = _Job(stack=wired, store=f"_holdfast/{name}", table=f"bench.{name}")
        figures = _measure(job, _Meter(proxy))
        found = catalog.load_table(job.table).scan().count()
        catalog.drop_table(job.table)
    if (found, figures["kept_rows"]) != (_ROWS, _ROWS):
        raise SystemExit(f"{found} rows landed, and {figures['kept_rows']} were kept")
    return figures


def _measure(job: _Job, meter: _Meter) -> dict[str, Any]:
    with (
        meter.step("first start"),
        mock.patch.object(Workbook, "take_tasks", _first_driver_ends),
        contextlib.suppress(_DriverEndedError),
    ):
        job.start()
    ratios = []
    for number in range(1, _ROUNDS + 1):
        with meter.step(f"status {number}"):
            status(job.ledger())
        with meter.step(f"objects alone {number}"):
            objects = _objects_alone(job.stack, f"{job.store}/")
        ours, bare = meter.steps[f"status {number}"], meter.steps[f"objects alone {number}"]
        ratios.append(ours["seconds"] / bare["seconds"])
    with (
        meter.step("second start"),
        mock.patch.object(Workbook, "inherit", meter.part("take over", Workbook.inherit)),
        mock.patch.object(Workbook, "seal", meter.part("seal", Workbook.seal)),
        mock.patch.object(input_check, "all_differ", meter.part("duplicate check", all_differ)),
    ):
        driven = job.start()
    with meter.step("status, landed"):
        status(job.ledger())
    with meter.step("sweep"):
        swept = sweep(job.ledger(), job.sink)
    return {
        "ratio": round(statistics.median(ratios), 3),
        "records": _RECORDS,
        "kept_rows": driven.kept_rows,
        "json_objects": objects,
        "swept_objects": swept.ledger_objects,
        "steps": meter.steps,
    }


def _first_driver_ends(_book: Workbook, reports: Any = ()) -> None:  # noqa: ANN401 - of tasks.
    if reports:
        raise _DriverEndedError
