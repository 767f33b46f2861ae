"""A commit to a table with 5,000 snapshots, over one to a table with 10: from seal to receipt.

The history is synthetic: snapshots in the table's metadata that all list the same manifests. Each
round stages a file, as a task does, and measures what a driver does after its last task has ended:
it seals the work, looks for the run's mark and for its file, and posts. Before that it has loaded
the table once, as a run does when it begins.

Two catalogs: REST, where the server parses and writes the metadata, and SQL, where the client does.
What limits us on REST is measured too: one bare commit of a property, and what each request moves.
HOLDFAST_BENCH_SCALE=0.1 tries it with a tenth of the snapshots.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
import uuid
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.table.update import SetPropertiesUpdate
from pyiceberg.types import LongType, NestedField

from bench.rounds import alternate
from bench.seal_to_receipt import SCALE, Publication
from bench.session import open_stack
from holdfast.model.work import StagedGroup
from holdfast.sinks.iceberg.catalog import open_catalog
from holdfast.sinks.iceberg.loading import io_of
from holdfast.sinks.iceberg.sink import IcebergSink
from holdfast.storage.runtime import io_runtime

_SNAPSHOTS = {"young": 10, "old": max(20, int(5_000 * SCALE))}
_ROUNDS = 21
_SCHEMA = Schema(NestedField(1, "id", LongType()))
# The growth on SQL before metadata was parsed once, as measured at 5,000 snapshots.
_GROWTH_BEFORE = 29.0


def run() -> dict[str, Any]:
    """Measure and return the figures."""
    stack = open_stack()
    folder = Path(tempfile.mkdtemp(prefix="holdfast-old-table-"))
    sql = {
        "type": "sql",
        "uri": f"sqlite:///{folder}/catalog.db",
        "warehouse": f"file://{folder}/warehouse",
    }
    store = f"s3://{stack.s3.bucket}/_holdfast"
    try:
        rest = _measured(stack.rest_catalog_properties(), store, stack.s3.store_options())
        rest |= _bare_commits(stack.rest_catalog_properties())
        found = _measured(sql, f"file://{folder}/ledgers", {})
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return {
        "ratio": rest["ratio"],
        "snapshots": _SNAPSHOTS["old"],
        "rest": rest,
        "sql": {**found, "growth_before": _GROWTH_BEFORE},
    }


def _measured(catalog: Mapping[str, str], store: str, options: Mapping[str, str]) -> dict[str, Any]:
    """Measure commits to both tables of one catalog, in turns."""
    made = {name: _table(catalog, most) for name, most in _SNAPSHOTS.items()}
    ready: dict[str, Publication] = {}

    def prepare(name: str) -> str:
        sink = made[name.partition("_")[0]]
        groups = _staged(sink)
        ready[name] = Publication.of(sink, store, options, [groups])
        return name

    requests: dict[str, dict[str, int]] = {}

    def publish(name: str) -> None:
        before, asked = io_runtime().counters, _answers_of(made[name.partition("_")[0]])
        ready[name].publish()
        used = io_runtime().counters.since(before)
        requests[name.partition("_")[0]] = {
            "catalog_requests": len(asked),
            "catalog_bytes": sum(asked),
            "store_requests": used.requests,
            "store_bytes": used.bytes_read + used.bytes_written,
        }

    times = alternate(
        dict.fromkeys(made, publish),
        prepare,
        lambda _name: None,
        rounds=_ROUNDS,
    )
    return {"ratio": times.ratio("old", "young"), **times.figures(), "requests": requests}


def _answers_of(sink: IcebergSink) -> list[int]:
    """Return a list that gets the size of each answer of the catalog from now on."""
    sizes: list[int] = []
    session = getattr(sink._catalog, "_session", None)  # noqa: SLF001 - no other way.
    if session is not None:
        session.hooks["response"] = [lambda answer, **_: sizes.append(len(answer.content))]
    return sizes


def _bare_commits(properties: Mapping[str, str]) -> dict[str, Any]:
    """Measure the catalog alone: it sets a property of each table, and nothing is loaded."""
    made = {name: _table(properties, most).load().handle for name, most in _SNAPSHOTS.items()}
    number = count(1)

    def commit(name: str) -> None:
        table = made[name.partition("_")[0]]
        update = SetPropertiesUpdate(updates={"x": str(next(number))})
        table.catalog.post_once(table, (), (update,))

    times = alternate(
        dict.fromkeys(made, commit), lambda name: name, lambda _name: None, rounds=_ROUNDS
    )
    figures = {f"bare_commit_{name}": found for name, found in times.figures().items()}
    return {"bare_commit_ratio": times.ratio("old", "young"), **figures}


def _staged(sink: IcebergSink) -> list[StagedGroup]:
    writer = sink.writer_spec(sink.load()).open(uuid.uuid4().hex)
    writer.write(writer.fit(pa.record_batch({"id": pa.array([1, 2, 3])})))
    return list(writer.cut())


def _table(properties: Mapping[str, str], snapshots: int) -> IcebergSink:
    """Make a table with a synthetic history."""
    catalog = open_catalog("lake", properties)
    catalog.create_namespace_if_not_exists("bench")
    name = f"bench.history_{uuid.uuid4().hex[:8]}"
    catalog.create_table(name, schema=_SCHEMA)
    sink = IcebergSink(catalog, name, "main")
    sink.post_empty(sink.load())
    table = sink.load().handle
    storage = io_of(table).storage
    metadata = json.loads(storage.get(table.metadata_location))
    head, at_ms = metadata["snapshots"][-1], int(time.time() * 1000)
    for number in range(1, snapshots):
        metadata["last-sequence-number"] += 1
        more = {
            "snapshot-id": 10**15 + number,
            "parent-snapshot-id": metadata["current-snapshot-id"],
            "sequence-number": metadata["last-sequence-number"],
            "timestamp-ms": at_ms + number,
        }
        metadata["snapshots"].append({**head, **more})
        entry = {"snapshot-id": more["snapshot-id"], "timestamp-ms": at_ms + number}
        metadata["snapshot-log"].append(entry)
        metadata["current-snapshot-id"] = more["snapshot-id"]
        metadata["refs"]["main"]["snapshot-id"] = more["snapshot-id"]
    metadata["last-updated-ms"] = at_ms + snapshots
    location = table.metadata_location.replace("metadata.json", "history.metadata.json")
    storage.put(location, json.dumps(metadata).encode())
    catalog.register_table(f"{name}_old", location)
    return IcebergSink(catalog, f"{name}_old", "main")
