"""A run in words: its log record by record, what a start would do next, and advice for the user."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import singledispatch
from typing import Literal

from holdfast.engine.takeover import quiet_after_s, silent_after_s
from holdfast.engine.watch import Observation
from holdfast.errors import BudgetReachedError
from holdfast.ledger.ledger import Ports
from holdfast.model.history import Progress
from holdfast.model.records import (
    Abort,
    Base,
    Body,
    Claim,
    Indexed,
    Intent,
    Merged,
    Pinned,
    Plan,
    Ready,
    Receipt,
    Record,
    Refused,
    Renewal,
    Rewritten,
    Seal,
    Stop,
    doubtful_intents,
)
from holdfast.model.report import counted, readable_size, readable_time, replaced_by
from holdfast.text import age, command

# ---- What the next start of a run would do, and what the user should do

_GO_ON = "run the same script again, with the same run id"
_COMMIT_IT = (
    "look at the rows with run.staged_rows(), then call run.commit(), in another process with to= "
    "and the write's mode=; or abort the run: nothing is in the table yet"
)
_OVER_BUDGET = BudgetReachedError.__name__


@dataclass(frozen=True, slots=True, kw_only=True)
class NextStep:
    """What comes next, for people."""

    # One line: what to do.
    advice: str
    # What a start would do, step by step, each with its reason.
    start_would: tuple[str, ...]


def next_step(seen: Observation, ports: Ports) -> NextStep:
    """Say what comes next.

    Args:
        seen: What the ledger shows.
        ports: The time, and which processes run on this machine.
    """
    run_id, state = seen.progress.run_id, seen.progress.state
    if state == "committed":
        return NextStep(
            advice=f"nothing is left to do; {command('sweep', run_id)} shows what can be deleted",
            start_would=(
                "compare the input with the one that landed, as the run is already in the table",
                "write nothing, and return the receipt",
            ),
        )
    if state == "aborted":
        return after_abort(seen)
    steps = _steps(seen)
    if state == "ready":
        return NextStep(advice=_COMMIT_IT, start_would=steps)
    if (alive := driver_alive(seen, ports)) is not None:
        waits = f"wait, as {alive}; resume when it has ended"
        return NextStep(
            advice=f"let it finish: {alive}. {command('watch', run_id)} shows it",
            start_would=(waits, *steps),
        )
    return NextStep(advice=_advice(seen, ports), start_would=steps)


def after_abort(seen: Observation) -> NextStep:
    """Say what comes after an abort; starting over must not write rows twice.

    Args:
        seen: What the ledger shows of an aborted run.
    """
    run_id = seen.progress.run_id
    refuses = "refuse, as the run was aborted, which is final"
    bodies = (record.body for record in seen.log)
    abort = next((body for body in bodies if isinstance(body, Abort)), None)
    if doubtful_intents(seen.log) and not (abort and abort.table_is_gone):
        return NextStep(
            advice=f"run {command('abort', run_id)} again before you start over: a post was "
            "under way, and the table may now show whether it has landed",
            start_would=("look at the table, and report it if the run has landed", refuses),
        )
    return NextStep(
        advice="use a new run id to do the work after all; "
        f"{command('sweep', run_id)} shows what can be deleted",
        start_would=(refuses,),
    )


def driver_alive(seen: Observation, ports: Ports) -> str | None:
    """Say why the last driver may still be running; None if it has ended, or seems to have."""
    start = seen.starts[-1] if seen.starts else None
    if start is None or start.end:
        return None
    who = f"process {start.process_id} on {start.host}"
    quiet_s = ports.now() - max(seen.progress.last_at, seen.beat_at or 0.0)
    if start.machine and start.machine == ports.machine:
        return f"{who} is running" if ports.is_running(start.process_id) else None
    if quiet_s >= quiet_after_s(start.checkpoint_every_s):
        return None
    return f"{who} gave a sign of life {age(quiet_s)}"


def _advice(seen: Observation, ports: Ports) -> str:
    start = seen.starts[-1] if seen.starts else None
    if start is None:
        return "start the job: nothing is done yet"
    if start.end == "stopped":
        if _is_signal(start.reason):
            return _GO_ON
        if start.reason == _OVER_BUDGET:
            return f"{_GO_ON} and a higher budget="
        return f"fix what ended the last start ({start.reason}), then {_GO_ON}"
    is_ours = bool(start.machine) and start.machine == ports.machine
    why = "its process is gone" if is_ours else "its driver has written nothing for a long time"
    return f"{_GO_ON}: {why}"


def _steps(seen: Observation) -> tuple[str, ...]:
    """Say what a start that has the run to itself would do, and why."""
    progress, steps = seen.progress, []
    posts = list(doubtful_intents(seen.log))
    if posts:
        steps.append(
            "look at the table first, as it is unknown whether the post of record "
            f"{posts[-1]} has landed; if it has, write the receipt and end"
        )
    seals = [record.body for record in seen.log if isinstance(record.body, Seal)]
    if not seals or not seals[-1].complete:
        steps += _work_left(seen)
    if progress.quarantined_rows:
        failed = counted(progress.quarantined_rows, "failed row")
        steps.append(f"retry {failed}, if code or limits have changed")
    steps.append("post one commit with all rows, as all are in table files by then")
    return tuple(steps)


def _work_left(seen: Observation) -> list[str]:
    progress, found = seen.progress, []
    left = progress.remaining_rows
    if progress.good_rows:
        found.append(f"keep {counted(progress.good_rows, 'row')}, as records cover them")
    if left is None:
        found.append("process all rows that no record covers; their number is unknown")
    elif left:
        found.append(f"process {counted(left, 'row')}, as no record covers them")
    if chunks := progress.waiting_chunks:
        noun = counted(chunks, "chunk")
        found.append(f"put {noun} into table files, as only the ledger holds these rows")
    return found


# ---- The state of a run, as a short label and a sentence

# What a colour means: all is well, running, the user should act, aborted, nothing yet.
Tone = Literal["good", "busy", "act", "ended", "none"]


def standing_of(seen: Observation, heard_at: float, now: float) -> tuple[str, Tone, str]:
    """Return the state of a run: a label, its colour, and a sentence on what to do next.

    Args:
        seen: What the ledger shows.
        heard_at: When its driver or one of its tasks last wrote, in Unix seconds.
        now: Unix seconds.
    """
    state, failed = seen.progress.state, seen.progress.quarantined_rows
    last = seen.starts[-1] if seen.starts else None
    if state == "committed":
        return "committed", "good", _after_commit(seen.progress.run_id, failed)
    if state == "aborted":
        advice = after_abort(seen).advice
        return "aborted", "ended", f"The run was aborted for good: {advice}."
    if last is None:
        return "new", "none", "No start has claimed this run yet: start the job."
    if state == "stopped":
        reason = f" with {last.reason}" if last.reason else ""
        said = f" ({last.message})" if last.message else ""
        fix = "" if _is_signal(last.reason) else ": fix the cause"
        if last.reason == _OVER_BUDGET:
            fix = ": give it a higher budget="
        again = _start_again(seen.progress.good_rows)
        return "stopped", "act", f"The last start ended{reason}{said}{fix}. {again}"
    if state != "ready" and _may_be_alive(seen, heard_at, now):
        return "running", "busy", "Nothing to do: look again later, or use holdfast watch."
    return _waiting(seen)


def _waiting(seen: Observation) -> tuple[str, Tone, str]:
    if seen.progress.state == "ready":
        return "ready", "act", f"Everything is staged and checked: {_COMMIT_IT}."
    if seen.progress.state == "staged":
        return "staged", "act", "Start the same script again: only the commit is missing."
    again = _start_again(seen.progress.good_rows)
    return "silent", "act", f"The last start has gone silent, and was probably killed. {again}"


def _after_commit(run_id: str, failed: int) -> str:
    if failed:
        return (
            f"All other rows are in the table; {counted(failed, 'failed row')} set aside: "
            f"{command('inspect', run_id, '--failed')} or run.quarantined() shows them. Fix the "
            "transform, then call run.retry_quarantined()."
        )
    return "Nothing to do: the rows are in the table. holdfast sweep deletes what is left over."


def _start_again(kept: int) -> str:
    if not kept:
        return "Start the same script again."
    return f"Start the same script again: {kept:,} rows are kept, and not computed again."


def _is_signal(reason: str) -> bool:
    """Whether a signal ended a start, by Ctrl-C or by a scheduler: there is nothing to fix."""
    return reason.startswith("SIG")


def _may_be_alive(seen: Observation, heard_at: float, now: float) -> bool:
    heard_at = max(heard_at, seen.beat_at or 0.0)
    return now - heard_at < silent_after_s(seen.starts[-1].checkpoint_every_s)


def doing(progress: Progress | None, reason: str) -> str:
    """Say what a run is doing, or how it has ended, in a few words.

    Args:
        progress: How far it has come; None while the run is being opened.
        reason: Why its last start ended, if it has.
    """
    if progress is None:
        return "opening"
    if progress.state == "new":
        return "not started yet"
    why = f" ({reason})" if reason else ""
    text = {
        "staged": "all rows staged; committing",
        "committed": "committed",
        "ready": "ready to be committed",
        "stopped": f"stopped{why}",
        "aborted": f"aborted{why}",
    }.get(progress.state)
    if text is None and not progress.passes:
        text = "counting the input"
    if text is None:
        return f"{progress.start}, pass {progress.passes}: {progress.reason}"
    return f"{progress.start}: {text}"


# ---- The records of a run log in words
def words_of_log(records: Iterable[Record]) -> list[str]:
    """Describe each record of a log; a driver that claims again begins its next pass."""
    found, last = [], None
    for record in records:
        body = record.body
        if isinstance(body, Claim) and last == _process(body):
            found.append("the same driver begins its next pass; tasks of the previous pass end")
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
    """Describe a record in words.

    Raises:
        TypeError: The record's kind is unknown.
    """
    raise TypeError(f"no words for {type(body).__name__}")


@words_of.register
def _(body: Claim) -> str:
    every = body.checkpoint_every_s
    checkpoints = f"a checkpoint every {readable_time(every)}" if every else "no checkpoints"
    return (
        f"process {body.process_id} on {body.host} claims the run "
        f"(holdfast {body.holdfast_version}, code {body.code[:8] or 'unknown'}, {checkpoints})"
    )


@words_of.register
def _(body: Plan) -> str:
    if body.job == "replay":
        return f"a job puts {counted(body.chunks, 'chunk')} of ended tasks into table files"
    if body.remaining_rows is None:
        return "a job processes all rows that are not done; their number is unknown"
    if body.input is None:
        return f"a job processes {body.remaining_rows:,} rows"
    compared = "; values were compared too" if body.input.has_row_sums else ""
    return f"a job processes {body.remaining_rows:,} of {body.input.rows:,} rows{compared}"


@words_of.register
def _(body: Seal) -> str:
    found = [f"{counted(body.covered.rows, 'row')} count, from claims up to {body.through_claim}"]
    counts = (
        (body.waiting_chunks, "chunks wait to be put into files"),
        (body.quarantined_rows, "of the rows have failed"),
        (body.dropped_rows, "rows left out, as they were covered twice"),
        (body.withdrawn_rows, "rows left out, as their files were removed"),
    )
    found += [f"{number:,} {what}" for number, what in counts if number]
    if body.complete:
        found.append("no row is missing, and all are in table files")
    return "; ".join(found)


@words_of.register
def _(body: Renewal) -> str:
    return f"files of {counted(body.work.records, 'record')} waited long and get new names"


@words_of.register
def _(body: Stop) -> str:
    return f"the driver ends this start: {body.why}"


@words_of.register
def _(body: Intent) -> str:
    return (
        f"about to post {counted(body.rows, 'row')} in {counted(body.files, 'file')} "
        f"({readable_size(body.size_bytes)}) to {body.branch} as snapshot {body.snapshot_id}"
        f"{_replaced(body)}"
    )


@words_of.register
def _(body: Refused) -> str:
    return f"the post of record {body.intent_number} was refused, and cannot land any more"


@words_of.register
def _(body: Receipt) -> str:
    return (
        f"landed: the post of record {body.intent_number} is snapshot {body.snapshot_id}, with "
        f"{counted(body.rows, 'row')} in {counted(body.files, 'file')}{_replaced(body)}"
    )


def _replaced(body: Intent | Receipt) -> str:
    gone = replaced_by(body)
    counts = f" ({body.upserts.text})" if body.upserts else ""
    return f", in place of {gone}{counts}" if gone else counts


@words_of.register
def _(body: Abort) -> str:
    gone = "; the user says that the table is gone" if body.table_is_gone else ""
    return f"aborted for good: {body.reason or 'no reason given'}{gone}"


@words_of.register
def _(body: Base) -> str:
    binding = "; they must not change" if body.is_binding else ""
    spared = "; rows that others add since stay" if body.states else ""
    return (
        f"the run replaces rows, which are now those of snapshot {body.snapshot_id}"
        f"{binding}{spared}"
    )


@words_of.register
def _(body: Rewritten) -> str:
    files = counted(body.rewrites.records, "file")
    gone = counted(body.removed_rows, "row")
    return f"{files} of the table were looked at row by row, of which {gone} are to go"


@words_of.register
def _(body: Indexed) -> str:
    if body.is_in_pieces:
        pieces = counted(body.index.records, "piece")
        return f"the keys of {counted(body.rows, 'row')} are divided into {pieces}, to be sorted"
    return f"the keys of {counted(body.rows, 'row')} are sorted, to find the rows that they replace"


@words_of.register
def _(body: Merged) -> str:
    groups = counted(body.merges.records, "group")
    how = "stand" if body.is_written else "are about to be written, to stand"
    return f"{groups} of files {how} for many small ones in the table"


@words_of.register
def _(body: Ready) -> str:
    gone = replaced_by(body)
    place = f", in place of {gone}" if gone else ""
    return (
        f"ready: {counted(body.rows, 'row')} in {counted(body.files, 'file')} "
        f"({readable_size(body.size_bytes)}){place} are staged and checked; the user commits them"
    )


@words_of.register
def _(body: Pinned) -> str:
    files = counted(body.pins.records, "file")
    until = "" if body.columns else ", for the whole run"  # Others may move rows: see the next one.
    return f"the input is pinned: {counted(body.rows, 'row')} in {files}{until}"
