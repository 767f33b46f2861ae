"""Usage: when a task record was written, and what its process had used until then.

It is for people who look at a run, while it runs or the morning after. Nothing is decided by it,
and no two clocks are compared.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from holdfast.model.stored import Count, Seconds, UnixSeconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What one process has used between two records of a task."""

    # Unix seconds, by the clock of the task's machine.
    at: UnixSeconds = 0.0
    host: str = ""
    # How long computing waited for storage.
    waited_s: Seconds = 0.0
    bytes_read: Count = 0
    bytes_written: Count = 0
    # The peak memory of the process.
    memory_bytes: Count = 0
    # How long ago that use began.
    over_s: Seconds = 0.0

    def since(self, earlier: Usage) -> Usage:
        """Return the difference from an earlier reading; time and memory are the current ones."""
        return Usage(
            at=self.at,
            host=self.host,
            waited_s=round(self.waited_s - earlier.waited_s, 3),
            bytes_read=self.bytes_read - earlier.bytes_read,
            bytes_written=self.bytes_written - earlier.bytes_written,
            memory_bytes=self.memory_bytes,
            over_s=round(max(0.0, self.at - earlier.at), 3),
        )

    def after(self, earlier: Usage) -> Usage:
        """Return this use together with an earlier one."""
        return replace(
            self,
            waited_s=round(self.waited_s + earlier.waited_s, 3),
            bytes_read=self.bytes_read + earlier.bytes_read,
            bytes_written=self.bytes_written + earlier.bytes_written,
            over_s=round(self.over_s + earlier.over_s, 3),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the usage as plain JSON values."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


NO_USAGE = Usage()
