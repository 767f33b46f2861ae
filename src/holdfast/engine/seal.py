"""Seal: decide which task records count. One procedure for a live and a dead epoch alike.

Per place the log of a complete attempt counts, else the one that covers most. What a task writes
after its claim is sealed never counts, so a task that nobody can stop does no harm.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from holdfast.errors import LedgerDamagedError
from holdfast.ledger.answers import list_objects
from holdfast.ledger.layout import RunLayout
from holdfast.ledger.task_log import read_task_records, whole_prefixes
from holdfast.model.work import TaskRecord, Work
from holdfast.storage.port import Storage
from holdfast.worker.reports import TaskReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """The work with what was found under more claims, and the rows that were left out."""

    work: Work
    dropped_rows: int = 0
    dropped_cost: float = 0.0
    # All logs, by name, and those accepted ones whose tasks did not live to end them.
    logs: Mapping[str, Sequence[TaskRecord]] = field(default_factory=dict)
    open_logs: Sequence[Sequence[TaskRecord]] = ()


def gather(
    storage: Storage,
    layout: RunLayout,
    work: Work,
    folders: Iterable[str],
    reports: Sequence[TaskReport] = (),
) -> Gathered:
    """Read the task logs of the claims and accept what counts.

    Args:
        storage: How the store is reached.
        layout: Where the run stands.
        work: What earlier seals have accepted.
        folders: What the folders of the task logs to read are called, in order.
        reports: What the tasks themselves say, where they lived to say it.

    Raises:
        LedgerDamagedError: A record is damaged, or a reported one is not to be found.
        StoreUnavailableError: The store did not answer.
    """
    gathered = accept(
        work,
        (
            read_task_records(storage, layout, list_objects(storage, layout.job_tasks(folder)))
            for folder in folders
        ),
    )
    for report in reports:
        # Tasks that live say how much they wrote: a listing that misses some must not pass.
        if len(gathered.logs.get(report.log, ())) < report.records:
            raise LedgerDamagedError(
                uri=f"{layout.tasks}/{report.log}",
                reason=f"the task wrote {report.records} records, and fewer are listed",
            )
    return gathered


def accept(work: Work, claims: Iterable[Sequence[TaskRecord]]) -> Gathered:
    """Decide which records count.

    Args:
        work: What earlier seals have accepted.
        claims: The records of each claim that is not sealed yet, the oldest claim first.
    """
    dropped: list[TaskRecord] = []
    open_logs: list[Sequence[TaskRecord]] = []
    found: dict[str, Sequence[TaskRecord]] = {}
    for records in claims:
        logs = whole_prefixes(records)
        found |= logs
        best: dict[str, str] = {}
        for name in sorted(logs):
            place = name.rsplit("/", 1)[0]
            if place not in best or _worth(logs[name]) > _worth(logs[best[place]]):
                best[place] = name
        chosen = [record for name in sorted(best.values()) for record in logs[name]]
        work, refused = work.plus(chosen)
        open_logs += [logs[name] for name in best.values() if not logs[name][-1].end]
        counted = {one.name for one in chosen} - set(refused)
        dropped += [one for log in logs.values() for one in log if one.name not in counted]
    return Gathered(
        work=work,
        dropped_rows=_rows(dropped),
        dropped_cost=sum(one.cost for one in dropped),
        logs=found,
        open_logs=open_logs,
    )


def _worth(log: Sequence[TaskRecord]) -> tuple[bool, int, int]:
    """Rank a log: a complete one, then the most rows, then the most chunks put into files."""
    complete = any(record.end == "complete" for record in log)
    return complete, _rows(log), sum(len(record.supersedes) for record in log)


def _rows(log: Sequence[TaskRecord]) -> int:
    return sum(record.coverage.rows for record in log)
