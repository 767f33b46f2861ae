"""The report: what one start of a run did, for people."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Outcome = Literal["committed", "already_committed"]
Presence = Literal["yes", "unknown"]

_KILO = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What one start of a run did. `print(report)` shows it as a small table."""

    run_id: str
    table: str
    outcome: Outcome
    snapshot_id: int
    rows: int
    files: int
    size_bytes: int
    tasks: int
    posts: int
    seconds: float
    # True when an earlier start had staged everything, and this one only published it.
    inherited: bool = False
    # False when nobody looked whether the input is the one that an earlier start has read.
    input_compared: bool = True
    still_in_table: Presence = "yes"

    def __str__(self) -> str:
        """Return the report as lines of `name  value`."""
        lines = [
            ("run", self.run_id),
            ("table", self.table),
            ("outcome", self.outcome.replace("_", " ")),
            ("snapshot", str(self.snapshot_id)),
            ("rows", f"{self.rows:,}"),
            ("files", f"{self.files:,} ({readable_size(self.size_bytes)})"),
        ]
        if self.outcome == "committed":
            lines.append(("tasks", f"{self.tasks:,}"))
            lines.append(("posts", f"{self.posts:,}"))
        if self.inherited:
            lines.append(("staged by", "an earlier start"))
        if not self.input_compared:
            lines.append(("input", "not compared"))
        if self.still_in_table != "yes":
            lines.append(("in table", "unknown: the table's history does not tell any more"))
        lines.append(("time", f"{self.seconds:.1f} s"))
        return "\n".join(f"  {name:<9} {value}" for name, value in lines)


def readable_size(size_bytes: int) -> str:
    """Return a size as people write it: `1.4 GB`."""
    size = float(size_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if size < _KILO:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= _KILO
    return f"{size:.1f} TB"
