"""Failed rows: which of them are tried again, and when there are too many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.errors import TooManyErrorsError
from holdfast.model.records import Claim
from holdfast.model.work import Work
from holdfast.worker.reports import TaskReport, WorkerTraceback


def to_keep(work: Work, claims: Mapping[int, Claim], code: str, limit: int) -> Work:
    """Return the work without the failed rows that a new start tries again.

    Rows that failed with other code may work now. And where more have failed than may, all of
    them are tried again: or the next start could only fail as the last one did.

    Args:
        work: What counts so far.
        claims: All claims of the run, by number.
        code: The digest of the transform's code now.
        limit: How many rows may fail.
    """
    others = [one.name for one in work.quarantined if claims[one.claim].code != code]
    kept = work.without(others) if others else work
    if kept.quarantined_rows > limit:
        kept = kept.without(record.name for record in kept.quarantined)
    return kept


def refuse_too_many(work: Work, limit: int, reports: Sequence[TaskReport]) -> None:
    """Stop where more rows have failed than may.

    Raises:
        TooManyErrorsError: More rows have failed than may.
    """
    if work.quarantined_rows <= limit:
        return
    first = next((report for report in reports if report.failed_example), None)
    raise TooManyErrorsError(
        rows=work.quarantined_rows,
        limit=limit,
        example=first.failed_example if first else "see run.quarantined()",
        retry_safe=any(report.failed_may_pass for report in reports),
    ) from (WorkerTraceback.of(first.failed_traceback) if first else None)
