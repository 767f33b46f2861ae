"""Runs whose starts, records and ends are at given times: for what is drawn over time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timezone

from holdfast.engine.watch import Observation
from holdfast.engine.workbook import Gathered
from holdfast.model.costs import Spent
from holdfast.model.coverage import Coverage, InputSums
from holdfast.model.history import StartEnd, progress_of, starts_of
from holdfast.model.records import Body, Plan, Record, Seal, Stop
from holdfast.model.usage import Usage
from holdfast.model.work import Chunk, TaskRecord, Work
from tests.fakes.logs import CLAIM, INTENT, PART, RECEIPT
from tests.fakes.memory_writer import staged_group
from tests.fakes.pages import BEGIN, look
from tests.fakes.rig import Rig

COMMIT_S = 8.0


@dataclass(frozen=True, kw_only=True)
class TimedStart:
    """One start: it reads the input, works, writes records at equal times, and ends."""

    # Seconds after the run began.
    at: float
    records: int = 10
    input_s: float = 30.0
    first_s: float = 10.0
    each_s: float = 5.0
    end: StartEnd = "gone"
    # Which of its records are failed rows.
    failed: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What all starts of a run have in common."""

    rows: int = 100
    hosts: int = 1
    places: int = 6
    # Of the whole run; None if every row is done.
    input_rows: int | None = None
    cost: float = 0.0


class _Made:
    """A log and its task records, as they grow."""

    def __init__(self, shape: Shape) -> None:
        self.shape, self.log, self.records = shape, list[Record](), list[TaskRecord]()

    def write(self, at: float, body: Body) -> int:
        moment = datetime.fromtimestamp(BEGIN + at, timezone.utc).isoformat()
        self.log.append(Record(number=len(self.log) + 1, nonce="n", written_at=moment, body=body))
        return len(self.log)

    def seal(self, at: float, *, complete: bool) -> None:
        rows = sum(record.coverage.rows for record in self.records)
        self.write(
            at,
            Seal(
                through_claim=1,
                work=PART,
                covered=InputSums(rows=rows, low=0, high=0, null_keys=0),
                waiting_chunks=0,
                dropped_rows=0,
                withdrawn_rows=0,
                complete=complete,
                input=None,
            ),
        )

    def add(self, claim: int, number: int, at: float, *, failed: bool, seconds: float) -> None:
        shape = self.shape
        usage = Usage(
            at=BEGIN + at,
            host=f"host-{number % shape.hosts}",
            waited_s=seconds / 20,
            bytes_read=1_000_000,
            bytes_written=500_000,
            memory_bytes=200_000_000 + number % shape.hosts * 5_000_000,
        )
        # Low places get more records than high ones.
        place = number * number % (1 + number % shape.places)
        self.records.append(
            TaskRecord(
                name=f"{claim:08d}/rows/{place:06d}/000000000000/{number:04d}",
                coverage=Coverage(rows=shape.rows, low=0, high=0, keys_bytes=0),
                seconds=seconds,
                cost=shape.cost * shape.rows,
                groups=() if failed else (staged_group(f"{claim}-{number}", rows=shape.rows),),
                quarantine=Chunk(rows=shape.rows, size_bytes=9, digest="d") if failed else None,
                usage=usage,
            )
        )

    def start(self, process_id: int, start: TimedStart) -> None:
        claim = self.write(start.at, replace(CLAIM, process_id=process_id))
        if self.records:  # It seals what it has found.
            self.seal(start.at, complete=False)
        at = start.at + start.input_s
        self.write(at, Plan(job="rows", input=None, remaining_rows=None, chunks=0, schema={}))
        at += start.first_s
        for number in range(start.records):
            at += start.each_s if number else 0.0
            failed = number in start.failed
            self.add(claim, number, at, failed=failed, seconds=start.each_s)
        if start.end == "stopped":
            self.write(at, Stop(reason="TransformError", message="row 7 is bad"))
        if start.end == "committed":
            self.seal(at, complete=True)
            self.write(at, INTENT)
            self.write(at + COMMIT_S, RECEIPT)


def timed_run(*starts: TimedStart, shape: Shape | None = None) -> Observation:
    """Return a run of these starts, which is committed if the last one is."""
    made = _Made(shape or Shape())
    for number, start in enumerate(starts, start=1):
        made.start(number, start)
    found, work = starts_of(made.log), Work(records=tuple(made.records))
    for number, summary in enumerate(found):
        until = found[number + 1].first_claim if number + 1 < len(found) else len(made.log) + 1
        own = [
            record.usage.at
            for record in made.records
            if summary.first_claim <= record.claim < until
        ]
        summary.last_at = max([summary.last_at, *own])
    end = starts[-1].end
    rows = sum(record.coverage.rows for record in made.records)
    progress = progress_of(
        run_id="embed-2026-11-15",
        state="committed" if end == "committed" else "stopped" if end == "stopped" else "started",
        input_rows=rows if made.shape.input_rows is None else made.shape.input_rows,
        starts=found,
        work=work,
        logs=[],
        spent=Spent(paid=work.cost, lost=0.0, held=0.0),
    )
    return replace(
        look(Rig()),
        log=tuple(made.log),
        starts=found,
        gathered=Gathered(work=work),
        progress=progress,
        identity=Rig().identity(),
    )
