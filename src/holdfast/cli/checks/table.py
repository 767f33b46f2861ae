"""Checks of the table that a job is to write: its catalog answers, and Holdfast can write to it."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.cli.checks.finding import Finding, failed, failed_by, ok, warning
from holdfast.errors import HoldfastError
from holdfast.opening import open_table
from holdfast.sinks.base import Sink, TableView
from holdfast.sinks.targets import LanceTable, Target
from holdfast.storage.locations import normalise

# A commit copies the table's metadata: 0.9 s at 1,000 snapshots, 4.5 s at 5,000.
_SNAPSHOTS_MANY = 1000


def check_table(target: Target, store: str | None) -> Iterator[Finding]:
    """Open a table as a job would, and write nothing.

    Args:
        target: Which table.
        store: Where the ledger stands, if that is known.
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
    """Look whether the clean-up of a table would find the ledger among its files."""
    place = normalise(location)
    if f"{store}/".startswith(f"{place}/"):
        yield failed(
            "store apart from table",
            f"the store {store} is inside the table's folder {place}: a removal of orphan files "
            "takes the ledger for left-overs",
            "move the store to a folder of its own, next to the tables and not inside one",
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
    from holdfast.sinks.iceberg.facts import table_facts  # noqa: PLC0415 - it is optional.

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
            "write.wap.enabled is set, and a run of Holdfast is published at once",
            "write to a branch (hf.IcebergTable(name, branch=...)) and publish it yourself",
        )
