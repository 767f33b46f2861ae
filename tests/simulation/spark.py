"""Spark: jobs of one task per place, with lost executors, twins, zombies and reshuffled rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from holdfast.errors import JobFailedError
from holdfast.ledger.row_files import KeyFiles
from holdfast.worker.replay import ITEM_COLUMN, ReplayPlan, RewritePlan
from holdfast.worker.reports import TaskProblem, TaskReport
from holdfast.worker.task import ItemPlan, TaskPlan
from tests.fakes.memory_submitter import MemorySubmitter, partition
from tests.simulation.setting import Setting
from tests.simulation.world import Actor, DiedError, World

_ATTEMPTS_MAX = 4
# How likely a second attempt is, for rows and for replays.
_TWINS = (0.06, 0.3)
_ZOMBIES = 0.5
_LOSSES_MAX = 6
_BAD_EXECUTORS = 0.005

# Gives each place its rows; a second read may give others.
Deal = Callable[[], list[pa.RecordBatch]]


@dataclass
class Place:
    """One partition of a job, and what Spark knows about it."""

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
        ids: Sequence[int | None],
        setting: Setting,
        tasks: list[Actor] | None = None,
    ) -> None:
        """Take the input.

        Args:
            world: The world that the tasks run in.
            ids: The input's keys.
            setting: Into how many partitions a job's rows are dealt, and whether a second read may
                give other rows.
            tasks: Where to note the attempts that are started.
        """
        super().__init__(partition(ids, setting.key_type))
        self._kind = setting.key_type
        self._world = world
        self._places = setting.places
        self._unstable = setting.unstable
        self.driver: Actor | None = None
        # All attempts that were ever started.
        self.tasks: list[Actor] = [] if tasks is None else tasks
        self._attempt = 0

    def submit(self, plan: TaskPlan, finished: KeyFiles) -> list[TaskReport]:
        """Run the plan over what is left, dealt into places."""
        ids = self.left(finished)
        return self._run(plan, lambda: self._dealt(ids))

    def items(self, plan: ItemPlan, items: Sequence[str]) -> list[TaskReport]:
        """Run the plan over each item; an attempt to rewrite a file has the same as the first."""
        rows = [pa.RecordBatch.from_pydict({ITEM_COLUMN: [item]}) for item in items]

        def deal() -> list[pa.RecordBatch]:
            shift = self._world.chance.of(len(rows))
            return rows[shift:] + rows[:shift]

        return self._run(plan, (lambda: rows) if isinstance(plan, RewritePlan) else deal)

    @property
    def slots(self) -> int:
        """How many tasks run at a time."""
        return self._places

    def run(self, plan: TaskPlan, items: int) -> list[TaskReport]:
        """Run the plan over work items, each in a place of its own."""
        numbers = [[number] for number in range(items)] or [[]]
        rows = [partition(some) for some in numbers]
        return self._run(plan, lambda: rows)

    def left(self, finished: KeyFiles) -> list[int | None]:
        """Return the ids that are not finished."""
        (left,) = self._left(self.partitions, finished)
        return [id_ if id_ is None else int(id_) for id_ in left["id"].to_pylist()]

    def _dealt(self, ids: Sequence[int | None]) -> list[pa.RecordBatch]:
        shift = self._world.chance.of(self._places)
        dealt: list[list[int | None]] = [[] for _ in range(self._places)]
        for number, id_ in enumerate(ids):
            dealt[(number + shift) % self._places].append(id_)
        return [partition(some, self._kind) for some in dealt]

    def _run(self, plan: TaskPlan | ItemPlan, deal: Deal) -> list[TaskReport]:
        world = self._world
        world.pause("submit a job")
        world.counts["jobs"] += 1
        places = [Place(number, rows) for number, rows in enumerate(deal())]
        for place in places:
            self._start(plan, place, deal)
            if world.chance.happens(_TWINS[isinstance(plan, ReplayPlan)]):
                self._start(plan, place, deal)
        world.wait_for(
            lambda: (
                any(place.failures >= _ATTEMPTS_MAX for place in places)
                or all(place.report is not None for place in places)
            )
        )
        for place in places:
            for twin in place.attempts:
                # Spark kills what it no longer needs; sometimes the kill does not arrive.
                if not twin.is_done and not world.chance.happens(_ZOMBIES):
                    twin.lives = False
        if any(place.failures >= _ATTEMPTS_MAX for place in places):
            raise JobFailedError(reason="a task failed four times")
        return [
            TaskReport.from_json(place.report.to_json())
            for place in places
            if place.report is not None
        ]

    def _start(self, plan: TaskPlan | ItemPlan, place: Place, deal: Deal) -> None:
        world, rows = self._world, place.rows
        if place.attempts and self._unstable:
            rows = deal()[place.number]
        self._attempt += 1
        number = self._attempt
        world.counts["attempts"] += 1

        def run() -> TaskReport:
            if world.faults.calls and world.chance.happens(_BAD_EXECUTORS):
                world.faults.calls -= 1
                return _cannot_run(place.number)
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
                self._start(plan, place, deal)

        driver = self.driver.name if self.driver else "?"
        actor = world.spawn(f"{driver}/task {place.number}.{number}", run, ended=ended)
        place.attempts.append(actor)
        self.tasks.append(actor)


def _cannot_run(place: int) -> TaskReport:
    """Return the report of an executor that lacks what the job needs."""
    facts = {"what": "no Holdfast", "cure": "install it"}
    return TaskReport(
        place=place, end="stopped", problem=TaskProblem(kind="setup", host="host", facts=facts)
    )
