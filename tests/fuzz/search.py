"""Search: round after round, each with a newly damaged ledger, until the time is over."""

from __future__ import annotations

import shlex
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from unittest import mock

from tests.fuzz.calls import READING, SWEEPS, WRITING, Caller
from tests.fuzz.jobs import JOBS, Job, Lake, make_lake
from tests.fuzz.judge import Judge, Verdict
from tests.fuzz.mutations import Damage, Mutation
from tests.fuzz.picture import Picture, Truth

_SAY_EVERY_S = 20.0
# Not every mutation can be done to every run.
_TRIES_MAX = 50


@dataclass
class Tally:
    """What was done in all rounds, and the results."""

    rounds: int = 0
    mutations: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    states: Counter[str] = field(default_factory=Counter)
    declared: Counter[str] = field(default_factory=Counter)
    violations: int = 0

    def summary(self, seed: int) -> str:
        """Return all of it as text; the last line says whether something was wrong."""
        last = (
            f"fuzz: {self.rounds} rounds, {self.mutations.total()} mutations, "
            f"{self.calls.total()} calls, {self.violations} violations, seed {seed}"
        )
        lines = [
            f"runs damaged: {_counts(self.states)}",
            f"mutations: {_counts(self.mutations)}",
            f"calls: {_counts(self.calls)}",
            f"outcomes: {_counts(self.outcomes)}",
            f"as docs/explanation/trust.md declares: {_counts(self.declared) or 'nothing'}",
            last,
        ]
        return "\n".join(lines)


def _counts(counted: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counted.most_common())


@contextmanager
def _same_names(rng: Random) -> Iterator[None]:
    """Draw nonces by the seed, so that the same round names the same objects."""

    def draw() -> uuid.UUID:
        return uuid.UUID(int=rng.getrandbits(128), version=4)

    with mock.patch.object(uuid, "uuid4", draw):
        yield


@dataclass
class Search:
    """One lake, put back before each round."""

    seed: int
    lake: Lake
    base: Picture
    truth: Truth
    only: str | None = None
    tally: Tally = field(default_factory=Tally)

    @classmethod
    def on(cls, folder: Path, seed: int, only: str | None = None) -> Search:
        """Make the lake."""
        with _same_names(Random(seed)):
            lake = make_lake(folder)
        return cls(seed, lake, Picture.of(folder), Truth.of(lake), only)

    def round(self, number: int) -> bool:
        """Damage a ledger, make some calls, and judge each; return whether none was a violation."""
        rng = Random(f"{self.seed}/{number}")
        self.base.put_back()
        job = rng.choice(JOBS)
        mutations = self._damage(rng, job)
        calls = _drawn_calls(rng)
        self.tally.rounds += 1
        self.tally.states[job.run_id] += 1
        judge = Judge(
            lake=self.lake,
            job=job,
            truth=self.truth,
            damaged=Picture.of(self.lake.folder, self.base),
            mutations=mutations,
        )
        caller, is_well = Caller(lake=self.lake, job=job), True
        for at, call in enumerate(calls):
            said = caller(call)
            self.tally.calls[call] += 1
            self.tally.outcomes[said.outcome] += 1
            for verdict in judge.look(said):
                if verdict.declared:
                    self.tally.declared[f"{verdict.declared}: {verdict.what.split(':')[0]}"] += 1
                    continue
                is_well = False
                self.tally.violations += 1
                self._tell(number, job, mutations, calls[: at + 1], said.outcome, verdict)
        return is_well

    def _damage(self, rng: Random, job: Job) -> list[Mutation]:
        damage = Damage(
            lake=self.lake,
            job=job,
            rng=rng,
            staged=self.truth.staged[job.run_id],
            only=self.only,
        )
        wanted, found = rng.choice((1, 1, 1, 2, 3)), list[Mutation]()
        for _ in range(_TRIES_MAX):
            if len(found) == wanted or (found and found[-1].is_last):
                break
            if (mutation := damage.strike()) is not None:
                found.append(mutation)
                self.tally.mutations[mutation.kind] += 1
        return found

    def _tell(  # noqa: PLR0913, PLR0917 - all that a reader needs to see it again.
        self,
        number: int,
        job: Job,
        mutations: list[Mutation],
        calls: list[str],
        outcome: str,
        verdict: Verdict,
    ) -> None:
        print(f"VIOLATION in round {number}, run {job.run_id!r}")
        for mutation in mutations:
            print(f"  {mutation.kind}: {mutation.what}")
        print(f"  calls: {'; '.join(calls)} -> {outcome}")
        print("  seen: " + verdict.what.replace("\n", "\n    "))
        only = f" --only {shlex.quote(self.only)}" if self.only else ""
        again = f"--seed {self.seed} --rounds-from {number} --rounds 1{only}"
        print(f"  again: python -m tests.fuzz {again}", flush=True)


def _drawn_calls(rng: Random) -> list[str]:
    """Draw the calls: a read, a step that changes something, and another of either."""
    calls = [rng.choice(READING)] if rng.random() < 0.7 else []
    calls.append(rng.choice((*WRITING, "start")))
    if rng.random() < 0.5:
        calls.append(rng.choice((*WRITING, *SWEEPS)))
    if rng.random() < 0.5:
        calls.append(rng.choice(("status --json", "runs --json", *WRITING)))
    return calls


def search(  # noqa: PLR0913 - they are what the command line takes.
    seed: int,
    *,
    minutes: float,
    first: int = 1,
    rounds: int | None = None,
    only: str | None = None,
    stop: bool = False,
) -> Tally:
    """Search until the time is over, or so many rounds are done.

    Args:
        seed: What everything is drawn from.
        minutes: How long at most.
        first: The first round.
        rounds: How many, if not as many as there is time for.
        only: The only kind of mutation, if not all.
        stop: Whether to end at the first violation.
    """
    with TemporaryDirectory(prefix="fuzz-") as folder:
        started = time.monotonic()
        desk = Search.on(Path(folder).resolve(), seed, only)
        said_at, number = time.monotonic(), first
        while rounds is None or number < first + rounds:
            is_well = desk.round(number)
            number += 1
            if time.monotonic() - said_at > _SAY_EVERY_S:
                said_at = time.monotonic()
                print(f"  {desk.tally.rounds} rounds, {desk.tally.calls.total()} calls", flush=True)
            if time.monotonic() - started > minutes * 60 or (stop and not is_well):
                break
    return desk.tally
