"""Time and chance under a test's control: nothing sleeps, every nonce is known."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection

from holdfast.engine.ports import Ports


class ManualTime:
    """A clock that moves only when somebody sleeps."""

    def __init__(self) -> None:
        """Start at a fixed moment."""
        self.now_s = 1_800_000_000.0
        self.sleeps: list[float] = []
        # Runs once, at the end of the next sleep: what the world did meanwhile.
        self.meanwhile: Callable[[], object] | None = None

    def now(self) -> float:
        """Return the moment."""
        return self.now_s

    def sleep(self, seconds: float) -> None:
        """Let the time pass at once, and remember it."""
        self.sleeps.append(seconds)
        self.now_s += seconds
        if (meanwhile := self.meanwhile) is not None:
            self.meanwhile = None
            meanwhile()


_drivers = itertools.count(1)


def nonces() -> Callable[[], str]:
    """Return a maker of nonces that no other maker of this process repeats."""
    driver, numbers = next(_drivers), itertools.count(1)
    return lambda: f"nonce-{driver}-{next(numbers)}"


def manual_ports(
    time: ManualTime | None = None,
    *,
    machine: str = "machine-1",
    process_id: int = 1,
    running: Collection[int] = (),
) -> Ports:
    """Return ports on which nothing waits.

    Args:
        time: The clock, if others are to share it.
        machine: Where this process runs.
        process_id: Which one it is.
        running: The other processes that run on that machine.
    """
    time = time or ManualTime()
    return Ports(
        now=time.now,
        sleep=time.sleep,
        new_nonce=nonces(),
        jitter=lambda: 0.5,
        host="host-1",
        machine=machine,
        process_id=process_id,
        is_running=lambda process_id: process_id in running,
    )
