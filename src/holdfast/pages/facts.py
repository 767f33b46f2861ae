"""Facts: all that a page says of a run, before anything is drawn or worded."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from holdfast.engine.watch import Observation
from holdfast.pages.axis import axis_of
from holdfast.pages.failures import Failures
from holdfast.pages.head import Head, head_of
from holdfast.pages.hosts import Host, hosts_of
from holdfast.pages.lives import Life, lives_of
from holdfast.pages.log_lines import LogLine, log_lines
from holdfast.pages.spread import FileSizes, Places, file_sizes_of, places_of
from holdfast.pages.timeline import HostMemory, Timeline, memory_of, timeline_of
from holdfast.pages.totals import Totals, totals_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of a run."""

    head: Head
    totals: Totals
    starts: list[Life]
    timeline: Timeline
    # None where nothing was done yet.
    places: Places | None
    file_sizes: FileSizes | None
    hosts: list[Host]
    memory: list[HostMemory]
    failures: Failures
    log: list[LogLine]
    # How many records the log has: the list may be cut at its beginning.
    log_records: int
    # When all this was so, in Unix seconds.
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
    lives = lives_of(seen.starts, work.records)
    axis = axis_of(lives)
    return Facts(
        head=head_of(seen, lives, now),
        totals=totals_of(seen, lives),
        starts=lives,
        timeline=timeline_of(seen.starts, lives, axis, work.records, seen.log),
        places=places_of(work.records),
        file_sizes=file_sizes_of(work.groups),
        hosts=hosts_of(work.records),
        memory=memory_of(seen.starts, axis, work.records),
        failures=failures,
        log=log_lines(seen.log),
        log_records=len(seen.log),
        seen_at=now,
    )
