"""Facts: all that a page says about a run, before anything is drawn."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from holdfast.engine.advice import Tone, standing_of, words_of_log
from holdfast.engine.watch import Observation
from holdfast.model.costs import HELD, left_of, readable_amount
from holdfast.model.history import unix_seconds
from holdfast.model.records import Abort, Body, Record, Seal, Stop, kind_of
from holdfast.model.report import (
    merged_by,
    readable_size,
    readable_time,
    replaced_by,
)
from holdfast.model.work import TaskRecord
from holdfast.pages.spread import Failures, FileSizes, Places, file_sizes_of, places_of
from holdfast.pages.timeline import (
    HostMemory,
    StartSummary,
    Timeline,
    axis_of,
    memory_of,
    summaries_of,
    timeline_of,
)
from holdfast.text import percent

# ---- Head: the state of a run in one word, and what to do next in one sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What a person reads first."""

    run_id: str
    # Empty until the first start has named it.
    table: str
    # What it does to the table: "append to".
    verb: str
    word: str
    tone: Tone
    next_step: str
    began_at: float | None
    # None while it may be at work.
    ended_at: float | None
    # The last sign of activity.
    last_at: float | None
    starts: int
    snapshot_id: int | None
    # What a run that has landed has replaced: "40 rows in 4 files".
    replaced: str = ""
    # What an upsert has done, as names and values.
    merged: Sequence[tuple[str, str]] = ()


def head_of(seen: Observation, summaries: Sequence[StartSummary], now: float) -> Head:
    """Return the head of a page.

    Args:
        seen: The run.
        summaries: Its starts.
        now: Unix seconds.
    """
    last = summaries[-1] if summaries else None
    heard_at = last.last_at if last is not None else 0.0
    word, tone, next_step = standing_of(seen, heard_at, now)
    identity = seen.identity
    has_ended = last is not None and bool(last.end)
    return Head(
        run_id=seen.progress.run_id,
        table=identity.table if identity else "",
        verb=identity.verb if identity else "",
        word=word,
        tone=tone,
        next_step=next_step,
        began_at=summaries[0].began_at if summaries else None,
        ended_at=last.last_at if last is not None and has_ended else None,
        last_at=last.last_at if last else None,
        starts=len(summaries),
        snapshot_id=seen.receipt.snapshot_id if seen.receipt else None,
        replaced=replaced_by(seen.receipt) if seen.receipt else "",
        merged=merged_by(seen.receipt),
    )


# ---- Hosts: what the workers of each machine have done and used

_HOSTS_MAX = 10


@dataclass(slots=True, kw_only=True)
class Host:
    """The sums over one machine's workers."""

    host: str
    rows: int = 0
    seconds: float = 0.0
    waited_s: float = 0.0
    bytes_read: int = 0
    bytes_written: int = 0
    memory_bytes: int = 0


def hosts_of(records: Iterable[TaskRecord]) -> list[Host]:
    """Return the machines that did the most work, busiest first.

    Records of versions that did not note their host are left out.
    """
    found: dict[str, Host] = {}
    for record in records:
        used = record.usage
        if not used.at:
            continue
        host = found.setdefault(used.host, Host(host=used.host))
        host.rows += record.coverage.rows
        host.seconds += record.seconds
        host.waited_s += used.waited_s
        host.bytes_read += used.bytes_read
        host.bytes_written += used.bytes_written
        host.memory_bytes = max(host.memory_bytes, used.memory_bytes)
    busiest = sorted(found.values(), key=lambda host: (-(host.seconds + host.waited_s), host.host))
    return busiest[:_HOSTS_MAX]


# ---- Totals: the figures of a run as a whole, and their wording on a page
@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """What all starts have done together, as far as it counts."""

    done_rows: int
    # None if the input was not measured.
    input_rows: int | None
    failed_rows: int
    # What the last start found done: rows, how long tasks had worked on them, what they had cost.
    kept_rows: int
    kept_seconds: float
    kept_cost: float
    # All that is recorded as paid; of it, what was paid for rows that do not count; and what killed
    # tasks may have spent besides.
    cost: float
    lost_cost: float
    held_cost: float
    # The most that all may be; None without a limit.
    budget: float | None
    # Roughly how long killed tasks had worked after their last record.
    lost_seconds: float
    files: int
    size_bytes: int
    waiting_chunks: int
    task_seconds: float
    # None if no record has it, as in ledgers of earlier versions.
    waited_s: float | None
    bytes_read: int
    bytes_written: int
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One figure of a page."""

    name: str
    value: str
    note: str = ""


def totals_of(seen: Observation, summaries: Sequence[StartSummary]) -> Totals:
    """Sum up what all starts have done.

    Args:
        seen: The run.
        summaries: Its starts.
    """
    progress, records = seen.progress, seen.gathered.work.records
    dated = [record.usage for record in records if record.usage.at]
    return Totals(
        done_rows=progress.done_rows,
        input_rows=progress.input_rows,
        failed_rows=progress.quarantined_rows,
        kept_rows=progress.kept_rows,
        kept_seconds=progress.kept_seconds,
        kept_cost=progress.kept_cost,
        cost=progress.cost,
        lost_cost=progress.lost_cost,
        held_cost=progress.held_cost,
        budget=progress.budget,
        lost_seconds=_lost_seconds(seen.log),
        files=progress.files,
        size_bytes=progress.size_bytes,
        waiting_chunks=progress.waiting_chunks,
        task_seconds=sum(summary.seconds for summary in summaries),
        waited_s=sum(usage.waited_s for usage in dated) if dated else None,
        bytes_read=sum(usage.bytes_read for usage in dated),
        bytes_written=sum(usage.bytes_written for usage in dated),
        memory_bytes=max((usage.memory_bytes for usage in dated), default=0),
    )


def tiles_of(totals: Totals) -> list[Tile]:
    """Word the figures; those that a run does not have are left out."""
    tiles = [_done(totals)]
    if totals.kept_rows:
        tiles += _kept(totals)
    if totals.cost:
        tiles.append(_paid(totals))
    if totals.held_cost:
        tiles.append(Tile(name="held", value=readable_amount(totals.held_cost), note=HELD))
    if totals.budget is not None:
        left = left_of(totals.budget, totals.cost, totals.held_cost)
        note = "left for further calls" if left >= 0 else "spent beyond it"
        value = f"{readable_amount(abs(left))} of {readable_amount(totals.budget)}"
        tiles.append(Tile(name="budget", value=value, note=note))
    failed = "see the errors below" if totals.failed_rows else "none were set aside"
    tiles.append(Tile(name="failed rows", value=f"{totals.failed_rows:,}", note=failed))
    tiles.append(_files(totals))
    tiles.append(_time(totals))
    if totals.waited_s is not None:
        tiles.append(_storage(totals))
    if totals.memory_bytes:
        value = readable_size(totals.memory_bytes)
        tiles.append(Tile(name="peak memory", value=value, note="the largest worker process"))
    return tiles


def _done(totals: Totals) -> Tile:
    known, good = totals.input_rows, totals.done_rows - totals.failed_rows
    if known is None:
        note = "the input was not measured"
    elif not known:
        note = "the input is empty"
    else:
        note = f"of {known:,} ({percent(good, known)})"
    return Tile(name="rows done", value=f"{good:,}", note=note)


def _kept(totals: Totals) -> list[Tile]:
    share = totals.kept_rows / max(1, totals.done_rows - totals.failed_rows)
    note = f"by resumes: {share:.0%} of what is done"
    saved = [Tile(name="rows kept", value=f"{totals.kept_rows:,}", note=note)]
    lost = f"; about {readable_time(totals.lost_seconds)} was lost"
    saved.append(
        Tile(
            name="time saved",
            value=readable_time(totals.kept_seconds),
            note=f"by resumes{lost if totals.lost_seconds else ''}",
        )
    )
    if totals.kept_cost:
        saved.append(
            Tile(
                name="cost saved",
                value=readable_amount(totals.kept_cost),
                note="by resumes: not paid twice",
            )
        )
    return saved


def _paid(totals: Totals) -> Tile:
    lost = f"{readable_amount(totals.lost_cost)} of it lost; " if totals.lost_cost else ""
    note = f"{lost}answered calls only, without those that failed or timed out"
    return Tile(name="paid", value=readable_amount(totals.cost), note=note)


def _files(totals: Totals) -> Tile:
    note = "none yet"
    if totals.files:
        mean = readable_size(totals.size_bytes // totals.files)
        note = f"{readable_size(totals.size_bytes)}, {mean} on average"
    note += f"; {totals.waiting_chunks:,} chunks wait" if totals.waiting_chunks else ""
    return Tile(name="files", value=f"{totals.files:,}", note=note)


def _time(totals: Totals) -> Tile:
    value = readable_time(totals.task_seconds)
    if totals.waited_s is None:
        return Tile(name="time on rows", value=value, note="of all tasks together")
    whole = totals.task_seconds + totals.waited_s
    share = totals.waited_s / whole if whole else 0.0
    note = f"{share:.0%} waited for storage ({readable_time(totals.waited_s)})"
    return Tile(name="time on rows", value=value, note=note)


def _storage(totals: Totals) -> Tile:
    return Tile(
        name="storage",
        value=readable_size(totals.bytes_written),
        note=f"written by tasks; {readable_size(totals.bytes_read)} read",
    )


def _lost_seconds(log: Sequence[Record]) -> float:
    seals = [record.body for record in log if isinstance(record.body, Seal)]
    return seals[-1].killed_seconds if seals else 0.0


# ---- Log lines: each record of a run log as a sentence

_LINES_MAX = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """One record of a run log."""

    number: int
    kind: str
    at: float
    words: str


def log_lines(log: Sequence[Record]) -> list[LogLine]:
    """Return the last records of a run log, in order; a longer log is cut at the beginning."""
    return [
        LogLine(
            number=record.number,
            kind=kind_of(record.body),
            at=unix_seconds(record.written_at),
            words=_short(record.body, words),
        )
        for record, words in list(zip(log, words_of_log(log), strict=True))[-_LINES_MAX:]
    ]


def _short(body: Body, words: str) -> str:
    """Leave out what the record's kind, shown next to it, already says."""
    if isinstance(body, Stop):
        return body.why
    if isinstance(body, Abort):
        return body.reason or "no reason was given"
    return words


# ---- Facts: all that a page says about a run, before anything is drawn or worded
@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known about a run."""

    head: Head
    totals: Totals
    starts: list[StartSummary]
    timeline: Timeline
    # None if nothing has been done yet.
    places: Places | None
    file_sizes: FileSizes | None
    hosts: list[Host]
    memory: list[HostMemory]
    failures: Failures
    log: list[LogLine]
    # How many records the log has: the list may be cut at the beginning.
    log_records: int
    # When the facts were collected, in Unix seconds.
    seen_at: float

    def to_json(self) -> dict[str, Any]:
        """Return the facts as plain JSON values."""
        return asdict(self)


def facts_of(seen: Observation, failures: Failures, now: float) -> Facts:
    """Return all facts of a run.

    Args:
        seen: The run.
        failures: Its failed rows, by error.
        now: Unix seconds.
    """
    work = seen.gathered.work
    summaries = summaries_of(seen.starts, work.records)
    axis = axis_of(summaries)
    return Facts(
        head=head_of(seen, summaries, now),
        totals=totals_of(seen, summaries),
        starts=summaries,
        timeline=timeline_of(seen.starts, summaries, axis, work.records, seen.log),
        places=places_of(work.records),
        file_sizes=file_sizes_of(work.groups),
        hosts=hosts_of(work.records),
        memory=memory_of(seen.starts, axis, work.records),
        failures=failures,
        log=log_lines(seen.log),
        log_records=len(seen.log),
        seen_at=now,
    )
