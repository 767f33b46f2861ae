"""Spark: jobs of one task per place, with lost executors, twins, zombies and rows dealt anew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from holdfast.errors import JobFailedError
from holdfast.ledger.key_files import KeyFiles
from holdfast.worker.replay import ITEM_COLUMN, ReplayPlan
from holdfast.worker.reports import TaskReport
from holdfast.worker.task import TaskPlan
from tests.fakes.memory_submitter import MemorySubmitter, partition
from tests.simulation.world import Actor, DiedError, World

_ATTEMPTS_MAX = 4
_TWINS = 0.08
_ZOMBIES = 0.5
_LOSSES_MAX = 6


@dataclass
class Place:
    """One partition of a job, and what Spark knows of it."""

    number: int
    rows: pa.RecordBatch
    report: TaskReport | None = None
    failures: int = 0
    losses: int = 0
    attempts: list[Actor] = field(default_factory=list)


class SimSpark(MemorySubmitter):
    """Runs a driver's jobs on executors that are processes of their own."""

    def __init__(
        self,
        world: World,
        ids: Sequence[int],
        *,
        places: int,
        unstable: bool,
        tasks: list[Actor] | None = None,
    ) -> None:
        """Take the input.

        Args:
            world: Where the tasks live.
            ids: The input's keys.
            places: Into how many partitions a job's rows are dealt.
            unstable: Whether a partition that is read again may give other rows.
            tasks: Where to note the attempts that are started.
        """
        super().__init__(list(ids))
        self._world = world
        self._places = places
        self._unstable = unstable
        self.driver: Actor | None = None
        # All attempts that were ever started.
        self.tasks: list[Actor] = [] if tasks is None else tasks
        self._attempt = 0

    def submit(self, plan: TaskPlan, finished: KeyFiles) -> list[TaskReport]:
        """Run the plan over what is left, dealt into places."""
        ids = self.left(finished)
        return self._run(plan, [partition(dealt) for dealt in self._dealt(ids)], ids)

    def replay(self, plan: ReplayPlan, items: Sequence[str]) -> list[TaskReport]:
        """Run the replay of each item."""
        rows = [pa.RecordBatch.from_pydict({ITEM_COLUMN: [item]}) for item in items]
        return self._run(plan, rows, [])

    def left(self, finished: KeyFiles) -> list[int]:
        """Return the ids that are not finished."""
        (left,) = self._left(self.partitions, finished)
        found: list[int] = left["id"].to_pylist()
        return found

    def _dealt(self, ids: Sequence[int]) -> list[list[int]]:
        shift = self._world.chance.of(self._places)
        dealt: list[list[int]] = [[] for _ in range(self._places)]
        for number, one in enumerate(ids):
            dealt[(number + shift) % self._places].append(one)
        return dealt

    def _run(
        self, plan: TaskPlan | ReplayPlan, inputs: Sequence[pa.RecordBatch], ids: Sequence[int]
    ) -> list[TaskReport]:
        world = self._world
        world.pause("submit a job")
        world.counts["jobs"] += 1
        places = [Place(number, rows) for number, rows in enumerate(inputs)]
        for place in places:
            self._start(plan, place, ids)
            if world.faults.deaths and world.chance.happens(_TWINS):
                self._start(plan, place, ids)
        world.wait_for(
            lambda: (
                any(place.failures >= _ATTEMPTS_MAX for place in places)
                or all(place.report is not None for place in places)
            )
        )
        for place in places:
            for twin in place.attempts:
                # Spark ends what it no longer needs; sometimes that does not arrive.
                if not twin.is_done and not world.chance.happens(_ZOMBIES):
                    twin.lives = False
        if any(place.failures >= _ATTEMPTS_MAX for place in places):
            raise JobFailedError(reason="a task failed four times")
        return [
            TaskReport.from_json(place.report.to_json())
            for place in places
            if place.report is not None
        ]

    def _start(self, plan: TaskPlan | ReplayPlan, place: Place, ids: Sequence[int]) -> None:
        world, rows = self._world, place.rows
        if place.attempts and self._unstable and isinstance(plan, TaskPlan):
            rows = partition(self._dealt(ids)[place.number])
        self._attempt += 1
        number = self._attempt
        world.counts["attempts"] += 1

        def run() -> TaskReport:
            return plan.run([rows], place=place.number, attempt=number)

        def ended(report: TaskReport | None, error: BaseException | None) -> None:
            if report is not None:
                place.report = place.report or report
                return
            if self.driver is None or not self.driver.lives or place.report is not None:
                return
            if isinstance(error, DiedError):
                place.losses += 1
                if place.losses > _LOSSES_MAX:
                    place.failures = _ATTEMPTS_MAX
            else:
                place.failures += 1
            if place.failures < _ATTEMPTS_MAX:
                self._start(plan, place, ids)

        driver = self.driver.name if self.driver else "?"
        actor = world.spawn(f"{driver}/task {place.number}.{number}", run, ended=ended)
        place.attempts.append(actor)
        self.tasks.append(actor)
