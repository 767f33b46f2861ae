"""`holdfast doctor`: check a set-up, part by part, and say how to mend what is wrong."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from holdfast.cli import console, plain
from holdfast.cli.checks.executors import check_executors
from holdfast.cli.checks.finding import Finding, failed_by
from holdfast.cli.checks.packages import check_disk, check_java, check_packages, check_workers
from holdfast.cli.checks.store import check_store, check_store_named
from holdfast.cli.checks.table import check_table
from holdfast.cli.ledgers import open_named_store, value_of
from holdfast.cli.tables import add_table_arguments, named_target
from holdfast.errors import HoldfastError
from holdfast.model.report import counted

_FAILED = 1
_CONNECT = "sc://"
_STYLES = {"ok": "green", "warning": "yellow", "failed": "bold red"}
_LEVEL_WIDTH, _CHECK_WIDTH = 7, 22


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes besides the store."""
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
    for one in findings_of(given):
        findings.append(one)
        if out is not None:
            _print(out, one)
    broken = [one for one in findings if one.level == "failed"]
    warned = [one for one in findings if one.level == "warning"]
    if out is None:
        plain.print_json({"ok": not broken, "checks": [asdict(one) for one in findings]})
    else:
        out.print()
        counts = [counted(len(findings), "check"), counted(len(warned), "warning")]
        ends = f"{len(broken):,} failed" if broken else "nothing failed"
        style = _STYLES["failed" if broken else "ok"]
        out.print(console.styled(f"{', '.join(counts)}, {ends}", style))
    return _FAILED if broken else 0


def findings_of(given: argparse.Namespace) -> Iterator[Finding]:
    """Yield the result of each check, in the order in which a job would fail by it.

    Raises:
        SettingsError: The server's address is in a variable or a file, and not found there.
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
