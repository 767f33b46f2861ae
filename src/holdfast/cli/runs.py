"""`holdfast runs`: all runs of a store, the one that was written last first."""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict, dataclass
from typing import get_args

from holdfast.cli import console, plain
from holdfast.cli.arguments import open_existing_store
from holdfast.engine.watch import Watcher, of_each, run_folders, status
from holdfast.errors import LedgerDamagedError, StoreUnavailableError
from holdfast.ledger.ledger import Ledger, Ports
from holdfast.ledger.store import answers
from holdfast.model.history import RunState, RunStatus, starts_of, unix_seconds
from holdfast.model.stored import decode_run_id, is_run_folder
from holdfast.palette import state_style
from holdfast.storage.objects import ObjectStorage
from holdfast.text import age, done_of, in_short, iso_moment, percent, printable

_COLUMNS = ("RUN", "STATE", "ROWS DONE", "STARTS", "WRITTEN", "TABLE")
# The width at which there is space for both row counts.
_WIDE = 100
_ID_MIN, _TABLE_MIN = 16, 10
# The number of spaces between two columns.
_BETWEEN = 2
_REASON_MAX = 300
_INCOMPLETE = 1
# The values of `Line.state`.
_STATES = (*get_args(RunState), "unreadable")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """What the list shows about one run."""

    run_id: str
    # A `RunState`; "damaged"; or "unreadable": the store did not answer.
    state: str
    table: str = ""
    done_rows: int = 0
    # None until the input has been measured.
    input_rows: int | None = None
    failed_rows: int = 0
    starts: int = 0
    last_at: float = 0.0
    snapshot_id: int | None = None
    # Why the ledger could not be read, in short; empty if it could.
    error: str = ""
    # What ended the last start of a stopped run.
    stopped_by: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments, apart from the store."""
    parser.add_argument(
        "--state",
        action="append",
        choices=_STATES,
        metavar="STATE",
        help=f"only runs in this state: {', '.join(_STATES)}; may be repeated",
    )


def run(given: argparse.Namespace) -> int:
    """List the runs; return 1 if the store did not answer for one of them.

    Raises:
        SettingsError: No store is named.
        StoreUnavailableError: The store did not answer.
    """
    store, storage = open_existing_store(given)
    lines = of_each(lambda folder: line_of(folder, store, storage), run_folders(storage, store))
    code = _INCOMPLETE if any(line.state == "unreadable" for line in lines) else 0
    if given.state:
        lines = [line for line in lines if line.state in given.state]
    lines.sort(key=lambda line: (-line.last_at, line.run_id))
    if given.json:
        plain.print_json({"store": store, "runs": [_json(line) for line in lines]})
    else:
        _print(store, lines)
    return code


def line_of(folder: str, store: str, storage: ObjectStorage) -> Line:
    """Return what is known about a run; a problem with one run must not hide the others.

    Args:
        folder: The name of its folder.
        store: The store's URI.
        storage: How it is reached.
    """
    if not is_run_folder(folder):
        return Line(run_id=folder, state="damaged", error="the folder's name is not that of a run")
    run_id = decode_run_id(folder)
    ledger = Ledger.open(run_id, store, storage, Ports())
    try:
        line = _line(ledger)
        # Check here that the line can be shown, whatever the records hold.
        _cells(line, time.time(), is_short=False)
        _json(line)
    except LedgerDamagedError as error:
        where = error.uri.removeprefix(f"{ledger.layout.folder}/")
        return Line(run_id=run_id, state="damaged", error=_short(f"{where}: {error.reason}"))
    except StoreUnavailableError as error:
        return Line(run_id=run_id, state="unreadable", error=_short(error.reason))
    except Exception as error:  # noqa: BLE001 - of a record that no check has refused.
        return Line(run_id=run_id, state="damaged", error=_short(in_short(error)))
    return line


def _line(ledger: Ledger) -> Line:
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
        stopped_by=found.stopped_by,
    )


def _short(text: str, length: int = _REASON_MAX) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


def _done_rows(ledger: Ledger, found: RunStatus) -> int:
    """Return how many rows are done; for an aborted run, the status counts only seals."""
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
        out.print(f"No runs found in {store}.")
        return
    cells = [
        _cells(line, time.time(), is_short=out.width < _WIDE) for line in lines if not line.error
    ]
    table = console.listing(*_COLUMNS, right=("ROWS DONE", "STARTS"), narrow=("STATE", "WRITTEN"))
    # The width that the two wrappable columns share. Ids get it first: they are copied from here.
    widths = [max(map(len, column)) for column in zip(_COLUMNS, *cells, strict=True)]
    free = out.width - sum(widths[1:-1]) - _BETWEEN * len(_COLUMNS)
    # A folder that is not a run may have any name: keep the reason next to it visible.
    broken = [line for line in lines if line.error]
    names = [_short(printable(line.run_id), out.width // 2) for line in broken]
    longest = max(map(len, [*names, *(cell[0] for cell in cells)]))
    id_width = min(longest, max(_ID_MIN, free - widths[-1]))
    table.columns[0].width, table.columns[-1].width = id_width, max(_TABLE_MIN, free - id_width)
    for run_id, state, *others in cells:
        table.add_row(run_id, console.state_text(state), *others)
    if cells:
        console.show(out, table)
    ended = [(line, f"by {line.stopped_by}") for line in lines if line.stopped_by]
    for line, said in [*((line, line.error) for line in broken), *ended]:
        # On one line, however long: `holdfast status` shows it in full.
        name = _short(printable(line.run_id), out.width // 2)
        text = printable(f"  {name:<{id_width}}  {line.state}  {said}")
        style = state_style(line.state)
        out.print(console.styled(text, style), no_wrap=True, overflow="ellipsis")


def _cells(line: Line, now: float, *, is_short: bool) -> tuple[str, ...]:
    rows = done_of(line.done_rows, line.input_rows, line.failed_rows)
    if is_short and line.input_rows:
        good = line.done_rows - line.failed_rows
        rows = f"{percent(good, line.input_rows)} of {line.input_rows:,}"
        rows += f", {line.failed_rows:,} failed" if line.failed_rows else ""
    ago = age(now - line.last_at) if line.last_at else ""
    texts = (line.run_id, line.state, rows, str(line.starts), ago, line.table)
    return tuple(map(printable, texts))
