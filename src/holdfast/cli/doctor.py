"""`holdfast doctor`: check a set-up, part by part, and say how to fix what is wrong."""

from __future__ import annotations

import argparse
import os
import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from holdfast.cli import console, plain
from holdfast.cli.arguments import add_table_arguments, named_target, open_named_store, value_of
from holdfast.cli.doctor_machine import (
    Finding,
    check_disk,
    check_executors,
    check_java,
    check_packages,
    check_workers,
    failed,
    failed_by,
    ok,
    warning,
)
from holdfast.engine.watch import run_folders
from holdfast.errors import HoldfastError, StoreError
from holdfast.ledger.layout import probe_uri
from holdfast.ledger.store import probe_store
from holdfast.model.report import counted, readable_time
from holdfast.opening import open_table
from holdfast.palette import FAILED, KEPT, WAITING
from holdfast.sinks.base import Sink, TableView
from holdfast.sinks.targets import LanceTable, Target
from holdfast.storage.locations import normalise
from holdfast.storage.port import Storage, StorageError

# ---- Checks of the ledger's store: reachable, permitted, safe, and with a clock that agrees with
# ours

# Stores report whole seconds, and an answer takes a moment.
_CLOCK_OFF_S, _CLOCK_EXACT_S = 10.0, 1.5
_PROBE = b"probe"
_REACH = (
    "check the URI, the credentials (--option s3.secret-access-key=@env:NAME, or the "
    "environment's) and the endpoint (--option s3.endpoint=...)"
)
_ALLOW = "give the driver and all executors permission for {what} below {store}"


def check_store(store: str, storage: Storage) -> Iterator[Finding]:
    """Check a store as far as it answers.

    Args:
        store: Its URI.
        storage: How it is reached.
    """
    yield from _place(store)
    try:
        runs = run_folders(storage, store)
    except StoreError as error:
        found = failed_by("store answers", error)
        yield failed(found.check, found.seen, _REACH)
        return
    yield ok("store answers", f"{store}, {len(runs):,} runs")
    probe = probe_uri(store, uuid.uuid4().hex)
    seen = _permissions(store, storage, probe)
    yield from seen
    if any(finding.level == "failed" for finding in seen):
        return
    yield _creates_once(store, storage)


def check_store_named(given: str | None) -> Finding:
    """Report where the store's name comes from."""
    if given is None:
        return ok("store named", "by HOLDFAST_STORE")
    if os.environ.get("HOLDFAST_STORE"):
        return ok("store named", "by --store")
    return ok(
        "store named",
        "by --store; HOLDFAST_STORE is not set, so jobs must name the store: Run(store=...) or "
        "spark.holdfast.store",
    )


def _place(store: str) -> Iterator[Finding]:
    if store.startswith("file://"):
        yield warning(
            "store place",
            "it is a local folder: only this machine can reach it, and a power cut can lose the "
            "last records",
            "use an object store (s3://, gs://, abfss://) for anything but trials on one machine",
        )


def _permissions(store: str, storage: Storage, probe: str) -> list[Finding]:
    """Write, read and delete one object, and use it to compare clocks."""
    try:
        storage.put(probe, _PROBE)
    except StorageError as error:
        return [failed("store writes", str(error), _ALLOW.format(what="writes", store=store))]
    written = ok("store writes", f"an object of {len(_PROBE)} bytes")
    return [written, *_reads(store, storage, probe, time.time()), _deletes(store, storage, probe)]


def _reads(store: str, storage: Storage, probe: str, sent_at: float) -> list[Finding]:
    fix = _ALLOW.format(what="reads", store=store)
    try:
        if storage.get(probe) != _PROBE:
            seen = "the bytes read differ from those written"
            return [failed("store reads", seen, "look for a proxy that alters data")]
        clock = _clock(storage, probe, sent_at)
    except (StorageError, FileNotFoundError) as error:
        return [failed("store reads", str(error) or "the object just written is not there", fix)]
    return [ok("store reads", "the same bytes"), *clock]


def _deletes(store: str, storage: Storage, probe: str) -> Finding:
    fix = _ALLOW.format(what="deletes and listings", store=store)
    try:
        storage.delete([probe])
        is_listed = probe in storage.list(probe.rsplit("/", 1)[0])
    except StorageError as error:
        return failed("store deletes", str(error), fix)
    if is_listed:
        return failed("store deletes", "the deleted object is still listed", fix)
    return ok("store deletes", "and no longer lists the object")


def _clock(storage: Storage, probe: str, sent_at: float) -> list[Finding]:
    (written_at,) = storage.last_written([probe])
    if written_at is None:
        return []
    off_s = written_at - sent_at
    seen = f"{readable_time(abs(off_s))} {'ahead of' if off_s > 0 else 'behind'} this machine's"
    if abs(off_s) <= _CLOCK_OFF_S:
        exact = abs(off_s) < _CLOCK_EXACT_S
        return [ok("clocks agree", "to the second" if exact else f"the store's is {seen}")]
    fix = (
        "synchronise this machine's clock with a time server (NTP): drivers time their wait by it "
        "before they take over a run, and S3 refuses requests that are 15 minutes off"
    )
    return [warning("clocks agree", f"the store's clock is {seen}", fix)]


def _creates_once(store: str, storage: Storage) -> Finding:
    try:
        probe_store(storage, store, uuid.uuid4().hex, sleep=time.sleep)
    except HoldfastError as error:
        return failed_by("store creates once", error)
    return ok("store creates once", "a second create of the same object is refused")


# ---- Checks of the table that a job will write: its catalog answers, and Holdfast can write to it

# A commit copies the table's metadata: 0.9 s at 1,000 snapshots, 4.5 s at 5,000.
_SNAPSHOTS_MANY = 1000


def check_table(target: Target, store: str | None) -> Iterator[Finding]:
    """Open a table as a job would, without writing anything.

    Args:
        target: The table.
        store: The ledger's location, if known.
    """
    try:
        sink = open_table(target, None)
    except HoldfastError as error:
        yield failed_by("catalog answers", error)
        return
    try:
        view = sink.load()
    except HoldfastError as error:
        yield failed_by("table loads", error)
        return
    yield ok("table loads", f"{sink.name} (UUID {view.uuid})")
    try:
        sink.writer_spec(view)
        sink.check(view, [], [])
    except HoldfastError as error:
        yield failed_by("table can be written", error)
        return
    yield ok("table can be written", "its format, its branch and its file settings are supported")
    yield from _of_its_kind(target, sink, view, store)


def check_places(store: str, location: str) -> Iterator[Finding]:
    """Check whether a clean-up of the table would find the ledger among its files."""
    place = normalise(location)
    if f"{store}/".startswith(f"{place}/"):
        yield failed(
            "store apart from table",
            f"the store {store} is inside the table's folder {place}: orphan-file removal would "
            "treat the ledger as left-overs",
            "move the store to a folder of its own, next to the tables, not inside one",
        )
    else:
        yield ok("store apart from table", f"the table's files are in {place}")


def _of_its_kind(
    target: Target, sink: Sink, view: TableView, store: str | None
) -> Iterator[Finding]:
    if isinstance(target, LanceTable):
        if store is not None:
            yield from check_places(store, sink.name)
        return
    from holdfast.sinks.iceberg.loading import table_facts  # noqa: PLC0415 - it is optional.

    found = table_facts(view)
    if store is not None:
        yield from check_places(store, found.location)
    if found.snapshots >= _SNAPSHOTS_MANY:
        yield warning(
            "table history",
            f"{found.snapshots:,} snapshots: each commit copies all of their metadata",
            "expire old snapshots (CALL system.expire_snapshots)",
        )
    else:
        yield ok("table history", f"format v{found.format_version}, {found.snapshots:,} snapshots")
    if found.is_audited:
        yield warning(
            "write-audit-publish",
            "write.wap.enabled is set, but a Holdfast run is published at once",
            "write to a branch (hf.IcebergTable(name, branch=...)) and publish it yourself",
        )


# ---- `holdfast doctor`: check a set-up, part by part, and say how to fix what is wrong

_FAILED = 1
_CONNECT = "sc://"
_STYLES = {
    "ok": KEPT.terminal,
    "warning": WAITING.terminal,
    "failed": f"bold {FAILED.terminal}",
}
_LEVEL_WIDTH, _CHECK_WIDTH = 7, 22


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments, apart from the store."""
    parser.add_argument(
        "--spark",
        nargs="?",
        const="local[*]",
        metavar="URL",
        help="also run a task in each slot of this master (local[*]) or Connect server (sc://...); "
        "URL may be @env:NAME or @file:PATH",
    )
    add_table_arguments(parser, of_run=False)


def run(given: argparse.Namespace) -> int:
    """Check everything that is named, and print each result as it comes."""
    findings, out = [], None if given.json else console.make_console()
    for finding in findings_of(given):
        findings.append(finding)
        if out is not None:
            _print(out, finding)
    broken = [finding for finding in findings if finding.level == "failed"]
    warned = [finding for finding in findings if finding.level == "warning"]
    if out is None:
        plain.print_json({"ok": not broken, "checks": [asdict(found) for found in findings]})
    else:
        out.print()
        counts = [counted(len(findings), "check"), counted(len(warned), "warning")]
        ends = f"{len(broken):,} failed" if broken else "nothing failed"
        style = _STYLES["failed" if broken else "ok"]
        out.print(console.styled(f"{', '.join(counts)}, {ends}", style))
    return _FAILED if broken else 0


def findings_of(given: argparse.Namespace) -> Iterator[Finding]:
    """Yield the result of each check, in the order in which a job would fail on it.

    Raises:
        SettingsError: The server's address is in a variable or a file that does not exist.
    """
    spark = value_of(given.spark, "--spark") if given.spark else ""
    yield from check_packages()
    yield from check_java(is_needed=bool(spark) and not spark.startswith(_CONNECT))
    yield from check_workers()
    yield from check_disk()
    store, storage = None, None
    try:
        store, storage = open_named_store(given)
    except HoldfastError as error:
        yield failed_by("store named", error)
    else:
        yield check_store_named(given.store)
        yield from check_store(store, storage)
    if given.table or given.catalog:
        try:
            yield from check_table(named_target(given), store)
        except HoldfastError as error:
            yield failed_by("catalog answers", error)
    if spark:
        yield from check_executors(spark, store, storage)


def _print(out: Console, finding: Finding) -> None:
    line = Table.grid(padding=(0, 2))
    line.add_column(width=_LEVEL_WIDTH)
    line.add_column(width=_CHECK_WIDTH, overflow="fold")
    line.add_column(overflow="fold")
    style = _STYLES[finding.level]
    line.add_row(console.styled(finding.level, style), finding.check, finding.seen)
    if finding.fix:
        line.add_row("", "", console.styled(f"fix: {finding.fix}", style))
    console.show(out, line)
