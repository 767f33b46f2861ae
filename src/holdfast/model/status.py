"""Status: what a run's ledger says, in a form that a person reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from holdfast.plain_text import printable

# "started": a driver has claimed it, alive or dead. "stopped": its driver gave up in good order.
# "staged": everything is in table files, and only the commit is missing. "damaged": its ledger
# cannot be read, and a list of runs goes on without it.
RunState = Literal["new", "started", "stopped", "staged", "committed", "aborted", "damaged"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """Where a run stands. `print(status)` shows it as a small table."""

    run_id: str
    state: RunState
    table: str
    # None while nobody has measured the input.
    input_rows: int | None
    done_rows: int
    # Those of them that have failed, as far as a seal has counted them.
    quarantined_rows: int
    # How many drivers have claimed it.
    starts: int
    host: str
    process_id: int
    last_record_at: str
    snapshot_id: int | None
    # What is wrong with a ledger that is damaged.
    error: str = ""
    # Which error or signal ended the last start of a run that is stopped, and what it says.
    stopped_by: str = ""

    @classmethod
    def damaged(cls, run_id: str, error: str) -> RunStatus:
        """Return the status of a run whose ledger cannot be read."""
        return cls(
            run_id=run_id,
            state="damaged",
            table="",
            input_rows=None,
            done_rows=0,
            quarantined_rows=0,
            starts=0,
            host="",
            process_id=0,
            last_record_at="",
            snapshot_id=None,
            error=error,
        )

    def __str__(self) -> str:
        """Return the status as lines of `name  value`."""
        lines = [("run", self.run_id), ("state", self.state)]
        if self.error:
            lines.append(("error", self.error))
        if self.stopped_by:
            lines.append(("stopped", f"by {self.stopped_by}"))
        if self.table:
            lines.append(("table", self.table))
        of = "" if self.input_rows is None else f" of {self.input_rows:,}"
        if self.input_rows:
            of += f" ({self.done_rows / self.input_rows:.0%})"
        lines.append(("done", f"{self.done_rows:,}{of} rows"))
        if self.quarantined_rows:
            lines.append(("failed", f"{self.quarantined_rows:,} of them: see run.quarantined()"))
        if self.snapshot_id is not None:
            lines.append(("snapshot", str(self.snapshot_id)))
        if self.starts:
            lines.append(("starts", f"{self.starts}, last by {self.host} ({self.process_id})"))
            lines.append(("written", self.last_record_at))
        return "\n".join(f"  {name:<9} {printable(value)}" for name, value in lines)
