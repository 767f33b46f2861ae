"""Checks of the ledger's store: reached, allowed, safe, and at the same time as we are."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator

from holdfast.cli.checks.finding import Finding, failed, failed_by, ok, warning
from holdfast.engine.status import run_folders
from holdfast.errors import HoldfastError, StoreError
from holdfast.ledger.layout import probe_uri
from holdfast.ledger.probe import probe_store
from holdfast.model.report import readable_time
from holdfast.storage.port import Storage, StorageError

# Stores tell whole seconds, and an answer takes a moment.
_CLOCK_OFF_S, _CLOCK_EXACT_S = 10.0, 1.5
_PROBE = b"probe"
_REACH = (
    "check the URI, the credentials (--option s3.secret-access-key=@env:NAME, or the "
    "environment's) and the endpoint (--option s3.endpoint=...)"
)
_ALLOW = "allow {what} for everything below {store} to the driver and to all executors"


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
    if any(one.level == "failed" for one in seen):
        return
    yield _creates_once(store, storage)


def check_store_named(given: str | None) -> Finding:
    """Say where the store's name comes from."""
    if given is None:
        return ok("store named", "by HOLDFAST_STORE")
    if os.environ.get("HOLDFAST_STORE"):
        return ok("store named", "by --store")
    return ok(
        "store named",
        "by --store; HOLDFAST_STORE is not set, so jobs must name it: Run(store=...) or "
        "spark.holdfast.store",
    )


def _place(store: str) -> Iterator[Finding]:
    if store.startswith("file://"):
        yield warning(
            "store place",
            "it is a local folder: only this machine reaches it, and a power cut can lose the "
            "last records",
            "use an object store (s3://, gs://, abfss://) for anything but trials on one machine",
        )


def _permissions(store: str, storage: Storage, probe: str) -> list[Finding]:
    """Write, read and delete one object, and compare clocks by it."""
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
            seen = "it gives back other bytes than it was sent"
            return [failed("store reads", seen, "look for a proxy that changes what passes it")]
        clock = _clock(storage, probe, sent_at)
    except (StorageError, FileNotFoundError) as error:
        return [failed("store reads", str(error) or "what was written is not there", fix)]
    return [ok("store reads", "the same bytes"), *clock]


def _deletes(store: str, storage: Storage, probe: str) -> Finding:
    fix = _ALLOW.format(what="deletes and listings", store=store)
    try:
        storage.delete([probe])
        is_listed = probe in storage.list(probe.rsplit("/", 1)[0])
    except StorageError as error:
        return failed("store deletes", str(error), fix)
    if is_listed:
        return failed("store deletes", "what was deleted is still listed", fix)
    return ok("store deletes", "and does not list what was deleted")


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
        "set this machine's clock by a time server (NTP): a driver waits by it before it takes a "
        "run over, and S3 refuses requests that are 15 minutes off"
    )
    return [warning("clocks agree", f"the store's clock is {seen}", fix)]


def _creates_once(store: str, storage: Storage) -> Finding:
    try:
        probe_store(storage, store, uuid.uuid4().hex, sleep=time.sleep)
    except HoldfastError as error:
        return failed_by("store creates once", error)
    return ok("store creates once", "a second create of the same object is refused")
