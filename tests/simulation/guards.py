"""Guards: what the protocol's safety depends on, each of which can be removed.

A simulation that finds nothing proves little unless it finds what was broken on purpose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

from holdfast.engine import cleanup, commit, drive, input_check, passes, resolve, takeover
from holdfast.engine.commit import Commit
from holdfast.engine.input_check import InputCheck
from holdfast.engine.resolve import Sight
from holdfast.engine.scan_input import ScanRows
from holdfast.engine.workbook import Workbook
from holdfast.errors import RunMismatchError
from holdfast.ledger import run_log, task_log
from holdfast.ledger.layout import tasks_name
from holdfast.ledger.ledger import Ledger
from holdfast.ledger.run_log import RunLog
from holdfast.model.records import Abort, Intent, Record, Refused, encode_record
from holdfast.model.work import TaskRecord, Work
from holdfast.sinks.base import Change, Loss, Outcome, TableView
from holdfast.storage.port import StorageError
from holdfast.worker import replay
from holdfast.worker.coverage import CoveredKeys
from tests.fakes.memory_table import MemorySnapshot
from tests.simulation.filtered_guards import FILTERED_GUARDS
from tests.simulation.lance_guards import LANCE_GUARDS
from tests.simulation.table import SimTable

# ruff: noqa: SLF001, ANN401, PT008, ARG001 - the product is taken apart on purpose.


def _finds_nothing(_commit: Commit, _view: TableView | None = None) -> None:
    """Act as a look-up that never finds the mark."""


_look = Commit.look


def _takes_gone_for_never(commit: Commit, view: TableView | None = None) -> Any:
    """Act as a look-up that takes a rolled-back snapshot for one that never landed."""
    view = view or commit.sink.load()
    found = commit.sink.find_mark(view, commit.run_id, commit.run_file.nonce, commit.log.intents)
    return None if found is None or found.present is False else _look(commit, view)


def _loads_any_table(commit: Commit) -> TableView:
    """Act as a commit that does not check whether the table is still the same."""
    return commit.sink.load()


def _lands_anywhere(table: SimTable, post: Any) -> bool:
    """Act as a catalog without requirements on a post."""
    table._add(
        MemorySnapshot(
            snapshot_id=post.mark.snapshot_id,
            mark=post.mark,
            groups=post.groups,
            **table._on_head(),
        )
    )
    table.marks[post.run_id] = post.mark
    return True


def _lands_on_its_head(table: SimTable, post: Any) -> bool:
    """Act as a catalog that accepts a sequence number twice."""
    return table.head == post.head_seen and _lands_anywhere(table, post)


def _believes(storage: Any, uri: str, data: bytes, **_named: object) -> bytes:
    """Act as a create that takes an unclear answer for a success."""
    try:
        storage.create(uri, data)
    except StorageError:
        return data
    return data


def _goes_on(_log: RunLog) -> None:
    """Act as a driver that ignores a newer claim."""


_append = RunLog.append


def _appends_behind(log: RunLog, body: Any) -> Any:
    """Act as a driver that appends to the log, whatever its last record is."""
    for _ in range(20):
        record, is_ours = log._try_append(body)
        if is_ours:
            return record
    return _append(log, body)


def _all_done(work: InputCheck) -> bool:
    """Act as a driver that trusts the tasks that no row is missing."""
    return not work._book.all_rows_seen


def _inherits_the_seal_only(book: Workbook) -> None:
    """Act as a driver that does not read the logs of dead tasks."""
    with mock.patch.object(Workbook, "take_tasks", lambda _book: None):
        _inherit(book)
    if book._log.plans:
        book._through_claim = max(book._log.plans)


_inherit = Workbook.inherit


def _kept(work: Work, *_arguments: object, **_named: object) -> Work:
    """Act as a check that leaves nothing out."""
    return work


def _all_before(last: TaskRecord) -> list[str]:
    """Act as a reader for whom all records of a log count."""
    return [f"{last.log}/{number:04d}" for number in range(last.number)]


def _without_only(work: Work, names: Any) -> Work:
    """Act as a drop that does not check who holds the dropped rows."""
    gone = set(names)
    return Work(records=tuple(record for record in work.records if record.name not in gone))


def _plus_all(work: Work, records: Any) -> tuple[Work, tuple[str, ...]]:
    """Act as a seal that accepts whatever it reads."""
    return Work(records=(*work.records, *records)), ()


def _does_nothing(_work: InputCheck) -> None:
    """Act as a check that was left out."""


def _sweeps_at_once(log: RunLog) -> bool:
    """Act as a cleanup that takes every run for an aborted one."""
    return True


def _spoils_aborts(record: Record) -> bytes:
    """Act as a cleanup whose record cannot be read back."""
    return b"given up" if isinstance(record.body, Abort) else encode_record(record)


def _schemas_of_files(book: Workbook) -> list[dict[str, Any]]:
    """Act as a check that ignores chunks that wait to be put into files."""
    claims = {record.claim for record in book.work.records if record.groups}
    return [book._log.plans[claim].schema for claim in claims]


_answered = SimTable._answered


def _takes_conflict_for_unsent(table: SimTable, outcome: Outcome) -> Outcome:
    """Act as a commit that records a refusal without looking at the table."""
    answer = _answered(table, outcome)
    return Outcome.UNSENT if answer is Outcome.CONFLICT else answer


def _records_at_once(commit: Commit, _view: TableView) -> None:
    """Act as a commit that takes a missing mark as proof of a refusal."""
    for number in commit.log.doubtful:
        commit.log.append(Refused(intent_number=number))


def _keeps_what_landed(ledger: Ledger, sight: Sight, table: str) -> Any:
    """Act as a cleanup that takes a post in doubt for one that has not landed."""
    return _to_keep(ledger, replace(sight, doubtful={}), table)


_to_keep = cleanup._to_keep


def _refuses_new_rows(book: Workbook) -> None:
    """Act as a complete run that does not continue with rows that came since."""
    raise RunMismatchError(run_id=book._log.run_id, differences="new rows")


def _oldest_schema(book: Workbook) -> list[dict[str, Any]]:
    """Act as a check of the schema that the oldest accepted files were written for."""
    claims = {
        record.claim for record in book.work.records if record.groups or record.chunk is not None
    }
    return [book._log.plans[min(claims)].schema] if claims else []


def _loss_of_its_first_look(table: SimTable, *arguments: Any) -> Loss:
    """Act as a commit that computes once what goes, and posts it on later looks."""
    first: Loss = vars(table).setdefault("first_loss", _loss(table, *arguments))
    return first


def _loss_of_all(table: SimTable, view: TableView, change: Change, name: str) -> Loss:
    """Act as a sink that removes what others have added, too."""
    return _loss(table, view, replace(change, base=None), name)


_loss = SimTable.loss

Patches = Callable[[], list[Any]]


def _named_by_number(intents: Mapping[int, Intent], number: int, **_facts: Any) -> Intent | None:
    """Act as a look-up that accepts any intent with the mark's number."""
    return intents.get(number)


GUARDS: dict[str, Patches] = {
    "mark": lambda: [mock.patch.object(Commit, "look", _finds_nothing)],
    "removed": lambda: [mock.patch.object(Commit, "look", _takes_gone_for_never)],
    "same table": lambda: [mock.patch.object(Commit, "load", _loads_any_table)],
    "conditional post": lambda: [mock.patch.object(SimTable, "_arrive", _lands_anywhere)],
    "sequence number": lambda: [mock.patch.object(SimTable, "_arrive", _lands_on_its_head)],
    "read back": lambda: [
        mock.patch.object(module, "create_once", _believes)
        for module in (run_log, task_log, run_log)
    ],
    "fence": lambda: [
        mock.patch.object(RunLog, "_stop_if_fenced", _goes_on),
        mock.patch.object(RunLog, "append", _appends_behind),
    ],
    "input check": lambda: [mock.patch.object(InputCheck, "rows_are_missing", _all_done)],
    "waiting chunks": lambda: [mock.patch.object(Work, "waiting", ())],
    "dead tasks": lambda: [mock.patch.object(Workbook, "inherit", _inherits_the_seal_only)],
    "overlaps": lambda: [
        mock.patch.object(input_check, "without_overlaps", _kept),
        mock.patch.object(InputCheck, "rows_are_missing", _all_done),
    ],
    "holders": lambda: [mock.patch.object(Work, "without", _without_only)],
    "superseded once": lambda: [mock.patch.object(Work, "plus", _plus_all)],
    "lost files": lambda: [
        mock.patch.object(passes, "without_lost", lambda _ledger, work, *_arguments: work),
        mock.patch.object(SimTable, "check", lambda *_arguments: None),
    ],
    "replaced records": lambda: [mock.patch.object(task_log, "_beside", _all_before)],
    "earlier keys": lambda: [mock.patch.object(CoveredKeys, "take_over", lambda *_arguments: None)],
    "finished ranges": lambda: [
        mock.patch.object(ScanRows, "_left", lambda rows, _finished: rows._pins.whole)
    ],
    "first pins": lambda: [mock.patch.object(RunLog, "pinned", None)],
    "out of reach": lambda: [mock.patch.object(InputCheck, "stop_if_out_of_reach", _does_nothing)],
    "sweep keeps": lambda: [mock.patch.object(cleanup, "_to_keep", lambda *_arguments: ())],
    "sweep waits": lambda: [mock.patch.object(RunLog, "is_aborted", property(_sweeps_at_once))],
    "old files": lambda: [mock.patch.object(drive, "renew", lambda *_arguments: None)],
    "copies in the log": lambda: [mock.patch.object(RunLog, "renewals", ())],
    "told aborted": lambda: [mock.patch.object(drive, "refuse_doubt", lambda *_arguments: None)],
    "resolve": lambda: [
        mock.patch.object(module, "resolve", lambda *_all, **_named: Sight(doubtful={}))
        for module in (cleanup, resolve, cleanup)
    ],
    "abort fails closed": lambda: [
        mock.patch.object(cleanup, "_refuse_out_of_sight", lambda *_all, **_named: None)
    ],
    "refusals": lambda: [mock.patch.object(Commit, "_record_refusals", lambda *_arguments: None)],
    "looked after": lambda: [mock.patch.object(SimTable, "_answered", _takes_conflict_for_unsent)],
    "moved past": lambda: [mock.patch.object(Commit, "_record_refusals", _records_at_once)],
    "doubt keeps files": lambda: [mock.patch.object(cleanup, "_to_keep", _keeps_what_landed)],
    "doubt is told": lambda: [mock.patch.object(drive, "refuse_doubt", resolve.refuse_landed)],
    "new rows": lambda: [mock.patch.object(Workbook, "reopen", _refuses_new_rows)],
    "loss of its look": lambda: [mock.patch.object(SimTable, "loss", _loss_of_its_first_look)],
    "spared rows": lambda: [mock.patch.object(SimTable, "loss", _loss_of_all)],
    "manifests in use": lambda: [
        mock.patch.object(cleanup, "_kept_posts", lambda *_arguments: set()),
        mock.patch.object(SimTable, "live_files", lambda *_arguments: set()),
    ],
    "many attempts": lambda: [mock.patch.object(commit, "_ATTEMPTS_MAX", 1)],
    "readable abort": lambda: [mock.patch.object(run_log, "encode_record", _spoils_aborts)],
    "each schema": lambda: [mock.patch.object(Workbook, "schemas", property(_oldest_schema))],
    "chunks by number": lambda: [
        mock.patch.object(replay, "_numbers", lambda *_arguments: ()),
        mock.patch.object(Workbook, "schemas", property(_schemas_of_files)),
    ],
    "folders of tasks": lambda: [
        mock.patch.object(passes, "tasks_name", lambda claim, _nonce: tasks_name(claim))
    ],
    "heartbeat": lambda: [
        mock.patch.object(takeover, "_beat", lambda *_arguments: lambda: None),
    ],
    "claim in turn": lambda: [mock.patch.object(RunLog, "try_claim", RunLog.claim)],
    "named intents": lambda: [mock.patch.object(commit, "intent_named", _named_by_number)],
    **FILTERED_GUARDS,
    **LANCE_GUARDS,
}


@contextmanager
def without(guard: str | None) -> Iterator[None]:
    """Remove a guard, or none."""
    with ExitStack() as stack:
        for patch in GUARDS[guard]() if guard else ():
            stack.enter_context(patch)
        yield
