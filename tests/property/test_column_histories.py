"""Random histories of a run that computes columns, on real Lance: others write, drivers die.

The oracle: each row that is live at the end has its own values; only a row that others have added
since the run began may have none.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.engine.cleanup import sweep
from tests.conftest import SEED_VARIABLE
from tests.fakes.column_rig import ColumnRig, DriverDied

# Each history takes about a second.
_HISTORIES = 8
_STARTS_MAX = 12
_SCHEMA = pa.schema([("double", pa.int64()), ("pair", pa.list_(pa.int32(), 2))])
_HOW: dict[str, Any] = {"schema": _SCHEMA, "on_error": "quarantine", "max_errors": 1.0}


class _Others:
    """What others do to the dataset, and which rows they have added."""

    def __init__(self, rig: ColumnRig, chance: random.Random) -> None:
        self._rig, self._chance = rig, chance
        self._next = 1000
        self.added: set[int] = set()
        self.done: list[str] = []
        self.first = rig.dataset().version
        # Rows whose id has a remainder of 5 fail.
        self.bad = 1

    def act(self) -> None:
        """Do something."""
        acts: list[Callable[[], object]] = [
            self._append,
            self._append,
            self.delete,
            self.delete,
            self._update,
            self._compact,
            self._restore,
            self._index,
            self._column,
            self._clean_up,
        ]
        act = self._chance.choice(acts)
        self.done.append(act.__name__)
        act()

    def _append(self) -> None:
        ids = list(range(self._next, self._next + self._chance.randint(1, 6)))
        self._next += len(ids)
        self.added.update(ids)
        self._rig.append(*ids)

    def _some(self) -> list[int]:
        ids = sorted(self._rig.dataset().to_table(columns=["id"])["id"].to_pylist())
        return self._chance.sample(ids, min(len(ids), self._chance.randint(1, 9)))

    def delete(self) -> None:
        """Delete some rows."""
        if some := self._some():
            self._rig.dataset().delete(f"id in ({', '.join(map(str, some))})")

    def _update(self) -> None:
        for id_ in self._some()[:2]:
            new, self._next = self._next, self._next + 1
            if id_ in self.added:
                self.added.add(new)
            self._rig.dataset().update({"id": str(new), "v": f"'v{new}'"}, where=f"id = {id_}")

    def _compact(self) -> None:
        self._rig.dataset().optimize.compact_files(
            target_rows_per_fragment=self._chance.choice([15, 50, 1000])
        )

    def _restore(self) -> None:
        versions = [entry["version"] for entry in self._rig.dataset().versions()]
        older = [version for version in versions if version >= self.first]
        found = self._rig.dataset(self._chance.choice(older or versions))
        found.restore()

    def _index(self) -> None:
        self._rig.dataset().create_scalar_index("id", "BTREE", replace=True)

    def _column(self) -> None:
        name = f"c{self._next}"
        self._next += 1
        self._rig.dataset().add_columns({name: "id + 1"})

    def _clean_up(self) -> None:
        self._rig.dataset().cleanup_old_versions(older_than=timedelta(0))


def _maybe(chance: random.Random, share: float, act: Callable[[], object]) -> Callable[[], None]:
    def run() -> None:
        while chance.random() < share:
            act()

    return run


def _dies(chance: random.Random, share: float, act: Callable[[], object]) -> Callable[[], None]:
    def run() -> None:
        act()
        if chance.random() < share:
            raise DriverDied

    return run


def play(rig: ColumnRig, seed: int) -> _Others:
    """Play one history to its end, and hold the dataset against the oracle."""
    chance = random.Random(seed)
    rig.make(
        rows=chance.choice([20, 60, 100]),
        per_file=chance.choice([10, 25, 1000]),
        enable_stable_row_ids=chance.random() < 0.6,
    )
    rig.jobs.slots = chance.choice([1, 2, 5])
    others = _Others(rig, chance)
    for _ in range(chance.randint(0, 2)):
        others.delete()
    others.first = rig.dataset().version
    bad, busy = chance.choice([1, 17]), chance.choice([0.2, 0.5])

    def computed(batch: pa.RecordBatch) -> dict[str, Any]:
        if any(id_ % bad == 5 for id_ in batch["id"].to_pylist()):
            raise ValueError("5")
        return rig.doubled(batch)

    rig.compute = computed
    for _ in range(_STARTS_MAX):
        beside = _dies(chance, 0.15, _maybe(chance, busy, others.act))
        rig.jobs.before_tasks = [beside] * 40
        posts = [_dies(chance, 0.2, _maybe(chance, busy, others.act)) for _ in range(3)]
        try:
            rig.start_with(posts, **_HOW)
        except DriverDied:
            rig.time.sleep(1000.0)
            continue
        break
    else:
        rig.jobs.before_tasks = []
        rig.start(**_HOW)
    others.bad = bad
    check(rig, others)
    sweep(rig.ledger(), lambda _identity: rig.sink())
    check(rig, others)
    return others


def check(rig: ColumnRig, others: _Others) -> None:
    """Read all rows: each has its own values, or none if others have added it."""
    for id_, row in rig.rows().items():
        found = (row["v"], row["double"], row["pair"])
        own: tuple[Any, ...] = (f"v{id_}", 2 * id_, [id_, id_ + 1])
        none = (f"v{id_}", None, None)
        may_be_none = id_ in others.added or id_ % others.bad == 5
        assert found == own or (found == none and may_be_none), (row, others.done)


@pytest.mark.parametrize("number", range(_HISTORIES))
def test_each_row_has_its_own_values_whatever_happens(number: int, tmp_path: Path) -> None:
    """Appends, deletions, updates, compactions, restores, clean-ups; drivers die in between."""
    first = os.environ[SEED_VARIABLE]
    print(f"history {number}: again with {SEED_VARIABLE}={first}")
    play(ColumnRig(str(tmp_path / "t.lance")), int(first) + number)
