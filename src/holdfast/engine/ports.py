"""What the engine is given from outside, so that a simulation can drive it."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from holdfast.model.input_sums import InputSums
from holdfast.worker.reports import TaskReport
from holdfast.worker.task import TaskPlan


def _new_nonce() -> str:
    return uuid.uuid4().hex


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Time and chance."""

    now: Callable[[], float] = field(default=time.time)
    sleep: Callable[[float], None] = field(default=time.sleep)
    new_nonce: Callable[[], str] = field(default=_new_nonce)
    # Between 0 and 1: spreads the retries of rival writers; nothing secret hangs on it.
    jitter: Callable[[], float] = field(default=random.random)  # noqa: S311


class Submitter(Protocol):
    """Reads the input, and runs a plan over it, one task per place."""

    def measure(self) -> InputSums:
        """Read the key columns once and return their sums.

        Raises:
            JobError: The input could not be read.
        """

    def submit(self, plan: TaskPlan) -> list[TaskReport]:
        """Run the job and return one report per task.

        Raises:
            JobError: The job could not be run at all.
        """
