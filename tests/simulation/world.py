"""The world: processes that take turns at every call, a clock, and what goes wrong.

Each actor is a greenlet. Before every call to the store or the table it pauses, and the world
decides which actor continues, which one dies, and what happens to the call. Nothing runs
concurrently, so its decisions determine a history exactly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from greenlet import getcurrent, greenlet  # type: ignore[import-untyped]

from tests.simulation.chance import Chance

_STEPS_MAX = 30_000
_STEP_S = 0.05
_SWITCHES = 0.35


class DiedError(BaseException):
    """Ends a process where it is; no code of ours swallows it."""


class EndlessError(Exception):
    """A history did not end."""


@dataclass(eq=False)
class Actor:
    """Something that acts: a driver, a task, another writer, a request under way."""

    name: str
    run: Callable[[], Any]
    # Called by the world when the actor has ended: with its result, or with what it raised.
    ended: Callable[[Any, BaseException | None], None] = lambda _result, _error: None
    lives: bool = True
    is_done: bool = False
    wakes_at: float = 0.0
    # The actor whose process it belongs to: they die together.
    process: Actor | None = None
    # Until when its whole process is stopped, with everything that runs beside it.
    stopped_until: float = 0.0
    # Until when its signs of life are held up, though it is alive.
    unheard_until: float = 0.0
    waits_for: Callable[[], bool] | None = None
    # Signals that have come and are not handled yet, and the handlers.
    signals: list[int] = field(default_factory=list)
    handlers: dict[int, Callable[[int, None], None]] = field(default_factory=dict)
    turn: Any = None


@dataclass
class Faults:
    """How much may still go wrong."""

    deaths: int = 0
    calls: int = 0


@dataclass
class World:
    """All actors of one history."""

    chance: Chance
    faults: Faults = field(default_factory=Faults)
    is_traced: bool = False
    clock: float = 1_000_000.0
    steps: int = 0
    actors: list[Actor] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    # The actor that makes the call of such a number stalls before it, for so many seconds.
    stalls: dict[int, float] = field(default_factory=dict)
    # Called when an actor is killed: ends what dies with it.
    killed: Callable[[Actor], None] = lambda _actor: None
    _current: Actor | None = None
    _hub: Any = None

    @property
    def current(self) -> Actor | None:
        """The actor that acts now."""
        return self._current

    def now(self) -> float:
        """Return the moment."""
        return self.clock

    def spawn(self, name: str, run: Callable[[], Any], **how: Any) -> Actor:  # noqa: ANN401
        """Let a new actor take part."""
        actor = Actor(name=name, run=run, **how)
        actor.turn = greenlet(lambda: self._live(actor))
        self.actors.append(actor)
        return actor

    def go_on(self) -> None:
        """Let actors take turns until all have ended.

        Raises:
            EndlessError: The actors do not end.
        """
        self._hub = getcurrent()
        current: Actor | None = None
        while True:
            if self.steps > _STEPS_MAX:  # An actor may have caught what `pause` raised.
                raise EndlessError(f"more than {_STEPS_MAX} calls")
            waiting = [actor for actor in self.actors if not actor.is_done]
            if not waiting:
                self._current = None  # Calls from outside do not belong to an actor.
                return
            ready = [actor for actor in waiting if self._is_ready(actor)]
            if not ready:
                moments = [actor.wakes_at for actor in waiting if actor.waits_for is None]
                later = [moment for moment in moments if moment > self.clock]
                if not later:
                    names = ", ".join(actor.name for actor in waiting)
                    raise EndlessError(f"no actor can continue: {names}")
                self.clock = min(later)
                continue
            if current in ready:
                ready.remove(current)
                ready.insert(0, current)
            current = ready[self.chance.of(len(ready), _SWITCHES)]
            self._current = current
            # When it ends, the world gives the next turn, not the actor that started it.
            current.turn.parent = self._hub
            current.turn.switch()
            self.actors = [actor for actor in self.actors if not actor.is_done]

    def pause(self, label: str) -> None:
        """Let others act before this actor's next call; it may die before it makes it.

        Raises:
            DiedError: The actor dies before its call.
        """
        actor = self._current
        if actor is None:
            return  # Calls from outside do not disturb actors.
        if not actor.lives:
            raise DiedError
        self.steps += 1
        self.clock += _STEP_S
        if self.steps > _STEPS_MAX:
            raise EndlessError(f"more than {_STEPS_MAX} calls")
        if self.steps in self.stalls:
            self.note(f"stalls before {label}")
            self.counts["stalls"] += 1
            seconds = self.stalls.pop(self.steps)
            if self.chance.of(2):
                actor.stopped_until = self.clock + seconds
            if actor.process is not None:
                actor.process.unheard_until = self.clock + seconds
            self.sleep(seconds)
        if self.faults.deaths and self.chance.happens(0.012):
            self.faults.deaths -= 1
            self.note(f"dies before {label}")
            self.kill(actor)
            raise DiedError
        self._hub.switch()
        self._current = actor
        if not actor.lives:
            raise DiedError
        self.note(label)

    def kill(self, actor: Actor) -> None:
        """End an actor at its next step, and everything that dies with it."""
        actor.lives = False
        actor.waits_for, actor.wakes_at = None, 0.0
        self.counts["deaths"] += 1
        self.killed(actor)
        if actor.process is not None and actor.process.lives:
            self.kill(actor.process)

    def signal(self, actor: Actor, number: int) -> None:
        """Send a signal, which ends an actor that does not handle it."""
        if actor.is_done or not actor.lives:
            return
        if number in actor.handlers:
            actor.signals.append(number)
        else:
            self.kill(actor)

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Let the current actor rest until a condition holds.

        Raises:
            DiedError: The actor dies first.
        """
        actor = self._current
        if actor is None:
            return
        while not condition():
            actor.waits_for = condition
            self._hub.switch()
            self._current = actor
            if not actor.lives:
                raise DiedError
            while actor.signals:
                number = actor.signals.pop(0)
                if number in actor.handlers:
                    actor.handlers[number](number, None)

    def sleep(self, seconds: float) -> None:
        """Let the current actor rest for a while.

        Raises:
            DiedError: The actor dies first.
        """
        actor = self._current
        if actor is None:
            return
        actor.wakes_at = self.clock + seconds
        self._hub.switch()
        self._current = actor
        if not actor.lives:
            raise DiedError

    def beside(
        self, name: str, after_s: float, act: Callable[[], float | None], /
    ) -> Callable[[], None]:
        """Run something beside the current actor, in the same process."""
        owner, is_over = self._current, False
        if owner is None:
            return lambda: None

        def run() -> None:
            wait_s: float | None = after_s
            while wait_s is not None:
                self.sleep(wait_s)
                if owner.stopped_until > self.clock:
                    self.sleep(owner.stopped_until - self.clock)
                if is_over or owner.is_done or not owner.lives:
                    return
                wait_s = act()

        thread = self.spawn(f"{owner.name}: {name}", run, process=owner)

        def end() -> None:
            nonlocal is_over
            is_over = True
            thread.wakes_at = 0.0

        return end

    def new_lock(self) -> Lock:
        """Return a reentrant lock."""
        return Lock(self)

    def rest(self) -> None:
        """Let the current actor rest for a moment or for minutes, or not at all."""
        self.sleep((0.0, 1.0, 20.0, 300.0)[self.chance.of(4)])

    def note(self, what: str) -> None:
        """Record what the current actor does."""
        if self.is_traced:
            name = self._current.name if self._current else "the world"
            self.trace.append(f"{self.steps:5d}  {name:<22} {what}")

    def _is_ready(self, actor: Actor) -> bool:
        if not actor.lives:
            return True
        if actor.waits_for is not None:
            if not actor.signals and not actor.waits_for():
                return False
            actor.waits_for = None
        return actor.wakes_at <= self.clock

    def _live(self, actor: Actor) -> None:
        result: Any = None
        error: BaseException | None = None
        try:
            if actor.lives:
                result = actor.run()
        except DiedError as died:
            error = died
        except Exception as raised:  # noqa: BLE001 - the waiting actor decides what it means.
            error = raised
        actor.is_done = True
        actor.ended(result, error)


@dataclass
class Lock:
    """A lock: one actor holds it at a time, and others wait for it."""

    world: World
    holder: Actor | None = None
    depth: int = 0

    def __enter__(self) -> None:
        """Wait until it is free, or its holder is dead, and take it."""
        actor = self.world.current
        if self.holder is not actor:
            self.world.wait_for(self._is_free)
            self.holder, self.depth = actor, 0
        self.depth += 1

    def __exit__(self, *_error: object) -> None:
        """Release it."""
        self.depth -= 1
        if not self.depth:
            self.holder = None

    def _is_free(self) -> bool:
        holder = self.holder
        return holder is None or holder.is_done or not holder.lives
