"""Log lines: what each record of a run log says, in a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.model.records import Abort, Body, Record, Stop, kind_of
from holdfast.model.starts import unix_seconds
from holdfast.pages.log_words import words_of_log

_LINES_MAX = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """One record of a run log."""

    number: int
    kind: str
    at: float
    words: str


def log_lines(log: Sequence[Record]) -> list[LogLine]:
    """Return the last records of a run log, in order; a longer log is cut at its beginning."""
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
    """Leave out what the kind beside it says already."""
    if isinstance(body, Stop):
        return body.why
    if isinstance(body, Abort):
        return body.reason or "no reason was given"
    return words
