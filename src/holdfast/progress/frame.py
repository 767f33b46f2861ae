"""Frame: what is shown of a run at one moment, whatever shows it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from holdfast.engine.takeover import silent_after_s
from holdfast.engine.watch import Observation
from holdfast.model.progress import Progress
from holdfast.progress.pace import NO_PACE, Pace, pace_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One picture of a run."""

    run_id: str
    table: str = ""
    # None before the run is claimed.
    progress: Progress | None = None
    pace: Pace = NO_PACE
    # How long this start has taken so far, or has taken in all.
    elapsed_s: float = 0.0
    # How long nothing was heard of it, if that is longer than it should be.
    silent_s: float = 0.0
    # What a start that has ended has left as its reason, and what that says.
    reason: str = ""
    message: str = ""

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come by itself."""
        return self.progress is not None and self.progress.state in {
            "committed",
            "stopped",
            "aborted",
        }

    def to_json(self) -> dict[str, Any]:
        """Return all figures, for programs."""
        progress = self.progress
        found: dict[str, Any] = {"run_id": self.run_id, "table": self.table}
        if progress is not None:
            found |= asdict(progress)
            found |= {"remaining_rows": progress.remaining_rows, "share": progress.share}
        found |= asdict(self.pace)
        return found | {
            "elapsed_s": round(self.elapsed_s, 1),
            "stop_reason": self.reason,
            "stop_message": self.message,
        }


def frame_of(seen: Observation, now: float, table: str = "") -> Frame:
    """Return the picture of what was found.

    Args:
        seen: What the ledger tells.
        now: Unix seconds.
        table: The table's name; by default the one that the ledger tells.
    """
    progress = seen.progress
    start = seen.starts[-1] if seen.starts else None
    frame = Frame(
        run_id=progress.run_id,
        table=table or (seen.identity.table if seen.identity else ""),
        progress=progress,
        pace=pace_of(seen, now),
        elapsed_s=max(0.0, progress.last_at - progress.began_at),
        reason=start.reason if start else "",
        message=start.message if start else "",
    )
    if start is None or frame.is_over:
        return frame
    # Clocks of two machines may differ: no time is below zero.
    silent_s = now - progress.last_at
    return replace(
        frame,
        elapsed_s=max(0.0, now - progress.began_at),
        silent_s=silent_s if silent_s > silent_after_s(start.checkpoint_every_s) else 0.0,
    )
