"""`holdfast report`: write a page about a run, to open in a browser."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from holdfast.cli import plain
from holdfast.cli.arguments import open_known_ledger
from holdfast.engine.watch import Watcher
from holdfast.errors import MissingExtraError, SettingsError
from holdfast.ledger.ledger import Ledger
from holdfast.model.stored import encode_run_id
from holdfast.pages.facts import Facts, facts_of
from holdfast.pages.spread import failures_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("run", help="the run's id", metavar="RUN")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="where to write the page; by default holdfast-RUN.html in the current folder",
    )


def run(given: argparse.Namespace) -> int:
    """Examine the run, and write the page or print its facts; return the exit code.

    Raises:
        MissingExtraError: Jinja is not installed.
        SettingsError: There is no such run, or the file cannot be written.
        StoreError: The ledger is damaged or does not answer.
    """
    facts = look(open_known_ledger(given), time.time())
    if given.json:
        plain.print_json(facts.to_json())
        return 0
    path: Path = given.out or Path(f"holdfast-{encode_run_id(given.run)}.html")
    page = _page(facts)
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise SettingsError(
            what=f"the page cannot be written to {path}: {error.strerror}",
            cure="name a writable file: --out FILE",
        ) from error
    plain.print_line(str(path.resolve()))
    return 0


def look(ledger: Ledger, now: float) -> Facts:
    """Return everything that is known about a run.

    Args:
        ledger: The run's ledger.
        now: Unix seconds.

    Raises:
        StoreError: The ledger is damaged or does not answer.
    """
    seen = Watcher(ledger=ledger).look()
    chunks = {
        ledger.layout.quarantine(record.name): record.quarantine
        for record in seen.gathered.work.quarantined
        if record.quarantine is not None
    }
    return facts_of(seen, failures_of(ledger.storage, chunks), now)


def _page(facts: Facts) -> str:
    try:
        from holdfast.pages.page import page_of  # noqa: PLC0415 - jinja2 is optional.
    except ImportError as error:
        raise MissingExtraError(
            what="a page about a run", package=error.name or "jinja2", extra="cli"
        ) from error
    return page_of(facts)
