"""Starts: the lives of a run's drivers, as the run log tells them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from holdfast.model.records import Abort, Body, Claim, Plan, Receipt, Record, Stop

# "": it is the last one, and nobody has said how it ended: it may be at work. "gone": another
# start came after it, and it had said nothing: killed, or taken over.
StartEnd = Literal["", "committed", "stopped", "aborted", "gone"]


@dataclass(slots=True, kw_only=True)
class Pass:
    """One claim of a start, and the job that was run under it."""

    claim: int
    # Unix seconds, by the driver's clock.
    began_at: float
    # None as long as no job was planned under the claim.
    plan: Plan | None = None


@dataclass(slots=True, kw_only=True)
class Start:
    """One driver's life, from its first claim on."""

    number: int
    host: str
    process_id: int
    machine: str
    code: str
    checkpoint_every_s: float | None
    began_at: float
    last_at: float
    passes: list[Pass] = field(default_factory=list)
    end: StartEnd = ""
    # The name of the error or signal that a driver has left behind.
    reason: str = ""
    # What that error says has happened.
    message: str = ""

    @property
    def why(self) -> str:
        """The reason and what it says, for people."""
        return f"{self.reason}: {self.message}" if self.message else self.reason

    @property
    def first_claim(self) -> int:
        """The number of its first claim."""
        return self.passes[0].claim

    @property
    def jobs(self) -> list[Pass]:
        """The passes under which a job was run."""
        return [one for one in self.passes if one.plan is not None]


def unix_seconds(written_at: str) -> float:
    """Return the moment that a record names."""
    return datetime.fromisoformat(written_at).timestamp()


def starts_of(records: Iterable[Record]) -> list[Start]:
    """Return all starts of a run, the first one first.

    A process that claims again without having stopped goes on with its next pass. A receipt may be
    written by whoever finds the mark, so it ends the last start.
    """
    starts: list[Start] = []
    for record in records:
        at, body = unix_seconds(record.written_at), record.body
        if isinstance(body, Claim):
            _claim(starts, body, record.number, at)
        elif starts:
            _go_on(starts[-1], body, at)
    return starts


def _claim(starts: list[Start], claim: Claim, number: int, at: float) -> None:
    last = starts[-1] if starts else None
    if last is None or last.end or not _is_same(last, claim):
        if last is not None and not last.end:
            last.end = "gone"
        last = _begun(len(starts) + 1, claim, at)
        starts.append(last)
    last.passes.append(Pass(claim=number, began_at=at))
    last.last_at = at


def _go_on(start: Start, body: Body, at: float) -> None:
    start.last_at = at
    if isinstance(body, Plan):
        start.passes[-1].plan = body
    elif isinstance(body, Stop):
        start.end, start.reason, start.message = "stopped", body.reason, body.message
    elif isinstance(body, Abort):
        start.end, start.reason, start.message = "aborted", body.reason, ""
    elif isinstance(body, Receipt):
        start.end, start.reason, start.message = "committed", "", ""


def _is_same(start: Start, claim: Claim) -> bool:
    return (start.host, start.process_id, start.machine) == (
        claim.host,
        claim.process_id,
        claim.machine,
    )


def _begun(number: int, claim: Claim, at: float) -> Start:
    return Start(
        number=number,
        host=claim.host,
        process_id=claim.process_id,
        machine=claim.machine,
        code=claim.code,
        checkpoint_every_s=claim.checkpoint_every_s,
        began_at=at,
        last_at=at,
    )
