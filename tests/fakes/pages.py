"""Runs for page tests: observations whose records were written when and where a test says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from holdfast.engine.watch import Observation, Watcher
from holdfast.engine.workbook import Gathered
from holdfast.model.coverage import Coverage
from holdfast.model.history import starts_of
from holdfast.model.records import Claim, Record
from holdfast.model.usage import NO_USAGE, Usage
from holdfast.model.work import TaskRecord, Work
from holdfast.pages.facts import Facts, facts_of
from holdfast.pages.spread import Failures
from tests.fakes.logs import CLAIM
from tests.fakes.manual_ports import manual_ports
from tests.fakes.memory_writer import staged_group
from tests.fakes.rig import Rig
from tests.fakes.watched_transform import WatchedTransform

ALWAYS = 1e-9
# Where a rig's clock starts.
BEGIN = 1_800_000_000.0


def look(rig: Rig) -> Observation:
    """Look at a run, as another process does."""
    return Watcher(ledger=rig.ledger()).look()


def facts(seen: Observation, now: float = BEGIN + 3_600) -> Facts:
    """Return the facts of a run without failed rows."""
    return facts_of(seen, Failures(), now)


def killed_twice() -> Rig:
    """Return a run whose first two starts were killed and whose third ended it, 100 s apart."""
    rig, transform = Rig(), WatchedTransform()
    for process_id, row in enumerate((5, 15), start=1):
        transform.at[row] = rig.storage.kill
        rig.start_and_die(
            transform=transform,
            batch_rows=1,
            checkpoint_every=ALWAYS,
            ports=manual_ports(rig.time, process_id=process_id),
        )
        rig.time.now_s += 100
    rig.start(transform=transform, ports=manual_ports(rig.time, process_id=3))
    return rig


def with_usage(seen: Observation, usage: Callable[[int], Usage]) -> Observation:
    """Return the same run, with another usage for each of its records, by number."""
    records = seen.gathered.work.records
    changed = tuple(replace(record, usage=usage(number)) for number, record in enumerate(records))
    return replace(seen, gathered=replace(seen.gathered, work=Work(records=changed)))


def without_usage(seen: Observation) -> Observation:
    """Return the same run, as an earlier version of the library would have written it."""
    return with_usage(seen, lambda _: NO_USAGE)


def large_run(tasks: int, records_per_task: int) -> Observation:
    """Return a run of one start with so many records, none of it landed."""
    small = look(Rig())
    claim = replace(CLAIM, host="driver")
    records = tuple(
        TaskRecord(
            name=f"00000001/rows/{task:06d}/000000000000/{number:04d}",
            coverage=Coverage(rows=100, low=0, high=0, keys_bytes=0),
            seconds=2.0,
            groups=(staged_group(f"{task}-{number}", rows=100),),
            usage=Usage(
                at=BEGIN + number * 30 + task / tasks,
                host=f"host-{task % 40}",
                waited_s=0.5,
                memory_bytes=500_000_000 + task * 1_000,
            ),
        )
        for task in range(tasks)
        for number in range(records_per_task)
    )
    log = (_record(1, claim),)
    rows = sum(record.coverage.rows for record in records)
    return replace(
        small,
        log=log,
        starts=starts_of(log),
        gathered=Gathered(work=Work(records=records)),
        progress=replace(small.progress, state="started", done_rows=rows, input_rows=2 * rows),
    )


def _record(number: int, body: Claim) -> Record:
    return Record(number=number, nonce="n", written_at="2027-01-15T08:00:00+00:00", body=body)
