"""Head: where a run stands, in a word, and what to do next, in a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from holdfast.engine.takeover import silent_after_s
from holdfast.engine.watch import Observation
from holdfast.pages.lives import Life
from holdfast.pages.next_step import after_abort

# What a colour says: all is well, at work, somebody should act, given up, nothing to see.
Tone = Literal["good", "busy", "act", "ended", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What a person reads first."""

    run_id: str
    # "" before the first start has said which.
    table: str
    mode: str
    word: str
    tone: Tone
    next_step: str
    began_at: float | None
    # None while it may be at work.
    ended_at: float | None
    # The last sign of life.
    last_at: float | None
    starts: int
    snapshot_id: int | None


def head_of(seen: Observation, lives: Sequence[Life], now: float) -> Head:
    """Return the head of a page.

    Args:
        seen: The run.
        lives: Its starts.
        now: Unix seconds.
    """
    last = lives[-1] if lives else None
    word, tone, next_step = _standing(seen, last, now)
    identity = seen.identity
    has_ended = last is not None and bool(last.end)
    return Head(
        run_id=seen.progress.run_id,
        table=identity.table if identity else "",
        mode=identity.mode if identity else "",
        word=word,
        tone=tone,
        next_step=next_step,
        began_at=lives[0].began_at if lives else None,
        ended_at=last.last_at if last is not None and has_ended else None,
        last_at=last.last_at if last else None,
        starts=len(lives),
        snapshot_id=seen.receipt.snapshot_id if seen.receipt else None,
    )


def _standing(seen: Observation, last: Life | None, now: float) -> tuple[str, Tone, str]:
    """Return the word, its colour, and what to do next."""
    state, failed = seen.progress.state, seen.progress.quarantined_rows
    if state == "committed":
        return "committed", "good", _after_commit(failed)
    if state == "aborted":
        advice = after_abort(seen).advice
        return "aborted", "ended", f"The run was given up for good: {advice}."
    if last is None:
        return "new", "none", "No start has claimed this run yet: start the job."
    if state == "stopped":
        reason = f" with {last.reason}" if last.reason else ""
        said = f" ({last.message})" if last.message else ""
        again = _start_again(seen.progress.done_rows)
        return "stopped", "act", f"The last start ended{reason}{said}: mend what it names. {again}"
    if _may_be_alive(seen, last, now):
        return "running", "busy", "Nothing to do: look again later, or use holdfast watch."
    return _silent(seen)


def _silent(seen: Observation) -> tuple[str, Tone, str]:
    if seen.progress.state == "staged":
        return "staged", "act", "Start the same script again: only the commit is missing."
    again = _start_again(seen.progress.done_rows)
    return "silent", "act", f"The last start has gone silent, and was probably killed. {again}"


def _after_commit(failed: int) -> str:
    if failed:
        return (
            f"All other rows are in the table; {failed:,} failed rows are set aside: "
            "look at run.quarantined(), mend the transform, and call run.retry_quarantined()."
        )
    return "Nothing to do: the rows are in the table. holdfast sweep deletes what is left over."


def _start_again(done: int) -> str:
    if not done:
        return "Start the same script again."
    return f"Start the same script again: {done:,} rows are kept, and not computed again."


def _may_be_alive(seen: Observation, last: Life, now: float) -> bool:
    heard_at = max(last.last_at, seen.beat_at or 0.0)
    return now - heard_at < silent_after_s(seen.starts[-1].checkpoint_every_s)
