"""`holdfast inspect RUN`: the log record by record, the tasks, and what a start would do next."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from holdfast.cli import console, plain
from holdfast.cli.arguments import open_known_ledger
from holdfast.engine.advice import NextStep, next_step, words_of_log
from holdfast.engine.watch import Observation, Watcher, quarantine_chunks
from holdfast.ledger.ledger import Ledger
from holdfast.ledger.row_files import read_chunk
from holdfast.ledger.store import list_objects
from holdfast.ledger.task_log import read_logs
from holdfast.model.history import unix_seconds
from holdfast.model.records import Record, kind_of
from holdfast.model.report import counted
from holdfast.model.work import TaskRecord
from holdfast.text import iso_moment, moment, printable

_TASKS_SHOWN = _FAILED_SHOWN = 20
_FAILED_COLUMNS = ["key", "error", "attempts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskLine:
    """What is shown about one task attempt."""

    claim: int
    job: str
    place: int
    attempt: int
    records: int
    rows: int
    failed_rows: int
    chunks: int
    files: int
    # Empty if the task died before it ended its log.
    end: str
    host: str
    last_at: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments, apart from the store."""
    parser.add_argument("run", metavar="RUN", help="the run's id")
    parser.add_argument(
        "--tasks",
        type=int,
        default=_TASKS_SHOWN,
        metavar="N",
        help=f"how many of the newest task logs to list (default {_TASKS_SHOWN}; 0 for none)",
    )
    parser.add_argument(
        "--failed",
        type=int,
        nargs="?",
        const=_FAILED_SHOWN,
        metavar="N",
        help=f"show failed rows instead, with keys and errors (default {_FAILED_SHOWN} rows)",
    )


def run(given: argparse.Namespace) -> int:
    """Show the run's records, its tasks, and what comes next.

    Raises:
        SettingsError: There is no such run.
        StoreError: The ledger is damaged, or the store did not answer.
    """
    ledger = open_known_ledger(given)
    if given.failed is not None:
        return _show_failed(given, ledger)
    seen = Watcher(ledger=ledger).look()
    logs, in_all = task_logs(ledger, given.tasks)
    lines, step = [task_line(log) for log in logs], next_step(seen, ledger.ports)
    if given.json:
        plain.print_json(_json(seen, lines, in_all, step))
    else:
        _print(seen, lines, in_all, step)
    return 0


def _show_failed(given: argparse.Namespace, ledger: Ledger) -> int:
    chunks = quarantine_chunks(ledger)
    in_all = sum(chunk.rows for chunk in chunks.values())
    rows: list[dict[str, Any]] = []
    for uri, chunk in chunks.items():
        if len(rows) >= given.failed:
            break
        for batch in read_chunk(ledger.storage, uri, chunk):
            rows += batch.select(_FAILED_COLUMNS).to_pylist()
    rows = rows[: given.failed]
    for row in rows:  # A key may be a date, a decimal or bytes.
        row["key"] = {name: _plain(value) for name, value in (row["key"] or {}).items()}
    if given.json:
        plain.print_json({"run_id": ledger.run_id, "failed_rows": in_all, "rows": rows})
        return 0
    out = console.make_console()
    part = "" if len(rows) == in_all else f", {len(rows):,} of them"
    console.heading(out, f"{counted(in_all, 'failed row')} of {ledger.run_id}{part}")
    table = console.listing("KEY", "ATTEMPTS", "ERROR", right=("ATTEMPTS",))
    for row in rows:
        key = ", ".join(f"{name}={value!r}" for name, value in row["key"].items())
        table.add_row(printable(key), str(row["attempts"]), printable(row["error"] or ""))
    if rows:
        console.show(out, table)
    return 0


def _plain(value: object) -> object:
    return value if value is None or isinstance(value, str | int | float) else str(value)


def task_logs(ledger: Ledger, most: int) -> tuple[list[list[TaskRecord]], int]:
    """Return the newest task logs, and the total number of logs. Only these are read.

    Args:
        ledger: The run's ledger.
        most: How many logs to return.

    Raises:
        LedgerDamagedError: A record is not as it was written.
        StoreUnavailableError: The store did not answer.
    """
    layout, storage = ledger.layout, ledger.storage
    uris = list_objects(storage, layout.tasks)
    names = [name for uri in uris if (name := layout.task_record_name(uri)) is not None]
    logs = sorted({name.rsplit("/", 1)[0] for name in names})
    wanted = set(logs[-most:] if most > 0 else ())
    to_read = [layout.task_record(name) for name in names if name.rsplit("/", 1)[0] in wanted]
    found = read_logs(storage, layout, to_read)
    return [found[name] for name in sorted(found)], len(logs)


def task_line(log: Sequence[TaskRecord]) -> TaskLine:
    """Sum up what a task attempt has written."""
    _, job, place, attempt = log[0].log.split("/")
    return TaskLine(
        claim=log[0].claim,
        job=job,
        place=int(place),
        attempt=int(attempt),
        records=log[-1].number + 1,
        rows=sum(record.coverage.rows for record in log),
        failed_rows=sum(record.coverage.rows for record in log if record.quarantine is not None),
        chunks=sum(len(record.replaces) + (record.chunk is not None) for record in log),
        files=sum(len(group.files) for record in log for group in record.groups),
        end=log[-1].end,
        host=log[-1].usage.host,
        last_at=log[-1].usage.at,
    )


def _json(
    seen: Observation, lines: Sequence[TaskLine], in_all: int, step: NextStep
) -> dict[str, Any]:
    return {
        "run_id": seen.progress.run_id,
        "state": seen.progress.state,
        "identity": seen.identity.to_json() if seen.identity else None,
        "records": [
            _record_json(record, says)
            for record, says in zip(seen.log, words_of_log(seen.log), strict=True)
        ],
        "task_logs": in_all,
        "tasks": [{**asdict(line), "last_at": iso_moment(line.last_at)} for line in lines],
        "advice": step.advice,
        "start_would": list(step.start_would),
    }


def _record_json(record: Record, says: str) -> dict[str, Any]:
    return {
        "number": record.number,
        "written_at": record.written_at,
        "kind": kind_of(record.body),
        "says": says,
        "body": asdict(record.body),
    }


def _print(seen: Observation, lines: Sequence[TaskLine], in_all: int, step: NextStep) -> None:
    out = console.make_console()
    console.heading(out, f"The log of {seen.progress.run_id}")
    records = console.listing(
        "NO",
        "WRITTEN (UTC)",
        "KIND",
        "WHAT IT SAYS",
        right=("NO",),
        narrow=("WRITTEN (UTC)", "KIND"),
    )
    for record, says in zip(seen.log, words_of_log(seen.log), strict=True):
        at = moment(unix_seconds(record.written_at))
        records.add_row(str(record.number), at, kind_of(record.body), says)
    console.show(out, records)
    out.print()
    _print_tasks(lines, in_all)
    out.print()
    console.heading(out, "The next start would")
    steps = [(f"{number}.", text) for number, text in enumerate(step.start_would, start=1)]
    console.facts(out, steps)
    out.print()
    console.facts(out, [("next", console.styled(step.advice, "bold"))])


def _print_tasks(lines: Sequence[TaskLine], in_all: int) -> None:
    out = console.make_console()
    if not in_all:
        console.heading(out, "No task logs: no task has written yet, or they were swept")
        return
    part = "" if len(lines) == in_all else f", the newest {len(lines):,} of them"
    console.heading(out, f"{counted(in_all, 'task log')}{part}")
    right = ("CLAIM", "PLACE", "ROWS", "RECORDS", "CHUNKS", "FILES")
    table = console.listing(
        "CLAIM", "JOB", "PLACE", "ROWS", "RECORDS", "CHUNKS", "FILES", "END", "LAST", "HOST",
        right=right, narrow=("JOB", "END", "LAST"),
    )  # fmt: skip
    for line in lines:
        rows = f"{line.rows:,}"
        table.add_row(
            str(line.claim),
            line.job,
            str(line.place),
            f"{rows} ({line.failed_rows:,} failed)" if line.failed_rows else rows,
            str(line.records),
            str(line.chunks),
            str(line.files),
            line.end or "open",
            moment(line.last_at)[11:] if line.last_at else "",
            line.host,
        )
    if lines:
        console.show(out, table)
