"""Identity: what makes two starts the same run.

The same run id with another table, mode, key or version is an error that says what differs;
a reused id must never drop data without a word.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import Any

# What a fact is called where a person reads it.
_WORDS = {
    "branch": "its branch",
    "mode": "its mode",
    "session_time_zone": "the session's time zone (spark.sql.session.timeZone)",
    "ansi_mode": "the session's ANSI mode (spark.sql.ansi.enabled)",
    "version": "version=",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a run was started as. Written once, compared at every later start.

    The table's schema is kept beside it, not in it: optional columns may be added to a table
    while a run is under way, so schemas are compared by the sink, not for equality.
    """

    table: str
    # Empty for a table that does not exist: what a start wants that would have to create it.
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
        """Say in words each fact in which this start differs from the one the run began with."""
        found = []
        for field in fields(self):
            now, then = getattr(self, field.name), getattr(started, field.name)
            # A renamed table is still the same table: its UUID decides.
            if now == then or field.name == "table":
                continue
            match field.name:
                case "table_uuid":
                    found.append(self._table_difference(started))
                case "key":
                    found.append(key_difference(then, now))
                case "retry_of":
                    found.append(f"it {_rows_of(then)}, and is now to be one that {_rows_of(now)}")
                case "input":
                    found += _input_differences(then, now)
                case name:
                    found.append(f"{_WORDS[name]} was {then!r}, and now is {now!r}")
        return found

    def to_json(self) -> dict[str, Any]:
        """Return the identity as plain JSON values."""
        return {**asdict(self), "key": list(self.key)}

    def _table_difference(self, started: Identity) -> str:
        if self.table != started.table:
            return f"it writes the table {started.table}, and now is to write {self.table}"
        if not self.table_uuid:
            return f"the table {self.table} that it writes was dropped since"
        return (
            f"the table {self.table} is not the one that it was started with: it was dropped and "
            "created again, or this is a table of the same name elsewhere"
        )


def key_difference(then: tuple[str, ...], now: tuple[str, ...]) -> str:
    """Say that a run was started with another key.

    Args:
        then: The key's columns when the run was started; none for a scan.
        now: The key's columns now.
    """
    return f"its key was {_columns(then)}, and now is {_columns(now)}"


def _columns(names: tuple[str, ...]) -> str:
    return f"({', '.join(names)})" if names else "the place of a row in its file"


def _rows_of(retried: str) -> str:
    if retried:
        return f"tries the failed rows of run {retried!r} again"
    return "reads an input of its own"


def _input_differences(then: str, now: str) -> list[str]:
    """Say what a scan reads that it did not read when the run was started, or the reverse."""
    old, new = _facts(then), _facts(now)
    if (was := old.pop("scan")) != (is_now := new.pop("scan")):
        return [f"it read {was}, and now is to read {is_now}"]
    found = [
        f"the scan's {name} was {_value(old.get(name))}, and now is {_value(new.get(name))}"
        for name in {**old, **new}
        if old.get(name) != new.get(name)
    ]
    # The texts differ: that must not pass because the same facts were found in both.
    return found or [f"its input was {then}, and now is {now}"]


def _facts(text: str) -> dict[str, Any]:
    """Return what an identity says of its input, with its kind in words under `scan`."""
    if not text:
        return {"scan": "the rows of a DataFrame"}
    try:
        facts = dict(json.loads(text))
    except (TypeError, ValueError):
        return {"scan": text}
    kind = facts.get("scan")
    words = "a materialized DataFrame" if kind == "materialized" else f"a scan ({kind})"
    return {**facts, "scan": words}


def _value(value: object) -> str:
    if value is None or value == "":
        return "not given"
    if isinstance(value, list):
        return f"({', '.join(map(str, value))})"
    return str(value)
