"""Totals: the figures of a run as a whole, and how a page words them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.engine.watch import Observation
from holdfast.model.records import Record, Seal
from holdfast.model.report import readable_size, readable_time
from holdfast.pages.lives import Life


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """What all starts have done together, as far as it counts."""

    done_rows: int
    # None where the input was not measured.
    input_rows: int | None
    failed_rows: int
    # What the last start found done: rows, how long tasks had worked on them, what they had cost.
    kept_rows: int
    kept_seconds: float
    kept_cost: float
    cost: float
    # About how long tasks had worked when they were killed, after their last record.
    lost_seconds: float
    files: int
    size_bytes: int
    waiting_chunks: int
    task_seconds: float
    # None where no record says: ledgers of earlier versions.
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


def totals_of(seen: Observation, lives: Sequence[Life]) -> Totals:
    """Add up what all starts have done.

    Args:
        seen: The run.
        lives: Its starts.
    """
    progress, records = seen.progress, seen.gathered.work.records
    dated = [one.usage for one in records if one.usage.at]
    return Totals(
        done_rows=progress.done_rows,
        input_rows=progress.input_rows,
        failed_rows=progress.quarantined_rows,
        kept_rows=progress.kept_rows,
        kept_seconds=progress.kept_seconds,
        kept_cost=progress.kept_cost,
        cost=progress.cost,
        lost_seconds=_lost_seconds(seen.log),
        files=progress.files,
        size_bytes=progress.size_bytes,
        waiting_chunks=progress.waiting_chunks,
        task_seconds=sum(life.seconds for life in lives),
        waited_s=sum(one.waited_s for one in dated) if dated else None,
        bytes_read=sum(one.bytes_read for one in dated),
        bytes_written=sum(one.bytes_written for one in dated),
        memory_bytes=max((one.memory_bytes for one in dated), default=0),
    )


def tiles_of(totals: Totals) -> list[Tile]:
    """Word the figures; those that a run does not have are left out."""
    tiles = [_done(totals)]
    if totals.kept_rows:
        tiles += _kept(totals)
    if totals.cost:
        tiles.append(Tile(name="cost", value=f"{totals.cost:,.6g}", note="of rows that count"))
    failed = "see the errors below" if totals.failed_rows else "none was set aside"
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
    known = totals.input_rows
    if known is None:
        note = "the input was not measured"
    elif not known:
        note = "the input is empty"
    else:
        note = f"of {known:,} ({totals.done_rows / known:.0%})"
    return Tile(name="rows done", value=f"{totals.done_rows:,}", note=note)


def _kept(totals: Totals) -> list[Tile]:
    share = totals.kept_rows / max(1, totals.done_rows)
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
                value=f"{totals.kept_cost:,.6g}",
                note="by resumes: not paid twice",
            )
        )
    return saved


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
