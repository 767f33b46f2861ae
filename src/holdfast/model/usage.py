"""Usage: when a task record was written, and what its process had used until then.

It is for people who look at a run, while it is at work or the morning after. Nothing is decided by
it, and no two clocks are compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from holdfast.model.stored import Count, Seconds, UnixSeconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What one process has used between two records of a task."""

    # Unix seconds, by the clock of the task's machine.
    at: UnixSeconds = 0.0
    host: str = ""
    # How long computing stood still for storage.
    waited_s: Seconds = 0.0
    bytes_read: Count = 0
    bytes_written: Count = 0
    # The most that the process has ever held.
    memory_bytes: Count = 0

    def since(self, earlier: Usage) -> Usage:
        """Return what was added since an earlier reading; time and memory are those of now."""
        return Usage(
            at=self.at,
            host=self.host,
            waited_s=round(self.waited_s - earlier.waited_s, 3),
            bytes_read=self.bytes_read - earlier.bytes_read,
            bytes_written=self.bytes_written - earlier.bytes_written,
            memory_bytes=self.memory_bytes,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the usage as plain JSON values."""
        return {
            "at": self.at,
            "host": self.host,
            "waited_s": self.waited_s,
            "bytes_read": self.bytes_read,
            "bytes_written": self.bytes_written,
            "memory_bytes": self.memory_bytes,
        }


NO_USAGE = Usage()
