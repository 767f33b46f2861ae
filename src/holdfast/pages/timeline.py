"""Timeline: how many rows were done when, and what workers held then."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from holdfast.model.records import Record, Seal
from holdfast.model.starts import Start, StartEnd, unix_seconds
from holdfast.model.work import TaskRecord
from holdfast.pages.axis import Axis, Point, highest, thinned
from holdfast.pages.lives import Life, StartOf, moment

_POINTS_MAX = 400
_MEMORY_PARTS = 120
_HOSTS_MAX = 6

# Where the times are from: each task record, or only the seals of the run log.
Source = Literal["tasks", "seals"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndMark:
    """Where a start ended on the axis."""

    start: int
    place_s: float
    end: StartEnd


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Rows that count now, by when they became durable."""

    source: Source
    points: list[Point]
    ends: list[EndMark]
    length_s: float
    # The time between starts that is not drawn.
    cut_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """The most that a worker of one host had held, over time."""

    host: str
    peak_bytes: int
    # A line for each start: its workers are new processes.
    lines: list[list[Point]]


def timeline_of(
    starts: Sequence[Start],
    lives: Sequence[Life],
    axis: Axis,
    records: Sequence[TaskRecord],
    log: Iterable[Record],
) -> Timeline:
    """Return the rows that are done, over time.

    Args:
        starts: As the run log tells them.
        lives: The same starts, with what their tasks have added.
        axis: Where moments stand.
        records: The task records that count.
        log: The run log: all that there is where records do not say when they were written.
    """
    of = StartOf(starts) if starts else None
    with_rows = [one for one in records if one.coverage.rows]
    source: Source = "tasks" if all(one.usage.at for one in with_rows) else "seals"
    steps: list[tuple[int, float, int]] = []
    if of is not None and source == "tasks":
        steps = [
            (at, moment(one, starts, at), one.coverage.rows)
            for one in with_rows
            for at in (of(one),)
        ]
    elif starts:
        steps = _sealed(starts, log)
    is_known = bool(steps) or not with_rows
    return Timeline(
        source=source,
        # Rows without any time are not drawn as if there were none.
        points=thinned(_grown(lives, axis, steps), _POINTS_MAX) if is_known else [],
        ends=[
            EndMark(start=life.number, place_s=axis.place(at, life.last_at), end=life.end)
            for at, life in enumerate(lives)
            if life.end
        ],
        length_s=axis.length_s,
        cut_s=axis.cut_s,
    )


def memory_of(
    starts: Sequence[Start], axis: Axis, records: Iterable[TaskRecord]
) -> list[HostMemory]:
    """Return what the workers of each host had held, the hungriest host first.

    Args:
        starts: As the run log tells them.
        axis: Where moments stand.
        records: The task records that count.
    """
    if not starts:
        return []
    of = StartOf(starts)
    found: dict[str, dict[int, list[Point]]] = {}
    for one in records:
        if one.usage.at and one.usage.memory_bytes:
            at = of(one)
            place = axis.place(at, moment(one, starts, at))
            lines = found.setdefault(one.usage.host, {})
            lines.setdefault(at, []).append((place, one.usage.memory_bytes))
    hosts = [
        HostMemory(
            host=host,
            peak_bytes=int(max(size for points in lines.values() for _, size in points)),
            lines=[highest(lines[at], axis.length_s, _MEMORY_PARTS) for at in sorted(lines)],
        )
        for host, lines in found.items()
    ]
    return sorted(hosts, key=lambda one: (-one.peak_bytes, one.host))[:_HOSTS_MAX]


def _grown(
    lives: Sequence[Life], axis: Axis, steps: Iterable[tuple[int, float, int]]
) -> list[Point]:
    """Add steps up, and draw each start from its first to its last sign of life."""
    of_life: dict[int, list[tuple[float, int]]] = {}
    for at, when, rows in steps:
        of_life.setdefault(at, []).append((when, rows))
    points, done = [], 0
    for at, life in enumerate(lives):
        points.append((axis.place(at, life.began_at), float(done)))
        for when, rows in sorted(of_life.get(at, ())):
            # A step, not a slope: until a record is written its rows can be lost.
            place = axis.place(at, when)
            points += [(place, float(done)), (place, float(done + rows))]
            done += rows
        points.append((axis.place(at, life.last_at), float(done)))
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
