"""Watch a run: read its ledger again and again, and of it only what is new. Writes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from holdfast.engine.prepare import Ledger
from holdfast.engine.seal import Gathered, accept
from holdfast.engine.status import last_input, last_seal, state_of
from holdfast.engine.takeover import beat_every_s
from holdfast.ledger.answers import answers, list_objects
from holdfast.ledger.parts import read_work
from holdfast.ledger.task_log import read_task_records
from holdfast.model.identity import Identity
from holdfast.model.progress import Progress, progress_of
from holdfast.model.records import PartReference, Receipt, Record
from holdfast.model.starts import Start, starts_of
from holdfast.model.work import TaskRecord, Work


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """All that a run's ledger tells at one moment."""

    # None before the first start has said what the run is.
    identity: Identity | None
    log: tuple[Record, ...]
    starts: list[Start]
    # What counts now, and what was found of it in the task logs of claims that no seal names yet.
    gathered: Gathered
    progress: Progress
    # When the driver of the last start gave its last sign of life beside its records.
    beat_at: float | None = None

    @property
    def receipt(self) -> Receipt | None:
        """What landed, if the log says so."""
        return next((one.body for one in reversed(self.log) if isinstance(one.body, Receipt)), None)


@dataclass(kw_only=True)
class Watcher:
    """Looks at one run. Use it in one thread only."""

    ledger: Ledger
    _identity: Identity | None = field(default=None, init=False)
    # The work of the last seal, or of the receipt, by the part that lists it.
    _sealed: tuple[PartReference, Work] | None = field(default=None, init=False)
    # The records of each claim that was looked at, by their names.
    _records: dict[int, dict[str, TaskRecord]] = field(default_factory=dict, init=False)

    def look(self) -> Observation:
        """Read what is new, and return what is known.

        Raises:
            LedgerDamagedError: A record is not as it was written.
            StoreUnavailableError: The store did not answer.
        """
        ledger, log = self.ledger, self.ledger.log
        log.refresh()
        if self._identity is None:
            found = ledger.run_file()
            self._identity = found.identity if found else None
        last, starts = last_seal(log), starts_of(log.records)
        work, through = Work(), 0
        if log.receipt is not None:
            work, through = self._work(log.receipt.staged), max(log.plans, default=0)
        elif last is not None and not self._is_swept(last.work):
            work, through = self._work(last.work), last.through_claim
        claims = [claim for claim in log.plans if claim > through]
        gathered = accept(work, [self._of_claim(claim) for claim in claims])
        _lengthen(starts, gathered.work.records)
        planned = last_input(log)
        current = max(claims, default=-1)
        progress = progress_of(
            run_id=ledger.run_id,
            state=state_of(log, last),
            input_rows=planned.rows if planned else None,
            starts=starts,
            work=gathered.work,
            logs=[one for one in gathered.logs.values() if one[0].claim == current],
        )
        return Observation(
            identity=self._identity,
            log=log.records,
            starts=starts,
            gathered=gathered,
            progress=progress,
            beat_at=self._beat_at(starts),
        )

    def _beat_at(self, starts: Sequence[Start]) -> float | None:
        """Look for the heartbeat of a start that may be at work, once it is old enough for one."""
        ledger, log = self.ledger, self.ledger.log
        if not starts or starts[-1].end:
            return None
        age_s = ledger.ports.now() - starts[-1].began_at
        if age_s < beat_every_s(starts[-1].checkpoint_every_s):
            return None
        uri = ledger.layout.beat(max(log.claims))
        with answers(uri):
            return ledger.storage.last_written([uri])[0]

    def _is_swept(self, reference: PartReference) -> bool:
        """Whether a sweep has taken the list of a run that was given up: then nothing is left."""
        ledger = self.ledger
        if not ledger.log.is_aborted:
            return False
        layout = ledger.layout
        return layout.part(reference.name) not in list_objects(ledger.storage, layout.parts)

    def _work(self, reference: PartReference) -> Work:
        if self._sealed is None or self._sealed[0] != reference:
            ledger = self.ledger
            self._sealed = reference, read_work(ledger.storage, ledger.layout, reference)
        return self._sealed[1]

    def _of_claim(self, claim: int) -> list[TaskRecord]:
        storage, layout = self.ledger.storage, self.ledger.layout
        known = self._records.setdefault(claim, {})
        folder = self.ledger.log.task_folders[claim]
        uris = list_objects(storage, layout.job_tasks(folder))
        new = [uri for uri in uris if layout.task_record_name(uri) not in known]
        known |= {one.name: one for one in read_task_records(storage, layout, new)}
        return list(known.values())


def _lengthen(starts: Sequence[Start], records: Iterable[TaskRecord]) -> None:
    """Let a start that has not said its end last as long as its tasks have written.

    Clocks differ: it is never longer than until the next one began.
    """
    last: dict[int, float] = {}
    for one in records:
        last[one.claim] = max(one.usage.at, last.get(one.claim, 0.0))
    for start, later in zip_longest(starts, starts[1:]):
        if start.end in {"", "gone"}:
            written = max(start.last_at, *(last.get(one.claim, 0.0) for one in start.passes))
            start.last_at = written if later is None else min(written, later.began_at)
