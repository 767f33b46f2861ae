"""`holdfast abort RUN`: abort a run for good."""

from __future__ import annotations

import argparse
import sys

from holdfast.cli import console, plain
from holdfast.cli.arguments import add_table_arguments, open_known_ledger, sink_opener
from holdfast.engine.advice import driver_alive
from holdfast.engine.cleanup import Aborted, abort
from holdfast.engine.watch import Observation, Watcher
from holdfast.errors import SettingsError
from holdfast.ledger.ledger import Ledger
from holdfast.model.records import Abort
from holdfast.model.report import counted, readable_time
from holdfast.text import command, done_of

_REFUSED = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments, apart from the store."""
    parser.add_argument("run", metavar="RUN", help="the run's id")
    parser.add_argument(
        "--reason", default="", metavar="TEXT", help="the reason, kept in the run log"
    )
    parser.add_argument("--yes", action="store_true", help="do not ask for confirmation")
    parser.add_argument(
        "--table-is-gone",
        action="store_true",
        help="say that the table or its branch was dropped for good: the table is then not asked "
        "what became of a post",
    )
    add_table_arguments(parser, of_run=True)


def run(given: argparse.Namespace) -> int:
    """Abort the run, once the user has agreed.

    Raises:
        SettingsError: There is no such run, or there is no terminal to ask at.
        RunCommittedError: The run has landed.
        HoldfastError: The store or the catalog did not answer; call again.
    """
    ledger = open_known_ledger(given)
    seen = Watcher(ledger=ledger).look()
    # If the run has landed or was aborted, no question is asked: the engine reports it.
    has_ended = seen.progress.state in ("committed", "aborted")
    if not given.yes and not has_ended and not _agreed(seen, ledger):
        console.make_console().print("Nothing was done.")
        return _REFUSED
    done = abort(ledger, sink_opener(given), given.reason, table_is_gone=given.table_is_gone)
    record = next(found for found in ledger.log.records if isinstance(found.body, Abort))
    facts = {
        "run_id": ledger.run_id,
        "state": "aborted",
        "record": record.number,
        "reason": record.body.reason if isinstance(record.body, Abort) else "",
        "done_rows": seen.progress.done_rows,
        "files": seen.progress.files,
        "waiting_chunks": seen.progress.waiting_chunks,
        "posts": done.posts,
        "in_doubt": list(done.in_doubt),
        "in_doubt_because": done.reason if done.in_doubt else "",
    }
    if given.json:
        plain.print_json(facts)
    else:
        _print(ledger.run_id, record.number, seen, done)
    return 0


def _agreed(seen: Observation, ledger: Ledger) -> bool:
    """Ask the person at the terminal.

    Raises:
        SettingsError: There is no terminal.
    """
    if not sys.stdin.isatty():
        raise SettingsError(
            what=f"aborting run {ledger.run_id!r} is final, and there is no terminal to ask at",
            cure="give --yes to abort it without being asked",
        )
    progress, out = seen.progress, console.make_console()
    done = done_of(progress.done_rows, progress.input_rows, progress.quarantined_rows, "rows")
    work = readable_time(progress.task_seconds + progress.kept_seconds)
    out.print(f"Run {ledger.run_id} has done {done}, {work} of work. Aborting it is final:")
    out.print("none of this will reach the table, and the run id cannot be used again.")
    if (alive := driver_alive(seen, ledger.ports)) is not None:
        out.print(f"Aborting it also ends its driver: {alive}.")
    return input("Abort it? [y/N] ").strip().lower() in ("y", "yes")


def _what_of_posts(done: Aborted) -> str:
    """Return what the table has shown about the posts."""
    if done.in_doubt:
        posts = counted(len(done.in_doubt), "post")
        return f"{posts} of this run may have landed, or may still land: {done.reason}"
    if not done.posts:
        return "this run has posted nothing to the table, and no longer can"
    return "no post of this run has landed, and none can land any more"


def _print(run_id: str, number: int, seen: Observation, done: Aborted) -> None:
    out, progress = console.make_console(), seen.progress
    out.print(f"Run {run_id} is aborted (log record {number}).")
    lines = [("table", _what_of_posts(done))]
    if done.in_doubt:
        lines.append(("", "look for its rows before you write them again under a new run id"))
    left = []
    if progress.files:
        left.append(counted(progress.files, "staged file"))
    if progress.waiting_chunks:
        left.append(counted(progress.waiting_chunks, "chunk"))
    if left:
        lines.append(("left", f"{' and '.join(left)}: nothing was deleted"))
    lines.append(("next", f"{command('sweep', run_id)} shows what can be deleted"))
    console.facts(out, lines)
