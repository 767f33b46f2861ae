"""Twins: another attempt at the same place of the same job.

Spark starts a second attempt when the first one is lost, has failed, or is slow. If the other
attempt has durable work, this one does nothing: the next pass does the rest, over all cores. As
long as the other attempt's log grows it is alive, and if this one ended first, Spark would kill it.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.ledger.store import list_objects
from holdfast.ledger.task_log import JobLedger, read_logs, read_task_records
from holdfast.model.work import TaskRecord
from holdfast.worker.reports import ReportEnd

# Without checkpoints a log does not grow while its task works.
_PATIENCE_WITHOUT_CHECKPOINTS_S = 60.0
_POLL_MIN_S, _POLL_MAX_S = 0.2, 10.0
_POLLS_MAX = 1_000_000


def reason_to_do_nothing(
    ledger: JobLedger, *, place: int, attempt: int, every_s: float | None
) -> ReportEnd | None:
    """Return why a starting task must not pay for any row; None if it may.

    Raises:
        StoreUnavailableError: The store did not answer.
    """
    if ledger.is_stale(every_s or _PATIENCE_WITHOUT_CHECKPOINTS_S) and (end := ledger.end()):
        return "fenced" if end == "fenced" else "interrupted"
    left = wait_for_twin(ledger, place=place, attempt=attempt, every_s=every_s)
    return "left" if left else None


def twin_is_at_work(ledger: JobLedger, *, place: int, attempt: int, only_earlier: bool) -> bool:
    """Whether another attempt has durable work at this place, and continues it.

    Args:
        ledger: How the run's ledger is reached.
        place: The position in the job.
        attempt: This task's own attempt.
        only_earlier: Count only attempts that Spark started before this one.

    Raises:
        StoreUnavailableError: The store did not answer.
    """
    for name, log in read_logs(ledger.storage, ledger.layout, _list(ledger, place)).items():
        other = int(name.rsplit("/", 1)[1])
        ended = any(record.end in {"failed", "stopped"} for record in log)
        if other == attempt or ended or (only_earlier and other > attempt):
            continue
        if any(record.coverage.rows for record in log):
            return True
    return False


def wait_for_twin(  # noqa: PLR0913 - time is passed in, so that tests control it.
    ledger: JobLedger,
    *,
    place: int,
    attempt: int,
    every_s: float | None,
    clock: Callable[[], float] | None = None,
    sleep: Callable[[float], None] | None = None,
) -> bool:
    """Wait while another attempt's log grows; return whether one has durable work.

    Raises:
        StoreUnavailableError: The store did not answer.
    """
    clock, sleep = clock or ledger.ports.monotonic, sleep or ledger.ports.sleep
    base_s = every_s or _PATIENCE_WITHOUT_CHECKPOINTS_S
    own = ledger.log_name(place, attempt)
    seen: set[str] = set()
    records: list[TaskRecord] = []
    grown_at = clock()
    for _ in range(_POLLS_MAX):
        uris = _list(ledger, place)
        new = [uri for uri in uris if uri not in seen and f"/{own}/" not in uri]
        seen.update(new)
        if found := read_task_records(ledger.storage, ledger.layout, new):
            records += found
            grown_at = clock()
        if not any(record.coverage.rows or record.supersedes for record in records):
            return False
        if any(record.end for record in records) or ledger.end():
            return True
        steps_s = [record.seconds for record in records if not record.replaces]
        patience_s = 2 * max([base_s, *steps_s])
        if clock() - grown_at > patience_s:
            return True
        sleep(min(max(base_s / 8, _POLL_MIN_S), _POLL_MAX_S))
    return True


def _list(ledger: JobLedger, place: int) -> list[str]:
    return list_objects(ledger.storage, ledger.layout.place(ledger.tasks, ledger.job, place))
