"""The records of a run log in words."""

from __future__ import annotations

from collections.abc import Iterable
from functools import singledispatch

from holdfast.model.records import (
    Abort,
    Body,
    Claim,
    Intent,
    Pinned,
    Plan,
    Receipt,
    Record,
    Refused,
    Renewal,
    Seal,
    Stop,
)
from holdfast.model.report import counted, readable_size, readable_time


def words_of_log(records: Iterable[Record]) -> list[str]:
    """Say what each record of a log says; a driver that claims again begins its next pass."""
    found, last = [], None
    for record in records:
        body = record.body
        if isinstance(body, Claim) and last == _process(body):
            found.append("the same driver begins its next pass; tasks of the last one end")
        else:
            found.append(words_of(body))
        if isinstance(body, Claim):
            last = _process(body)
        elif isinstance(body, Stop):
            last = None
    return found


def _process(claim: Claim) -> tuple[str, int, str]:
    return claim.host, claim.process_id, claim.machine


@singledispatch
def words_of(body: Body) -> str:
    """Say what a record says.

    Raises:
        TypeError: It is of a kind that nobody knows.
    """
    raise TypeError(f"no words for {type(body).__name__}")


@words_of.register
def _(body: Claim) -> str:
    every = body.checkpoint_every_s
    checkpoints = f"a checkpoint each {readable_time(every)}" if every else "no checkpoints"
    return (
        f"process {body.process_id} on {body.host} takes the run "
        f"(holdfast {body.holdfast_version}, code {body.code[:8] or 'unknown'}, {checkpoints})"
    )


@words_of.register
def _(body: Plan) -> str:
    if body.job == "replay":
        return f"a job puts {counted(body.chunks, 'chunk')} of ended tasks into table files"
    if body.remaining_rows is None:
        return "a job does all rows that are not done; how many is not known"
    if body.input is None:
        return f"a job does {body.remaining_rows:,} rows"
    compared = "; values were compared too" if body.input.has_row_sums else ""
    return f"a job does {body.remaining_rows:,} of {body.input.rows:,} rows{compared}"


@words_of.register
def _(body: Seal) -> str:
    found = [f"{counted(body.covered.rows, 'row')} count, of claims up to {body.through_claim}"]
    counts = (
        (body.waiting_chunks, "chunks wait to be put into files"),
        (body.quarantined_rows, "of the rows have failed"),
        (body.dropped_rows, "rows left out, as they were covered twice"),
        (body.withdrawn_rows, "rows left out, as their files were removed"),
    )
    found += [f"{number:,} {what}" for number, what in counts if number]
    if body.complete:
        found.append("nothing is missing, and all of it is in table files")
    return "; ".join(found)


@words_of.register
def _(body: Renewal) -> str:
    return f"files of {counted(body.work.records, 'record')} waited long and get new names"


@words_of.register
def _(body: Stop) -> str:
    return f"the driver gives this start up: {body.why}"


@words_of.register
def _(body: Intent) -> str:
    return (
        f"about to post {counted(body.rows, 'row')} in {counted(body.files, 'file')} "
        f"({readable_size(body.size_bytes)}) to {body.branch} as snapshot {body.snapshot_id}"
    )


@words_of.register
def _(body: Refused) -> str:
    return f"the post of record {body.intent_number} was refused, and cannot land any more"


@words_of.register
def _(body: Receipt) -> str:
    return (
        f"landed: the post of record {body.intent_number} is snapshot {body.snapshot_id}, with "
        f"{counted(body.rows, 'row')} in {counted(body.files, 'file')}"
    )


@words_of.register
def _(body: Abort) -> str:
    gone = "; the user says that the table is gone" if body.table_is_gone else ""
    return f"given up for good: {body.reason or 'no reason given'}{gone}"


@words_of.register
def _(body: Pinned) -> str:
    files = counted(body.pins.records, "file")
    return f"the input is settled: {counted(body.rows, 'row')} in {files}, for the whole run"
