"""`holdfast status RUN`: the state of a run, on one screen."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from holdfast.cli import console, plain
from holdfast.cli.arguments import open_known_ledger
from holdfast.engine.advice import driver_alive, next_step
from holdfast.engine.watch import Observation, Watcher
from holdfast.ledger.ledger import Ports
from holdfast.model.costs import cost_lines
from holdfast.model.history import Start
from holdfast.model.records import Receipt, kind_of
from holdfast.model.report import (
    counted,
    merged_by,
    readable_size,
    readable_time,
    replaced_by,
)
from holdfast.palette import FAILED
from holdfast.text import age, command, done_of, iso_moment, moment

_STARTS_SHOWN = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments, apart from the store."""
    parser.add_argument("run", metavar="RUN", help="the run's id")


def run(given: argparse.Namespace) -> int:
    """Show the state of the run.

    Raises:
        SettingsError: There is no such run.
        StoreError: The ledger is damaged, or the store did not answer.
    """
    ledger = open_known_ledger(given)
    seen = Watcher(ledger=ledger).look()
    if given.json:
        plain.print_json(status_json(seen, ledger.store, ledger.ports))
    else:
        _print(seen, ledger.ports)
    return 0


def status_json(seen: Observation, store: str, ports: Ports) -> dict[str, Any]:
    """Return the facts of the status, under stable names."""
    progress, identity, step = seen.progress, seen.identity, next_step(seen, ports)
    receipt = seen.receipt
    return {
        "run_id": progress.run_id,
        "store": store,
        "state": progress.state,
        "table": identity.table if identity else "",
        "mode": identity.mode if identity else "",
        "branch": identity.branch if identity else "",
        "key": list(identity.key) if identity else [],
        "done_rows": progress.done_rows,
        "input_rows": progress.input_rows,
        "remaining_rows": progress.remaining_rows,
        "kept_rows": progress.kept_rows,
        "failed_rows": progress.quarantined_rows,
        "starts": [_start_json(start) for start in seen.starts],
        "records": len(seen.log),
        "last_kind": kind_of(seen.log[-1].body) if seen.log else "",
        "last_at": iso_moment(progress.last_at),
        "files": progress.files,
        "size_bytes": progress.size_bytes,
        "waiting_chunks": progress.waiting_chunks,
        "task_seconds": round(progress.task_seconds + progress.kept_seconds, 3),
        "cost": progress.cost,
        "kept_cost": progress.kept_cost,
        "lost_cost": progress.lost_cost,
        "held_cost": progress.held_cost,
        "budget": progress.budget,
        "snapshot_id": receipt.snapshot_id if receipt else None,
        "replaced_rows": receipt.removed_rows if receipt else None,
        "replaced_files": receipt.removed_files if receipt else None,
        "replaced_partitions": receipt.removed_partitions if receipt else None,
        "upserts": asdict(receipt.upserts) if receipt and receipt.upserts else None,
        "advice": step.advice,
        "start_would": list(step.start_would),
    }


def how_ended(start: Start, *, is_alive: bool) -> str:
    """Describe in a few words how a start ended.

    Args:
        start: The start.
        is_alive: Whether the last driver may be at work.
    """
    words = {
        "": "at work, it seems" if is_alive else "gone, it seems",
        "gone": "ended without a stop record: killed, or taken over",
        "stopped": f"stopped by {start.reason}",
        "aborted": f"aborted: {start.reason}" if start.reason else "aborted",
    }
    return words.get(start.end, start.end)


def _print(seen: Observation, ports: Ports) -> None:
    out, progress = console.make_console(), seen.progress
    title = console.styled("", "").append_text(console.styled(progress.run_id, "bold"))
    title.append("  ").append_text(console.state_text(progress.state))
    if progress.quarantined_rows:
        title.append(f"  {counted(progress.quarantined_rows, 'row')} failed", style=FAILED.terminal)
    out.print(title)
    console.facts(out, _lines(seen, ports))
    if seen.starts:
        out.print()
        _print_starts(seen, ports)
    out.print()
    console.facts(out, [("next", console.styled(next_step(seen, ports).advice, "bold"))])


def _lines(seen: Observation, ports: Ports) -> list[tuple[str, str]]:
    progress, receipt = seen.progress, seen.receipt
    lines = []
    if seen.identity is not None:
        lines.append(("table", _table(seen)))
    if seen.starts and seen.starts[-1].end == "stopped":
        lines.append(("stopped", f"by {seen.starts[-1].why}"))
    failed = progress.quarantined_rows
    lines.append(("done", done_of(progress.done_rows, progress.input_rows, failed, "rows")))
    if progress.kept_rows:
        saved = readable_time(progress.kept_seconds)
        lines.append(("kept", f"{progress.kept_rows:,} rows of earlier starts, {saved} of work"))
    if failed:
        show = command("inspect", progress.run_id, "--failed")
        lines.append(("failed", f"{counted(failed, 'row')} set aside: {show} shows them"))
    files = f"{counted(progress.files, 'file')} ({readable_size(progress.size_bytes)})"
    if progress.waiting_chunks:
        files += f", and {counted(progress.waiting_chunks, 'chunk')} to put into files"
    lines.append(("landed" if receipt else "staged", files))
    if seconds := progress.task_seconds + progress.kept_seconds:
        lines.append(("work", f"{readable_time(seconds)} of task time"))
    lines += cost_lines(progress)
    if receipt is not None:
        lines += _of_receipt(receipt)
    if seen.log:
        last = seen.log[-1]
        ago = age(ports.now() - progress.last_at)
        kind = _with_article(kind_of(last.body))
        lines.append(("written", f"{ago}; log record {last.number} is {kind}"))
    return lines


def _of_receipt(receipt: Receipt) -> list[tuple[str, str]]:
    replaced = replaced_by(receipt)
    lines = [("replaced", replaced)] if replaced else []
    return [*lines, *merged_by(receipt), ("snapshot", str(receipt.snapshot_id))]


def _with_article(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"


def _table(seen: Observation) -> str:
    identity = seen.identity
    if identity is None:
        return ""
    branch = "" if identity.branch in ("", "main") else f", branch {identity.branch}"
    key = f"key {', '.join(identity.key)}" if identity.key else "rows of a scan"
    verb = "" if identity.mode == "append" else f"{identity.verb} "
    return f"{verb}{identity.table}{branch} ({key})"


def _print_starts(seen: Observation, ports: Ports) -> None:
    out, is_alive = console.make_console(), driver_alive(seen, ports) is not None
    narrow = ("BEGAN (UTC)", "LASTED")
    table = console.listing(
        "START", "BEGAN (UTC)", "LASTED", "DRIVER", "ENDED", right=("START",), narrow=narrow
    )
    if len(seen.starts) > _STARTS_SHOWN:
        out.print(f"  the last {_STARTS_SHOWN} of {len(seen.starts):,} starts", style="dim")
    for start in seen.starts[-_STARTS_SHOWN:]:
        table.add_row(
            str(start.number),
            moment(start.began_at),
            readable_time(max(0.0, start.last_at - start.began_at)),
            f"{start.host} ({start.process_id})",
            how_ended(start, is_alive=is_alive),
        )
    console.show(out, table)


def _start_json(start: Start) -> dict[str, Any]:
    return {
        "number": start.number,
        "host": start.host,
        "process_id": start.process_id,
        "began_at": iso_moment(start.began_at),
        "last_at": iso_moment(start.last_at),
        "passes": len(start.jobs),
        "end": start.end,
        "reason": start.reason,
        "message": start.message,
    }
