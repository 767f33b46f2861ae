"""The timeline of a page: what each start has added and how it ended, on one time axis."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from holdfast.model.history import Pass, Start, StartEnd, pass_reason, steps_of, unix_seconds
from holdfast.model.records import Claim, Intent, Pinned, Plan, Record, Refused, Renewal, Seal
from holdfast.model.work import TaskRecord


# ---- Starts: what each start of a run has added, and how it ended
@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One pass of a start."""

    claim: int
    # Empty as long as no job was planned.
    kind: str
    reason: str


@dataclass(slots=True, kw_only=True)
class StartSummary:
    """One start, with the part of its work that counts."""

    number: int
    host: str
    process_id: int
    code: str
    began_at: float
    # Its last sign of activity: a record of its driver, or of one of its tasks.
    last_at: float
    end: StartEnd
    reason: str
    message: str
    jobs: list[Job] = field(default_factory=list)
    # What earlier starts had done when it began.
    kept_rows: int = 0
    rows: int = 0
    failed_rows: int = 0
    seconds: float = 0.0
    waited_s: float = 0.0
    cost: float = 0.0
    # How many records it has written, and how many of them have a time.
    records: int = 0
    dated_records: int = 0

    @property
    def lasted_s(self) -> float:
        """How long it was seen at work."""
        return self.last_at - self.began_at

    def add(self, record: TaskRecord) -> None:
        """Count one record that was written under one of its claims."""
        self.records += 1
        self.rows += record.coverage.rows
        self.failed_rows += record.coverage.rows if record.quarantine is not None else 0
        self.seconds += record.seconds
        self.cost += record.cost
        self.waited_s += record.usage.waited_s
        self.dated_records += bool(record.usage.at)


def summaries_of(starts: Sequence[Start], records: Iterable[TaskRecord]) -> list[StartSummary]:
    """Return all starts, first one first.

    Args:
        starts: Driver starts, reconstructed from the run log.
        records: The task records that count.
    """
    summaries = [_begun(start) for start in starts]
    if not summaries:
        return []
    of = StartOf(starts)
    for record in records:
        summaries[of(record)].add(record)
    for earlier, summary in pairwise(summaries):
        summary.kept_rows = earlier.kept_rows + earlier.rows
    return summaries


class StartOf:
    """Finds the start that wrote a record: the last one whose first claim is not above it."""

    def __init__(self, starts: Sequence[Start]) -> None:
        """Keep the starts, first one first."""
        self._claims = [start.first_claim for start in starts]

    def __call__(self, record: TaskRecord) -> int:
        """Return the start's position in the list."""
        return max(0, bisect_right(self._claims, record.claim) - 1)


def moment(written_at: float, starts: Sequence[Start], at: int) -> float:
    """Return when a task wrote something, limited to the duration of its start.

    Tasks and drivers have separate clocks, which may differ.

    Args:
        written_at: The time by the task's clock; 0 if it is not known.
        starts: All starts.
        at: The position of the start that wrote it.
    """
    start = starts[at]
    if start.end in {"committed", "ready", "aborted", "stopped"}:
        latest = start.last_at
    else:
        latest = starts[at + 1].began_at if at + 1 < len(starts) else float("inf")
    return min(max(written_at, start.began_at), latest)


def _begun(start: Start) -> StartSummary:
    jobs = [
        Job(
            claim=run_pass.claim,
            kind=run_pass.plan.job if run_pass.plan else "",
            reason=pass_reason(start, run_pass) or _no_job(start, run_pass),
        )
        for run_pass in start.passes
    ]
    return StartSummary(
        number=start.number,
        host=start.host,
        process_id=start.process_id,
        code=start.code,
        began_at=start.began_at,
        last_at=start.last_at,
        end=start.end,
        reason=start.reason,
        message=start.message,
        jobs=jobs,
    )


def _no_job(start: Start, one: Pass) -> str:
    """Return why nothing was run under a claim."""
    if one is not start.passes[-1]:
        return "no job"
    if start.end in {"committed", "ready"}:
        return "no job: only the commit was left"
    return "ended before a job was planned" if start.end else "no job is planned yet"


# ---- The time axis of a page: all starts in one row, with long pauses between them cut out

Point = tuple[float, float]

# A job that dies at night is started again in the morning: drawn to scale, the work would be two
# thin lines. If pauses exceed the first fraction of the time at work, each is cut to the second, in
# which its length can be written, and all of them to the third.
_PAUSES_SHARE_MAX = 0.5
_CUT_SHARE = 0.12
_CUTS_SHARE = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """Converts times into positions on the axis, in seconds from its left end."""

    # For each start: when it began and ended, and where it begins on the axis.
    spans: Sequence[tuple[float, float, float]]
    # How much time is left out.
    cut_s: float = 0.0

    @property
    def length_s(self) -> float:
        """The position at which the last start ends."""
        return self.place(len(self.spans) - 1, self.spans[-1][1]) if self.spans else 0.0

    def place(self, start: int, at: float) -> float:
        """Return the position of a time on the axis.

        Args:
            start: The start's position in the list.
            at: Unix seconds.
        """
        began, ended, left = self.spans[start]
        return left + (min(max(at, began), ended) - began)


def axis_of(summaries: Sequence[StartSummary]) -> Axis:
    """Return an axis for all starts."""
    if not summaries:
        return Axis(spans=())
    pauses = [max(0.0, later.began_at - earlier.last_at) for earlier, later in pairwise(summaries)]
    working = sum(summary.lasted_s for summary in summaries)
    drawn = pauses
    if working and sum(pauses) > _PAUSES_SHARE_MAX * working:
        cut = min(_CUT_SHARE, _CUTS_SHARE / len(pauses)) * working
        drawn = [min(pause, cut) for pause in pauses]
    left, places = 0.0, []
    for summary, pause in zip(summaries, [*drawn, 0.0], strict=True):
        places.append((summary.began_at, summary.last_at, left))
        left += summary.lasted_s + pause
    return Axis(spans=places, cut_s=sum(pauses) - sum(drawn))


def thinned(points: Sequence[Point], most: int) -> list[Point]:
    """Return at most this many points of a growing line, and the ends of all its long flat parts.

    Args:
        points: The points, from left to right.
        most: How many points the plot can show.
    """
    if len(points) <= most:
        return list(points)
    left, parts = points[0][0], most // 2
    width = (points[-1][0] - left) / parts or 1.0
    # The first and the last point of each of the axis's equal parts.
    ends: dict[int, tuple[Point, Point]] = {}
    for point in points:
        part = min(parts - 1, int((point[0] - left) / width))
        ends[part] = (ends[part][0] if part in ends else point, point)
    return [point for pair in ends.values() for point in dict.fromkeys(pair)]


def highest(points: Iterable[Point], length: float, most: int) -> list[Point]:
    """Return the highest point in each of the axis's equal parts.

    Args:
        points: The points, in any order.
        length: The length of the axis.
        most: How many parts it has.
    """
    width = length / most or 1.0
    found: dict[int, Point] = {}
    for point in points:
        part = min(most - 1, int(point[0] / width))
        if part not in found or point[1] > found[part][1]:
            found[part] = point
    return [found[part] for part in sorted(found)]


# ---- Timeline: how many rows were done when, and how much memory workers used

_POINTS_MAX = 400
_MEMORY_PARTS = 120
_HOSTS_MAX = 6

# The source of the times: each task record, or only the seals of the run log.
Source = Literal["tasks", "seals"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndMark:
    """Where a start ended on the axis."""

    start: int
    place_s: float
    end: StartEnd


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Rows that count now, by the time they became durable."""

    source: Source
    points: list[Point]
    ends: list[EndMark]
    length_s: float
    # The time between starts that is not drawn.
    cut_s: float
    # Where the last start begins.
    last_s: float
    # Where no row became durable, and why.
    flats: list[Flat]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """The most memory that a worker of one host has used, over time."""

    host: str
    peak_bytes: int
    # One line for each start, because its workers are new processes.
    lines: list[list[Point]]


def timeline_of(
    starts: Sequence[Start],
    summaries: Sequence[StartSummary],
    axis: Axis,
    records: Sequence[TaskRecord],
    log: Sequence[Record],
) -> Timeline:
    """Return the rows that are done, over time.

    Args:
        starts: Driver starts, reconstructed from the run log.
        summaries: The same starts, with what their tasks have added.
        axis: The axis to place times on.
        records: The task records that count.
        log: The run log: the only source of times if records have none.
    """
    of = StartOf(starts) if starts else None
    with_rows = [record for record in records if record.coverage.rows]
    source: Source = "tasks" if all(record.usage.at for record in with_rows) else "seals"
    steps: list[tuple[int, float, int]] = []
    if of is not None and source == "tasks":
        steps = [
            (at, moment(written_at, starts, at), rows)
            for record in with_rows
            for at in (of(record),)
            for written_at, rows in steps_of(record)
        ]
    elif starts:
        steps = _sealed(starts, log)
    is_known = bool(steps) or not with_rows
    exact = [(at, when) for at, when, _ in steps] if source == "tasks" else None
    return Timeline(
        source=source,
        # If no times are known, draw no points instead of a line at zero.
        points=thinned(_grown(summaries, axis, steps), _POINTS_MAX) if is_known else [],
        ends=[
            EndMark(start=summary.number, place_s=axis.place(at, summary.last_at), end=summary.end)
            for at, summary in enumerate(summaries)
            if summary.end
        ],
        length_s=axis.length_s,
        cut_s=axis.cut_s,
        last_s=axis.spans[-1][2] if axis.spans else 0.0,
        flats=flats_of(starts, axis.place, log, exact) if is_known else [],
    )


def memory_of(
    starts: Sequence[Start], axis: Axis, records: Iterable[TaskRecord]
) -> list[HostMemory]:
    """Return how much memory each host's workers used, most first.

    Args:
        starts: Driver starts, reconstructed from the run log.
        axis: The axis to place times on.
        records: The task records that count.
    """
    if not starts:
        return []
    of = StartOf(starts)
    found: dict[str, dict[int, list[Point]]] = {}
    for record in records:
        if record.usage.at and record.usage.memory_bytes:
            at = of(record)
            place = axis.place(at, moment(record.usage.at, starts, at))
            lines = found.setdefault(record.usage.host, {})
            lines.setdefault(at, []).append((place, record.usage.memory_bytes))
    hosts = [
        HostMemory(
            host=host,
            peak_bytes=int(max(size for points in lines.values() for _, size in points)),
            lines=[highest(lines[at], axis.length_s, _MEMORY_PARTS) for at in sorted(lines)],
        )
        for host, lines in found.items()
    ]
    return sorted(hosts, key=lambda memory: (-memory.peak_bytes, memory.host))[:_HOSTS_MAX]


def _grown(
    summaries: Sequence[StartSummary], axis: Axis, steps: Iterable[tuple[int, float, int]]
) -> list[Point]:
    """Sum up the steps, and draw each start from its first to its last activity."""
    of_start: dict[int, list[tuple[float, int]]] = {}
    for at, when, rows in steps:
        of_start.setdefault(at, []).append((when, rows))
    points, done = [], 0
    for at, summary in enumerate(summaries):
        points.append((axis.place(at, summary.began_at), float(done)))
        for when, rows in sorted(of_start.get(at, ())):
            # A step, not a slope: until a record is written its rows can be lost.
            place = axis.place(at, when)
            points += [(place, float(done)), (place, float(done + rows))]
            done += rows
        points.append((axis.place(at, summary.last_at), float(done)))
    return points


def _sealed(starts: Sequence[Start], log: Iterable[Record]) -> list[tuple[int, float, int]]:
    """Return what each seal has added."""
    steps, before = [], 0
    for record in log:
        if not isinstance(record.body, Seal):
            continue
        when = unix_seconds(record.written_at)
        at = max((n for n, start in enumerate(starts) if start.began_at <= when), default=0)
        steps.append((at, when, record.body.covered.rows - before))
        before = record.body.covered.rows
    return steps


# ---- Flat stretches of a run's progress, in which no row became durable, and why

# "stopped": no start was at work. "input": before a job was planned, the input is read and counted.
# "first rows": a job runs, and none of its tasks has made rows durable. "files": rows that are done
# are put into table files. "commit": all rows are in table files.
Reason = Literal["stopped", "input", "first rows", "files", "commit"]

# Shorter ones within a start are not seen in a plot.
_SHARE_MIN = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Flat:
    """A stretch of the time axis in which no row became durable."""

    reason: Reason
    from_s: float
    to_s: float
    # Its real length, also if it is cut on the axis.
    lasted_s: float


def flats_of(
    starts: Sequence[Start],
    place: Callable[[int, float], float],
    log: Iterable[Record],
    steps: Iterable[tuple[int, float]] | None,
) -> list[Flat]:
    """Return the flat stretches whose reason is known, from left to right.

    Args:
        starts: Driver starts, reconstructed from the run log.
        place: Returns the position of a time of a start on the axis.
        log: The run log.
        steps: The start and the time of each step of the progress; None if times are not exact.
    """
    if not starts:
        return []
    records: dict[int, list[Record]] = {}
    claims = [start.first_claim for start in starts]
    for record in log:
        records.setdefault(bisect_right(claims, record.number) - 1, []).append(record)
    times: dict[int, list[float]] = {}
    for at, when in steps or ():
        times.setdefault(at, []).append(when)
    whole_s = place(len(starts) - 1, starts[-1].last_at)
    found = []
    for at, start in enumerate(starts):
        seen = None if steps is None else sorted(times.get(at, ()))
        inner = _merged(_within(start, records.get(at, ()), seen))
        found += [
            Flat(reason=reason, from_s=place(at, since), to_s=place(at, until), lasted_s=lasted)
            for reason, since, until in inner
            if (lasted := until - since) >= _SHARE_MIN * whole_s and lasted > 0
        ]
    for at, (earlier, later) in enumerate(pairwise(starts)):
        lasted = later.began_at - earlier.last_at
        if lasted > 0:
            left, right = place(at, earlier.last_at), place(at + 1, later.began_at)
            found.append(Flat(reason="stopped", from_s=left, to_s=right, lasted_s=lasted))
    return sorted(found, key=lambda flat: flat.from_s)


def _within(
    start: Start, records: Iterable[Record], times: Sequence[float] | None
) -> Iterator[tuple[Reason, float, float]]:
    """Yield what a start did between two records of its log, as far as that adds no rows."""
    events = [(_phase(record), unix_seconds(record.written_at)) for record in records]
    for (phase, since), (_, until) in pairwise([*events, (None, start.last_at)]):
        if phase == "first rows":
            if times is not None:
                first = bisect_left(times, since)
                yield phase, since, min(until, times[first] if first < len(times) else until)
        elif phase is not None:
            yield phase, since, until


def _phase(record: Record) -> Reason | None:
    """Return what follows a record."""
    body = record.body
    if isinstance(body, Plan):
        return "files" if body.job == "replay" else "first rows"
    if isinstance(body, Intent | Refused | Renewal) or (isinstance(body, Seal) and body.complete):
        return "commit"
    # A start that resumes seals what it has found, then looks at the input.
    return "input" if isinstance(body, Claim | Pinned | Seal) else None


def _merged(
    stretches: Iterable[tuple[Reason, float, float]],
) -> list[tuple[Reason, float, float]]:
    found: list[tuple[Reason, float, float]] = []
    for reason, since, until in stretches:
        if found and found[-1][0] == reason and found[-1][2] == since:
            found[-1] = (reason, found[-1][1], until)
        else:
            found.append((reason, since, until))
    return found
