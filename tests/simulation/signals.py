"""Signals: Ctrl-C and SIGTERM for drivers that are actors, not processes.

Replaces the modules `signal` and `threading` inside `holdfast.engine.ports`: each driver
is the main thread of a process of its own.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

from holdfast.engine import ports
from tests.simulation.world import Actor, DiedError, World


@contextmanager
def simulated_signals(world: World) -> Iterator[None]:
    """Let the engine find the world's signals instead of the system's."""
    found = _Signals(world)
    with (
        mock.patch.object(ports, "signal", found),
        mock.patch.object(ports, "threading", found),
    ):
        yield


@dataclass
class _Thread:
    ident: Actor


class _Signals:
    SIGINT, SIGTERM, SIG_DFL = signal.SIGINT, signal.SIGTERM, signal.SIG_DFL
    Signals = signal.Signals

    def __init__(self, world: World) -> None:
        self._world = world
        self._thread = _Thread(Actor("nobody", lambda: None))

    def signal(self, number: int, handler: Any) -> Any:  # noqa: ANN401 - as the real one.
        handlers = self._actor().handlers
        before = handlers.pop(number, signal.SIG_DFL)
        if handler is not signal.SIG_DFL:
            handlers[number] = handler
        return before

    def raise_signal(self, number: int) -> None:
        handler = self._actor().handlers.get(number)
        if handler is None:
            self._world.note(f"ends by {signal.Signals(number).name}")
            self._world.kill(self._actor())
            raise DiedError
        handler(number, None)

    def pthread_kill(self, thread: Actor, number: int) -> None:
        self._world.signal(thread, number)

    def main_thread(self) -> _Thread:
        if self._thread.ident is not self._actor():
            self._thread = _Thread(self._actor())
        return self._thread

    current_thread = main_thread

    def Timer(  # noqa: N802 - as the real one.
        self, seconds: float, act: Callable[..., None], given: tuple[Any, ...]
    ) -> _Timer:
        return _Timer(self._world, seconds, lambda: act(*given))

    def _actor(self) -> Actor:
        actor = self._world.current
        assert actor is not None
        return actor


class _Timer:
    daemon = False

    def __init__(self, world: World, seconds: float, act: Callable[[], None]) -> None:
        self._world = world
        self._seconds = seconds
        self._act = act
        self._is_cancelled = False

    def start(self) -> None:
        self._world.spawn("timer", self._run)

    def cancel(self) -> None:
        self._is_cancelled = True

    def _run(self) -> None:
        self._world.sleep(self._seconds)
        if not self._is_cancelled:
            self._act()
