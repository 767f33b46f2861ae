"""Time and chance under a test's control: nothing sleeps, every nonce is known."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection

from holdfast.ledger.ledger import Ports


class ManualTime:
    """A clock that moves only when a caller sleeps."""

    def __init__(self) -> None:
        """Start at a fixed moment."""
        self.now_s = 1_800_000_000.0
        self.sleeps: list[float] = []
        # Runs once, at the end of the next sleep: what happened meanwhile.
        self.meanwhile: Callable[[], object] | None = None
        # What happens at the same time as drivers: when each is due, and what it is.
        self._beside: dict[str, tuple[float, Callable[[], float | None]]] = {}
        self._numbers = itertools.count(1)

    def beside(
        self, name: str, after_s: float, act: Callable[[], float | None], /
    ) -> Callable[[], None]:
        """Let something happen as time passes, until it is ended."""
        key = f"{name} {next(self._numbers)}"
        self._beside[key] = (self.now_s + after_s, act)

        def end() -> None:
            self._beside.pop(key, None)

        return end

    def now(self) -> float:
        """Return the moment."""
        return self.now_s

    def sleep(self, seconds: float) -> None:
        """Advance the clock at once, and remember the sleep."""
        self.sleeps.append(seconds)
        self.pass_by(seconds)
        if (meanwhile := self.meanwhile) is not None:
            self.meanwhile = None
            meanwhile()

    def pass_by(self, seconds: float) -> None:
        """Advance the clock, and run what is due meanwhile."""
        until = self.now_s + seconds
        while due := [(at, key) for key, (at, _) in self._beside.items() if at <= until]:
            self.now_s, key = min(due)
            _, act = self._beside.pop(key)
            if (again_s := act()) is not None:
                self._beside[key] = (self.now_s + again_s, act)
        self.now_s = until


_drivers = itertools.count(1)


def nonces() -> Callable[[], str]:
    """Return a maker of nonces that no other maker of this process repeats."""
    driver, numbers = next(_drivers), itertools.count(1)
    # Names of files have twelve characters of it.
    return lambda: f"n{driver}-{next(numbers)}"


def manual_ports(
    time: ManualTime | None = None,
    *,
    machine: str = "machine-1",
    process_id: int = 1,
    running: Collection[int] = (),
) -> Ports:
    """Return ports that never wait.

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
        beside=time.beside,
        drivers=[],
    )
