"""A table that a run merges rows into while others write to it, and what must be in it then.

Whatever others did, the rows in the end are those that the parent of our snapshot has under other
keys, and ours: as if they had written first, and we after them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame

from tests.integration.replace_desk import Mode, Target

# New keys, keys of the first snapshot, one of the second, and one that others add meanwhile.
KEYS = (0, 1, 2, 3, 1000, 1001, 1005, 1102, 9001)
_OTHERS = f"id NOT IN {KEYS}"
# How files lose the rows that go, and the arguments that ask for it.
WRITES: Mapping[str, Mapping[str, Any]] = {
    "copy-on-write": {},
    "merge-on-read": {"write_mode": "merge-on-read"},
}

MERGES = tuple(
    Mode(name=f"upsert, {name}", verb="upsert", stays=_OTHERS, options={"on": "id", **how})
    for name, how in WRITES.items()
)
# Rows that others add while a run is at work have ids from 9000 on.
SPARING_MERGES = tuple(
    Mode(
        name=f"{mode.name}, snapshot",
        verb="upsert",
        stays=f"{_OTHERS} OR id >= 9000",
        options={**mode.options, "isolation_level": "snapshot"},
    )
    for mode in MERGES
)
# Files whose bounds do not rule out that they hold one of the keys: seven of the table's eight.
SEARCHED = 7


class MergeTarget(Target):
    """The same table, with rows to be merged into it."""

    def source(self) -> DataFrame:
        """Return the new rows: each is in another partition than an old row of its key."""
        rows = self.lake.session.createDataFrame([(key,) for key in KEYS], "id BIGINT")
        return rows.coalesce(1).selectExpr("id", "cast(3 - id % 4 as int) p")

    def replaced(self, mode: Mode, parent: int) -> int:
        """Return how many rows of a snapshot go."""
        return self.as_of(parent).where(f"NOT ({mode.stays})").count()
