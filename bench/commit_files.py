"""A commit of 100,000 files from 10,000 tasks, over Java's own append: from seal to receipt.

Both sides publish the same list of files, in turns, each to a new table of one REST catalog. Ours
asks for every file and merges the tasks' manifests; Java's `AppendFiles`, in Spark's JVM, is given
the list and writes manifests for it. The files are copies of a small one, in the folders of a
hundred partitions: the local S3 server reads a whole folder for each page of its listing. One more
commit of ours has another writer beside it that commits every 10 s.

HOLDFAST_BENCH_SCALE=0.01 tries it with a hundredth of the files.
"""

from __future__ import annotations

import re
import statistics
import threading
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from bench.rounds import Times
from bench.seal_to_receipt import SCALE, Publication
from bench.session import open_session, open_stack
from holdfast.model.work import StagedGroup
from holdfast.sinks.iceberg.catalog import open_catalog
from holdfast.sinks.iceberg.joined import listed_manifest
from holdfast.sinks.iceberg.loading import io_of
from holdfast.sinks.iceberg.manifests import manifest_entries, write_staged_manifest
from holdfast.sinks.iceberg.sink import IcebergSink
from holdfast.storage import objects
from holdfast.storage.objects import ObjectStorage
from holdfast.storage.runtime import io_runtime
from tests.stack_access import Stack

_TASKS, _FILES_OF_A_TASK = max(100, int(10_000 * SCALE)), 10
_FOLDERS = 100
_ROUNDS = 5
# Plannings of each table in a round.
_PLANS = 7
_RIVAL_EVERY_S = 10.0
_COLUMNS = 10
_SCHEMA = Schema(*(NestedField(n + 1, f"c{n}", LongType()) for n in range(_COLUMNS)))
# The position of the path in PyIceberg's record of a file.
_FILE_PATH = 1
# Run by the Java compiler that Spark brings: a loop over Py4J would be measured itself.
_APPEND = """
java.util.Map counts = new java.util.HashMap(); java.util.Map zeros = new java.util.HashMap();
java.util.Map bounds = new java.util.HashMap();
for (int i = 1; i <= COLUMNS; i++) {
  counts.put(Integer.valueOf(i), Long.valueOf(3)); zeros.put(Integer.valueOf(i), Long.valueOf(0));
  bounds.put(Integer.valueOf(i), java.nio.ByteBuffer.allocate(8));
}
org.apache.iceberg.Metrics metrics = new org.apache.iceberg.Metrics(
  Long.valueOf(3), counts, counts, zeros, zeros, bounds, bounds);
java.util.List files = new java.util.ArrayList();
String[] names = paths.split("\\n");
for (int i = 0; i < names.length; i++) {
  files.add(org.apache.iceberg.DataFiles.builder(table.spec()).withPath(names[i])
    .withFormat("parquet").withFileSizeInBytes(size).withMetrics(metrics).build());
}
long began = System.nanoTime();
org.apache.iceberg.AppendFiles append = table.newAppend();
for (int i = 0; i < files.size(); i++) {
  append.appendFile((org.apache.iceberg.DataFile) files.get(i));
}
append.commit();
return (System.nanoTime() - began) / 1e9;
""".replace("COLUMNS", str(_COLUMNS))
_PLAN = """
long began = System.nanoTime(); long files = 0;
java.util.Iterator found = table.newScan().planFiles().iterator();
while (found.hasNext()) { found.next(); files++; }
if (files != size) { throw new RuntimeException(files + " files are in the table"); }
return (System.nanoTime() - began) / 1e9;
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Java:
    """Spark's JVM."""

    session: Any

    def seconds(self, script: str, table: str, paths: str, size: int) -> float:
        """Run a script over a table, and return the seconds that it has measured."""
        jvm = self.session._jvm  # noqa: SLF001 - PySpark has no other way.
        loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
        kinds = [
            loader.loadClass("org.apache.iceberg.Table"),
            jvm.java.lang.Class.forName("java.lang.String"),
            jvm.java.lang.Long.TYPE,
        ]
        gateway = self.session.sparkContext._gateway  # noqa: SLF001
        types = gateway.new_array(jvm.java.lang.Class, len(kinds))
        names = gateway.new_array(jvm.java.lang.String, len(kinds))
        for at, (kind, name) in enumerate(zip(kinds, ("table", "paths", "size"), strict=True)):
            types[at], names[at] = kind, name
        compiled = jvm.org.codehaus.janino.ScriptEvaluator()
        compiled.setParentClassLoader(loader)
        compiled.setReturnType(jvm.java.lang.Double.TYPE)
        compiled.setParameters(names, types)
        compiled.cook(script)
        spark3 = jvm.org.apache.iceberg.spark.Spark3Util
        given = gateway.new_array(jvm.java.lang.Object, len(kinds))
        given[0] = spark3.loadIcebergTable(self.session._jsparkSession, f"lake.{table}")  # noqa: SLF001
        given[1], given[2] = paths, jvm.java.lang.Long.valueOf(size)
        return float(compiled.evaluate(given))


def run() -> dict[str, Any]:
    """Measure and return the figures."""
    stack = open_stack()
    java = _Java(session=open_session(stack.spark_catalog_conf("lake")))
    staged = _Staged.of(stack)
    times = Times({"ours": [], "heads": [], "java": []})
    plans = Times({"ours": [], "java": []})
    before_mb, manifests, listings = _peak_mb(), {}, []
    for number in range(_ROUNDS + 1):
        found = {"ours": staged.publish(), "heads": staged.publish(is_listed=False)}
        table = _new_table(stack)
        found["java"] = (
            table,
            java.seconds(_APPEND, table.name.partition(".")[2], staged.paths, staged.size),
        )
        manifests = {side: _manifest_bytes(sink) for side, (sink, _) in found.items()}
        listings.append(staged.list_folders())
        planned = _planned(java, {side: found[side][0] for side in plans.seconds}, staged.files)
        for side, (_, seconds) in found.items():
            print(f"  round {number} {side:<6} {seconds:6.2f} s", flush=True)
            if number:
                times.seconds[side].append(seconds)
        for side, seconds in planned.items():
            print(f"  round {number} {side:<6} planned in {seconds:.3f} s", flush=True)
            if number:
                plans.seconds[side].append(seconds)
    grown_mb = _peak_mb() - before_mb
    return {
        "ratio": times.ratio("ours", "java"),
        "ratio_with_a_head_per_file": times.ratio("heads", "java"),
        "files": staged.files,
        "tasks": _TASKS,
        "manifest_bytes": {side: manifests[side] for side in plans.seconds},
        "planning_ratio": plans.ratio("ours", "java"),
        "driver_grown_mb": round(grown_mb, 1),
        "posts_beside_a_rival": staged.publish_beside_a_rival(),
        **{f"planned_{name}": figures for name, figures in plans.figures().items()},
        **times.figures(),
        # What limits us: a bare listing of the folders, which the store does beside us.
        "listing_s": round(statistics.median(listings), 2),
    }


def _new_table(stack: Stack) -> IcebergSink:
    catalog = open_catalog("lake", stack.rest_catalog_properties())
    catalog.create_namespace_if_not_exists("bench")
    name = f"bench.files_{uuid.uuid4().hex[:12]}"
    catalog.create_table(name, schema=_SCHEMA)
    sink = IcebergSink(catalog, name, "main")
    sink.post_empty(sink.load())
    return sink


def _planned(java: _Java, sinks: dict[str, IcebergSink], files: int) -> dict[str, float]:
    """Plan a scan of each table some times, in turns: the JVM compiles while it plans."""
    found: dict[str, list[float]] = {side: [] for side in sinks}
    for number in range(_PLANS):
        for side in list(sinks)[:: 1 if number % 2 else -1]:
            table = sinks[side].name.partition(".")[2]
            found[side].append(java.seconds(_PLAN, table, "", files))
    return {side: statistics.median(seconds) for side, seconds in found.items()}


def _manifest_bytes(sink: IcebergSink) -> list[int]:
    table = sink.load().handle
    return [manifest.manifest_length for manifest in table.current_snapshot().manifests(table.io)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Staged:
    """What all tasks have staged, once for all rounds."""

    stack: Stack
    tasks: list[list[StagedGroup]]
    paths: str
    size: int

    @classmethod
    def of(cls, stack: Stack) -> _Staged:
        """Write a small file, and copies of it with a manifest for each task."""
        sink = _new_table(stack)
        view, job = sink.load(), uuid.uuid4().hex
        writer = sink.writer_spec(view).open(f"{job}-first")
        columns = {field.name: pa.array([1, 2, 3]) for field in _SCHEMA.fields}
        writer.write(writer.fit(pa.record_batch(columns)))
        (first,) = writer.cut()
        table, file = view.handle, first.files[0]
        storage, folder = io_of(table).storage, file.path.rpartition("/")[0]
        data = storage.get(file.path)
        (entry,) = manifest_entries(listed_manifest(first, 1), table.io)

        def task(place: int) -> list[StagedGroup]:
            copies = []
            for number in range(_FILES_OF_A_TASK):
                copy = type(entry.data_file)(*entry.data_file._data)  # noqa: SLF001
                part = (place * _FILES_OF_A_TASK + number) % _FOLDERS
                name = f"{job}-{place:05d}-0-{number:05d}.parquet"
                copy[_FILE_PATH] = f"{folder}/part={part:02d}/{name}"
                storage.put(copy[_FILE_PATH], data)
                copies.append(copy)
            uri = f"{table.location()}/metadata/{job}-{place:05d}-0-m0.avro"
            group = write_staged_manifest(
                table.io,
                uri,
                schema=table.schema(),
                spec=table.spec(),
                properties=table.properties,
                data_files=copies,
            )
            return [group]

        tasks = io_runtime().each(task, range(_TASKS))
        paths = [file.path for groups in tasks for file in groups[0].files]
        return cls(stack=stack, tasks=tasks, paths="\n".join(paths), size=file.size_bytes)

    @property
    def files(self) -> int:
        return _TASKS * _FILES_OF_A_TASK

    def publish(self, *, is_listed: bool = True) -> tuple[IcebergSink, float]:
        """Publish to a new table; return it, and how long that took."""
        sink = _new_table(self.stack)
        ready = self._ready(sink)
        least = objects._LISTED_FROM  # noqa: SLF001
        objects._LISTED_FROM = least if is_listed else self.files * 2  # noqa: SLF001
        began = time.monotonic()
        ready.publish()
        seconds = time.monotonic() - began
        objects._LISTED_FROM = least  # noqa: SLF001
        return sink, seconds

    def list_folders(self) -> float:
        """Return how long the store takes to list the folders."""
        storage = ObjectStorage(self.stack.s3.store_options())
        folders = sorted({path.rpartition("/")[0] for path in self.paths.split("\n")})
        began = time.monotonic()
        io_runtime().each(storage.list, folders)
        return time.monotonic() - began

    def publish_beside_a_rival(self) -> int:
        """Publish while another writer commits; return how many posts that took."""
        sink, ended = _new_table(self.stack), threading.Event()
        rival = same_table(sink, self.stack)

        def commit() -> None:
            while not ended.is_set():
                rival.post_empty(rival.load())
                ended.wait(_RIVAL_EVERY_S)

        thread = threading.Thread(target=commit)
        ready = self._ready(sink)
        thread.start()
        try:
            return ready.publish().posts
        finally:
            ended.set()
            thread.join()

    def _ready(self, sink: IcebergSink) -> Publication:
        store = f"s3://{self.stack.s3.bucket}/_holdfast"
        return Publication.of(sink, store, self.stack.s3.store_options(), self.tasks)


def same_table(sink: IcebergSink, stack: Stack) -> IcebergSink:
    """Return a sink on the same table with a connection of its own."""
    catalog = open_catalog("lake", stack.rest_catalog_properties())
    return IcebergSink(catalog, sink.name.partition(".")[2], "main")


def _peak_mb() -> float:
    """Return this process's peak memory so far, from the kernel."""
    (found,) = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found) / 1000
