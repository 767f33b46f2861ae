"""Random histories of a run that computes columns, on real Lance: others write, drivers die.

The oracle: each row that is live at the end has what the run computes from its own values, or, if
the run was not to compute it, what it had; only a row that others have added since the run began
may have been left out, and one that they changed after the run had landed has what it had then. It
is held against the dataset after the run, and after a sweep. If others have cleaned up the version
that a post without an answer may have made, the run may end in doubt, and says so; if they have
restored an older one, a later start says that what had landed is gone.

Others append, delete, update, compact, restore, clean up, index, and add columns, between tasks and
between the look at the dataset and the post. Drivers die there, are taken over while they are
alive, get no answer to a post that landed, and have posts under way that arrive after their death.

More of them than the tests play: python -m tests.fakes.column_histories 200 --seed 0.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import lance
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.engine.cleanup import sweep
from holdfast.errors import (
    CommitConflictError,
    CommittedThenRemovedError,
    CommitUnknownError,
    RunFencedError,
)
from holdfast.sinks.base import Change, Outcome, RunMark, TableView
from holdfast.sinks.lance import column_files
from holdfast.sinks.lance.columns import LanceColumnSink
from tests.fakes.column_rig import ColumnRig, DriverDied

_STARTS_MAX = 14
_SCHEMA = pa.schema([("double", pa.int64()), ("pair", pa.list_(pa.int32(), 2))])
# A row's values: the number, and the list.
Values = tuple[int | None, list[int] | None]
_NONE: Values = (None, None)


def _wanted(id_: int) -> Values:
    """Return what the run computes for a row."""
    return 2 * id_, [id_, id_ + 1]


class Others:
    """What others do to the dataset, and what they have done to which rows."""

    def __init__(self, rig: ColumnRig, chance: random.Random) -> None:
        """Do nothing yet."""
        self._rig, self._chance = rig, chance
        self._next = 1000
        # Rows that were not there when the run began; what rows had before it; what was done.
        self.added: set[int] = set()
        self.had: dict[int, Values] = {}
        # What the run had written for rows that others changed after it had landed.
        self.stale: dict[int, Values] = {}
        self.done: list[str] = []
        self.first = rig.dataset().version
        # Posts of dead drivers that are still under way.
        self.late: list[Callable[[], object]] = []

    def act(self) -> None:
        """Do something."""
        act = self._chance.choice(
            [
                *[self._append, self.delete] * 2,
                *(self._update, self._compact, self._restore, self._index),
                *(self._column, self._clean_up, self._arrive),
            ]
        )
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
            self.had[new] = self.had.get(id_, _NONE)
            row = self._rig.rows()[id_]
            now: Values = row.get("double"), row.get("pair")
            if now in [_wanted(id_), *filter(None, [self.stale.get(id_)])]:
                self.stale[new] = now
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

    def _arrive(self) -> None:
        """Let a post of a dead driver arrive; Lance refuses it if the dataset has changed."""
        if self.late:
            try:
                self.late.pop(0)()
            except (OSError, ValueError):
                self.done.append("refused")


class History:
    """One history, drawn from a seed."""

    def __init__(self, rig: ColumnRig, seed: int) -> None:
        """Draw the dataset and the run."""
        self.rig, self.seed = rig, seed
        self._chance = chance = random.Random(seed)
        self._is_update = chance.random() < 0.4
        rig.mode = "update_columns" if self._is_update else "add_columns"
        rows = chance.choice([20, 60, 100])
        rig.make(
            rows=rows,
            per_file=chance.choice([10, 25, 1000]),
            enable_stable_row_ids=chance.random() < 0.6,
        )
        self.others = Others(rig, chance)
        if self._is_update:
            rig.dataset().add_columns(_had)
            self.others.had = {id_: (-id_, [id_, 0]) for id_ in range(rows)}
        # What the run computes: all rows, or some; of some of these the transform fails.
        self._rest = chance.choice([None, 0, 1]) if self._is_update else None
        self._bad = chance.choice([1, 17])
        rig.jobs.slots = chance.choice([1, 2, 5])
        rig.bytes_per_file = chance.choice([10**9, 10**9, 200])
        self._busy = chance.choice([0.2, 0.5])
        self._copies = chance.random() < 0.5
        self._how: dict[str, Any] = {
            "schema": _SCHEMA,
            "on_error": "quarantine",
            "max_errors": 1.0,
            "where": None if self._rest is None else _selected(self._rest),
            "takeover": "now",
        }
        if chance.random() < 0.3:  # Each batch is a checkpoint.
            self._how |= {"batch_rows": 4, "checkpoint_every": 1e-6}
        for _ in range(chance.randint(0, 2)):
            self.others.delete()
        self.others.first = rig.dataset().version
        rig.compute = self._computed

    def play(self) -> None:
        """Play it to its end, and hold the dataset against the oracle."""
        try:
            self._run()
        except CommitUnknownError:
            assert "_clean_up" in self.others.done, self.others.done
            return
        except CommittedThenRemovedError:
            assert "_restore" in self.others.done, self.others.done
            return
        self.check()
        sweep(self.rig.ledger(), lambda _identity: self.rig.sink())
        self.check()

    def _run(self) -> None:
        with ExitStack() as stack:
            if self._copies:
                stack.enter_context(mock.patch.object(column_files, "_PAGE_BYTES_MIN", 0))
            for _ in range(_STARTS_MAX):
                if self._start():
                    return
            self.rig.jobs.before_tasks = []
            self.rig.start(**self._how)

    def check(self) -> None:
        """Read all rows: each has its own values.

        Raises:
            AssertionError: One has others, or has none and should.
        """
        for id_, row in self.rig.rows().items():
            found = (row["v"], row["double"], row["pair"])
            allowed = [(f"v{id_}", *values) for values in self._allowed(id_)]
            assert found in allowed, (self.seed, row, allowed, self.others.done)

    def _allowed(self, id_: int) -> list[Values]:
        had = self.others.had.get(id_, _NONE)
        if self._rest is not None and id_ % 3 == self._rest:
            return [had, *filter(None, [self.others.stale.get(id_)])]
        is_left_out = id_ in self.others.added or id_ % self._bad == 5
        stale = self.others.stale.get(id_)
        return [_wanted(id_), *([had] if is_left_out else []), *([stale] if stale else [])]

    def _computed(self, batch: pa.RecordBatch) -> dict[str, Any]:
        if any(id_ % self._bad == 5 for id_ in batch["id"].to_pylist()):
            raise ValueError("5")
        return self.rig.doubled(batch)

    # ---- One start
    def _start(self) -> bool:
        """Start the run once; return whether it has ended."""
        chance = self._chance
        self.rig.jobs.before_tasks = [self._beside(0.15, rival=0.03)] * 40
        posts = [self._beside(0.2) for _ in range(3)]
        answers = [chance.choice([*["answered"] * 6, "lost", "late"]) for _ in range(3)]
        try:
            with mock.patch.object(LanceColumnSink, "post", self._posting(answers)):
                self.rig.start_with(posts, **self._how)
        except (DriverDied, RunFencedError):
            self.rig.time.sleep(1000.0)
            return False
        except CommitConflictError:  # Others were faster twenty times.
            return False
        return True

    def _beside(self, dies: float, rival: float = 0.0) -> Callable[[], None]:
        """Return what happens at one point: others act, a rival starts, the driver dies."""
        chance = self._chance

        def run() -> None:
            while chance.random() < self._busy:
                self.others.act()
            if chance.random() < rival:
                self._rival()
            if chance.random() < dies:
                raise DriverDied

        return run

    def _rival(self) -> None:
        """Start the run a second time, while the first start is at work."""
        self.others.done.append("rival")
        other = ColumnRig(self.rig.uri, time=self.rig.time, mode=self.rig.mode)
        other.storage, other.compute = self.rig.storage, self._computed
        other.bytes_per_file, other.jobs.slots = self.rig.bytes_per_file, self.rig.jobs.slots
        if self._chance.random() < 0.5:
            other.jobs.dies_at = self._chance.randint(0, 3)
        try:
            other.start(**self._how)
        except DriverDied:
            self.others.done.append("rival died")

    def _posting(self, answers: Sequence[str]) -> Any:  # noqa: ANN401 - a method.
        """Return the sink's post, whose answers are lost, or which arrives after its driver."""
        send, left = LanceColumnSink.post, list(answers)
        commit = lance.LanceDataset.commit

        def post(
            sink: LanceColumnSink, view: TableView, run_id: str, mark: RunMark, change: Change
        ) -> Outcome:
            how = left.pop(0) if left else "answered"
            if how != "late":
                outcome = send(sink, view, run_id, mark, change)
                return Outcome.UNKNOWN if how == "lost" else outcome

            def hold_back(*given: Any, **named: Any) -> Any:  # noqa: ANN401 - Lance's own.
                self.others.late.append(lambda: commit(*given, **named))
                raise DriverDied

            with mock.patch.object(lance.LanceDataset, "commit", hold_back):
                return send(sink, view, run_id, mark, change)

        return post


@lance.batch_udf(output_schema=_SCHEMA)
def _had(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the values that rows have before the run."""
    ids = batch["id"].to_pylist()
    columns = {"double": [-id_ for id_ in ids], "pair": [[id_, 0] for id_ in ids]}
    return pa.RecordBatch.from_pydict(columns, schema=_SCHEMA)


def _selected(rest: int) -> pc.Expression:
    """Return a filter that two of three rows pass: Arrow's expressions have no remainder."""
    third = pc.divide(pc.field("id"), pc.scalar(3))
    return pc.subtract(pc.field("id"), pc.multiply(third, pc.scalar(3))) != pc.scalar(rest)


def main() -> int:
    """Play many histories, until one violates the oracle."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("histories", type=int, nargs="?", default=100)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    given = parser.parse_args()
    for seed in range(given.seed, given.seed + given.histories):
        with tempfile.TemporaryDirectory() as folder:
            history = History(ColumnRig(str(Path(folder) / "t.lance")), seed)
            try:
                history.play()
            except Exception as error:  # noqa: BLE001 - whatever it is, the seed shows it.
                print(f"seed {seed}: {type(error).__name__}: {str(error)[:600]}")
                return 1
    print(f"{given.histories} histories: no violation")
    return 0


if __name__ == "__main__":
    sys.exit(main())
