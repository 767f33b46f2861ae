"""Identity: what makes two starts the same run, and how two differ, in words for users."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import Any

# The names of the facts in messages.
_WORDS = {
    "branch": "its branch",
    "mode": "its mode",
    "session_time_zone": "the session's time zone (spark.sql.session.timeZone)",
    "ansi_mode": "the session's ANSI mode (spark.sql.ansi.enabled)",
    "version": "version=",
    "where": "its filter (where=)",
    "on": "its merge key (on=)",
    "delete_column": "the column that says which rows delete (delete_column=)",
}


_VERBS = {
    "append": "append to",
    "overwrite": "replace all rows of",
    "overwrite_partitions": "replace partitions of",
    "upsert": "merge into",
    "add_columns": "add columns to",
    "update_columns": "update columns of",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a run was started as; written once, compared at every later start.

    The table's schema is not part of it: optional columns may be added to a table while a run is
    under way, so the sink compares schemas, and not for equality.
    """

    table: str
    # Empty in the identity of a start that would have to create its table.
    table_uuid: str
    branch: str
    mode: str
    key: tuple[str, ...]
    session_time_zone: str
    ansi_mode: str
    version: str
    # The run whose failed rows this one retries. Not in ledgers of 0.1.
    retry_of: str = ""
    # What a scan reads from its files. Not in ledgers of 0.1.
    input: str = ""
    # The filter of an overwrite, as text. Not in ledgers of 0.1.
    where: str = ""
    # The columns on which an upsert merges rows. Not in ledgers of 0.1.
    on: tuple[str, ...] = ()
    # The column of an upsert's output that says which rows delete. Not in older ledgers.
    delete_column: str = ""

    @property
    def verb(self) -> str:
        """What the run does to its table, as the words before the table's name."""
        rows = f"replace rows where {self.where} of"
        return rows if self.where else _VERBS.get(self.mode, self.mode)

    def differences(self, started: Identity) -> list[str]:
        """Describe each fact in which this start differs from the run's first start."""
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
                    found.append(f"it {_rows_of(then)}, but this start {_rows_of(now)}")
                case "input":
                    found += _input_differences(then, now)
                case name:
                    found.append(f"{_WORDS[name]} was {then!r}, and is now {now!r}")
        return found

    def to_json(self) -> dict[str, Any]:
        """Return the identity as plain JSON values."""
        return {**asdict(self), "key": list(self.key), "on": list(self.on)}

    def _table_difference(self, started: Identity) -> str:
        if self.table != started.table:
            return f"it writes the table {started.table}, but this start writes {self.table}"
        if not self.table_uuid:
            return f"its table {self.table} has since been dropped"
        return (
            f"the table {self.table} is not the one that it was started with: it was dropped and "
            "created again, or this is another table of the same name"
        )


def key_difference(then: tuple[str, ...], now: tuple[str, ...]) -> str:
    """Say that a run was started with another key.

    Args:
        then: The key's columns when the run was started; none for a scan.
        now: The key's columns now.
    """
    return f"its key was {_columns(then)}, and is now {_columns(now)}"


def _columns(names: tuple[str, ...]) -> str:
    return f"({', '.join(names)})" if names else "the position of a row in its file"


def _rows_of(retried: str) -> str:
    if retried:
        return f"retries the rows of run {retried!r} that failed"
    return "reads an input of its own"


def _input_differences(then: str, now: str) -> list[str]:
    """Describe how the scan's input differs from what it was when the run was started."""
    old, new = _facts(then), _facts(now)
    if (was := old.pop("scan")) != (is_now := new.pop("scan")):
        return [f"it read {was}, but this start reads {is_now}"]
    found = [
        f"the scan's {name} was {_value(old.get(name))}, and is now {_value(new.get(name))}"
        for name in {**old, **new}
        if old.get(name) != new.get(name)
    ]
    # The texts differ, so report a difference even if the parsed facts are the same.
    return found or [f"its input was {then}, and is now {now}"]


def _facts(text: str) -> dict[str, Any]:
    """Return an identity's facts about its input, with its kind in words under `scan`."""
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
