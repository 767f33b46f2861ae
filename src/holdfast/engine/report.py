"""Report: what one start has done, in the form that a person reads."""

from __future__ import annotations

import warnings

from holdfast.engine.drive import Driven
from holdfast.model.report import Report


def report_of(run_id: str, table: str, driven: Driven, seconds: float) -> Report:
    """Return the report of one start, and warn of what it could not find out.

    Args:
        run_id: The user's id.
        table: The table's name.
        driven: How the start ended.
        seconds: How long it took.
    """
    landed = driven.landed
    if not driven.input_compared:
        warnings.warn(
            f"run {run_id!r}: the input was not compared with what an earlier start "
            "of this run may have read",
            stacklevel=4,  # The call of `append`.
        )
    if landed.present is None:
        warnings.warn(
            f"run {run_id!r} has landed; the table's history does not tell whether its "
            "rows are still there",
            stacklevel=4,
        )
    return Report(
        run_id=run_id,
        table=table,
        outcome="already_committed" if driven.was_landed else "committed",
        snapshot_id=landed.receipt.snapshot_id,
        rows=landed.receipt.rows,
        files=landed.receipt.files,
        size_bytes=landed.receipt.size_bytes,
        tasks=driven.tally.tasks,
        passes=driven.tally.passes,
        posts=landed.posts,
        seconds=seconds,
        kept_rows=driven.kept_rows,
        kept_seconds=driven.kept_seconds,
        dropped_rows=driven.tally.dropped_rows,
        withdrawn_rows=driven.tally.withdrawn_rows,
        io=dict(driven.tally.io),
        copied_files=driven.tally.copied_files,
        rows_by_code=dict(driven.rows_by_code),
        quarantined_rows=driven.quarantined_rows,
        cost_by_epoch=dict(driven.cost_by_epoch),
        kept_cost=driven.kept_cost,
        lost_cost=driven.lost_cost,
        input_compared=driven.input_compared,
        still_in_table="yes" if landed.present else "unknown",
    )
