"""Flat stretches of a run's progress, in which no row became durable, with the reason for each."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from holdfast.model.history import Start, unix_seconds
from holdfast.model.records import Claim, Intent, Pinned, Plan, Record, Refused, Renewal, Seal

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
