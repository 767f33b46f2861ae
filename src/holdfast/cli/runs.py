"""`holdfast runs`: all runs of a store, the one that was written last first."""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict, dataclass

from rich.text import Text

from holdfast.cli import console
from holdfast.cli.ledgers import open_named_store
from holdfast.engine.ports import Ports
from holdfast.engine.prepare import Ledger
from holdfast.engine.status import run_folders, status
from holdfast.engine.watch import Watcher
from holdfast.errors import LedgerDamagedError
from holdfast.ledger.answers import answers
from holdfast.model.run_id import decode_run_id
from holdfast.model.starts import starts_of, unix_seconds
from holdfast.model.status import RunStatus
from holdfast.pages.wording import age, done_of, iso_moment, percent
from holdfast.storage.runtime import io_runtime

_COLUMNS = ("RUN", "STATE", "ROWS DONE", "STARTS", "WRITTEN", "TABLE")
# From this width on there is room for both numbers of rows.
_WIDE = 100
_ID_MIN, _TABLE_MIN = 16, 10
# The blanks between two columns.
_BETWEEN = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """What the list says of one run."""

    run_id: str
    # As `RunState`, or "damaged".
    state: str
    table: str = ""
    done_rows: int = 0
    # None while nobody has measured the input.
    input_rows: int | None = None
    failed_rows: int = 0
    starts: int = 0
    last_at: float = 0.0
    snapshot_id: int | None = None
    # Why the ledger could not be read; empty if it could.
    error: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes besides the store."""
    parser.add_argument(
        "--state", action="append", metavar="STATE", help="only runs in this state; may be repeated"
    )


def run(given: argparse.Namespace) -> int:
    """List the runs.

    Raises:
        SettingsError: No store is named.
        StoreUnavailableError: The store did not answer.
    """
    store, storage = open_named_store(given)
    ids = [decode_run_id(folder) for folder in run_folders(storage, store)]
    # Many at once: each run is a dozen requests, one after another.
    lines = io_runtime().each(
        lambda one: line_of(Ledger.open(one, store, storage, Ports())),
        ids,
    )
    if given.state:
        lines = [one for one in lines if one.state in given.state]
    lines.sort(key=lambda one: (-one.last_at, one.run_id))
    if given.json:
        console.print_json({"store": store, "runs": [_json(one) for one in lines]})
    else:
        _print(store, lines)
    return 0


def line_of(ledger: Ledger) -> Line:
    """Return what is known of a run; a damaged ledger is no reason to hide the others.

    Raises:
        StoreUnavailableError: The store did not answer.
    """
    try:
        found = status(ledger)
        return Line(
            run_id=found.run_id,
            state=found.state,
            table=found.table,
            done_rows=_done_rows(ledger, found),
            input_rows=found.input_rows,
            failed_rows=found.quarantined_rows,
            starts=len(starts_of(ledger.log.records)),
            last_at=_last_at(ledger, found),
            snapshot_id=found.snapshot_id,
        )
    except LedgerDamagedError as error:
        where = error.uri.removeprefix(f"{ledger.layout.folder}/")
        return Line(run_id=ledger.run_id, state="damaged", error=f"{where}: {error.reason}")


def _done_rows(ledger: Ledger, found: RunStatus) -> int:
    """Return how many rows are done: of a run that was given up, the status counts seals only."""
    if found.state != "aborted":
        return found.done_rows
    return Watcher(ledger=ledger).look().progress.done_rows


def _last_at(ledger: Ledger, found: RunStatus) -> float:
    """Return when something was last written: while a job runs, only its tasks write."""
    logged = unix_seconds(found.last_record_at) if found.last_record_at else 0.0
    if found.state != "started":
        return logged
    with answers(ledger.layout.tasks):
        return max(logged, ledger.storage.newest(ledger.layout.tasks) or 0.0)


def _json(line: Line) -> dict[str, object]:
    found = asdict(line)
    found["last_at"] = iso_moment(line.last_at)
    return found


def _print(store: str, lines: list[Line]) -> None:
    out = console.make_console()
    if not lines:
        out.print(f"{store} holds no such run.")
        return
    cells = [_cells(one, time.time(), is_short=out.width < _WIDE) for one in lines if not one.error]
    table = console.listing(*_COLUMNS, right=("ROWS DONE", "STARTS"), narrow=("STATE", "WRITTEN"))
    # What the two columns share that may be broken. An id is copied from here: it goes first.
    widths = [max(map(len, column)) for column in zip(_COLUMNS, *cells, strict=True)]
    free = out.width - sum(widths[1:-1]) - _BETWEEN * len(_COLUMNS)
    longest = max(len(one.run_id) for one in lines)
    id_width = min(longest, max(_ID_MIN, free - widths[-1]))
    table.columns[0].width, table.columns[-1].width = id_width, max(_TABLE_MIN, free - id_width)
    for run_id, state, *others in cells:
        table.add_row(run_id, console.state_text(state), *others)
    if cells:
        console.show(out, table)
    for one in (one for one in lines if one.error):
        # In one line, however long: `holdfast status` says all of it.
        text = f"  {one.run_id:<{id_width}}  damaged  {one.error}"
        out.print(
            Text(text, style=console.STATE_STYLES["damaged"]), no_wrap=True, overflow="ellipsis"
        )


def _cells(line: Line, now: float, *, is_short: bool) -> tuple[str, ...]:
    rows = done_of(line.done_rows, line.input_rows)
    if is_short and line.input_rows:
        rows = f"{percent(line.done_rows, line.input_rows)} of {line.input_rows:,}"
    if line.failed_rows:
        rows += f" ({line.failed_rows:,} failed)"
    ago = age(now - line.last_at) if line.last_at else ""
    return line.run_id, line.state, rows, str(line.starts), ago, line.table
