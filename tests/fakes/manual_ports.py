"""Time, chance and Spark under a test's control: nothing sleeps, every nonce is known."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from holdfast.engine.ports import Ports
from holdfast.model.input_sums import InputSums
from holdfast.worker.reports import TaskReport
from holdfast.worker.task import TaskPlan
from tests.fakes.memory_writer import staged_group


class ManualTime:
    """A clock that moves only when somebody sleeps."""

    def __init__(self) -> None:
        """Start at a fixed moment."""
        self.now_s = 1_800_000_000.0
        self.sleeps: list[float] = []

    def now(self) -> float:
        """Return the moment."""
        return self.now_s

    def sleep(self, seconds: float) -> None:
        """Let the time pass at once, and remember it."""
        self.sleeps.append(seconds)
        self.now_s += seconds


_drivers = itertools.count(1)


def nonces() -> Callable[[], str]:
    """Return a maker of nonces that no other maker of this process repeats."""
    driver, numbers = next(_drivers), itertools.count(1)
    return lambda: f"nonce-{driver}-{next(numbers)}"


def manual_ports(time: ManualTime | None = None) -> Ports:
    """Return ports on which nothing waits."""
    time = time or ManualTime()
    return Ports(now=time.now, sleep=time.sleep, new_nonce=nonces(), jitter=lambda: 0.5)


class ScriptedSubmitter:
    """Stands in for Spark: returns the reports it was given, and remembers the plans."""

    def __init__(self, reports: Sequence[TaskReport] | Exception | None = None) -> None:
        """Take the answer; by default two tasks of one file each, named after the job."""
        self._reports = reports
        self.plans: list[TaskPlan] = []
        self.sums = InputSums(rows=20, null_keys=0, low=1, high=1)
        if reports is not None and not isinstance(reports, Exception):
            seen = sum(report.rows_in for report in reports)
            self.sums = InputSums(rows=seen, null_keys=0, low=1, high=1)

    def measure(self) -> InputSums:
        """Return what the input is said to be."""
        return self.sums

    def submit(self, plan: TaskPlan) -> list[TaskReport]:
        """Answer as told."""
        self.plans.append(plan)
        if isinstance(self._reports, Exception):
            raise self._reports
        if self._reports is not None:
            return list(self._reports)
        return [
            TaskReport(
                place=place,
                rows_in=10,
                rows_out=10,
                groups=(staged_group(f"{plan.job_nonce}-{place}"),),
            )
            for place in range(2)
        ]
