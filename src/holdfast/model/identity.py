"""Identity: what makes two starts the same run.

The same run id with another table, mode, key or version is an error that says what differs;
a reused id must never drop data without a word.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a run was started as. Written once, compared at every later start.

    The table's schema is kept beside it, not in it: optional columns may be added to a table
    while a run is under way, so schemas are compared by the sink, not for equality.
    """

    table: str
    table_uuid: str
    branch: str
    mode: str
    key: tuple[str, ...]
    session_time_zone: str
    ansi_mode: str
    version: str
    # The run whose failed rows this one tries again. Not in ledgers of 0.1.
    retry_of: str = ""
    # What a scan reads of its files. Not in ledgers of 0.1.
    input: str = ""

    def differences(self, started: Identity) -> list[str]:
        """Name each fact in which this start differs from the one the run began with."""
        found = []
        for field in fields(self):
            now, then = getattr(self, field.name), getattr(started, field.name)
            # A renamed table is still the same table: its UUID decides.
            if now == then or field.name == "table":
                continue
            text = f"{field.name.replace('_', ' ')} was {then!r} and is now {now!r}"
            if field.name == "table_uuid" and self.table == started.table:
                text = f"{self.table} was made again, or is another one now: {text}"
            found.append(text)
        return found

    def to_json(self) -> dict[str, Any]:
        """Return the identity as plain JSON values."""
        return {**asdict(self), "key": list(self.key)}
