"""Calls: every command that reads a ledger, a start of the job, and what each of them said."""

from __future__ import annotations

import contextlib
import io
import json
import signal
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any
from unittest import mock

from holdfast.cli import plain
from holdfast.cli.main import main
from holdfast.engine.cleanup import abort, sweep
from holdfast.engine.watch import quarantine_chunks
from holdfast.errors import HoldfastError, RunCommittedError
from holdfast.ledger.row_files import read_chunk
from tests.fuzz.jobs import Job, Lake

CALL_S_MAX = 30
# As docs/reference/cli.md lists them; without 2, as the command lines here are correct.
_EXIT_CODES = {"watch": (0, 1, 3)}
_USUAL_CODES = (0, 1)


class TooLongError(BaseException):
    """A call took longer than any of these ledgers should need."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """How a call ended."""

    call: str
    # "ok", "exit 3", or the name of an error of Holdfast's.
    outcome: str
    # Whether it reports that the run has landed.
    says_committed: bool = False
    # The state of each run, where the call lists them.
    states: dict[str, str] | None = None
    # What must never happen: an error of another kind, an unknown exit code, no end.
    wrong: str = ""


@contextlib.contextmanager
def _within(seconds: int) -> Iterator[None]:
    def end(_number: int, _frame: FrameType | None) -> None:
        raise TooLongError

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Makes calls on one run."""

    lake: Lake
    job: Job

    def __call__(self, call: str) -> Said:
        """Make a call, and catch whatever it raises."""
        try:
            with _within(CALL_S_MAX), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return CALLS[call](self, call)
        except HoldfastError as error:
            landed = isinstance(error, RunCommittedError)
            return Said(call=call, outcome=type(error).__name__, says_committed=landed)
        except TooLongError as error:
            return Said(
                call=call, outcome="hang", wrong=f"no end in {CALL_S_MAX} s\n{_where(error)}"
            )
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever it is, it is wrong.
            what = f"{type(error).__module__}.{type(error).__name__}: {error!s:.300}"
            return Said(call=call, outcome="error", wrong=f"{what}\n{_where(error)}")

    def command(self, call: str, words: list[str]) -> Said:
        """Run a command line in this process."""
        name = words[0]
        words = [name, "--store", self.lake.store, *words[1:]]
        seen: list[HoldfastError] = []
        out = io.StringIO()
        with (
            mock.patch.object(plain, "print_error", seen.append),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            code = main(words)
        if code not in _EXIT_CODES.get(name, _USUAL_CODES):
            return Said(call=call, outcome=f"exit {code}", wrong=f"exit code {code}")
        if seen:
            landed = isinstance(seen[0], RunCommittedError)
            return Said(call=call, outcome=type(seen[0]).__name__, says_committed=landed)
        outcome = f"exit {code}" if code else "ok"
        if "--json" not in words:
            return Said(call=call, outcome=outcome)
        return self._read(call, outcome, json.loads(out.getvalue()))

    def _read(self, call: str, outcome: str, found: dict[str, Any]) -> Said:
        if "runs" in found:
            states = {item["run_id"]: item["state"] for item in found["runs"]}
        else:
            states = {self.job.run_id: found.get("state") or found.get("run", {}).get("state", "")}
        return Said(
            call=call,
            outcome=outcome,
            says_committed=states.get(self.job.run_id) == "committed",
            states=states if "runs" in found else None,
        )

    @property
    def table(self) -> list[str]:
        """Return the command-line arguments for the table."""
        if self.job.is_lance:
            return []
        pairs = [f"{name}={value}" for name, value in self.lake.catalog.items()]
        return [word for pair in pairs for word in ("--catalog", pair)]


def _where(error: BaseException) -> str:
    return "".join(traceback.format_tb(error.__traceback__)[-4:]).rstrip()


def _command(*words: str, of_table: bool = False) -> Callable[[Caller, str], Said]:
    def call(caller: Caller, name: str) -> Said:
        table = caller.table if of_table else []
        given = [caller.job.run_id if word == "RUN" else word for word in words]
        return caller.command(name, [*given, *table])

    return call


def _report(caller: Caller, name: str) -> Said:
    page = caller.lake.folder / "page.html"
    try:
        return caller.command(name, ["report", caller.job.run_id, "--out", str(page)])
    finally:
        page.unlink(missing_ok=True)


def _start(**options: Any) -> Callable[[Caller, str], Said]:  # noqa: ANN401 - any of `WriteOptions`.
    def call(caller: Caller, name: str) -> Said:
        caller.lake.start(caller.job, **options)
        return Said(call=name, outcome="ok", says_committed=True)

    return call


def _remaining(caller: Caller, name: str) -> Said:
    if caller.job.is_scan:  # It has no key.
        return _start()(caller, name)
    caller.lake.start_remaining(caller.job)
    return Said(call=name, outcome="ok", says_committed=True)


def _abort(caller: Caller, name: str) -> Said:
    """Abort the run as `Run.abort` does, without looking at the status first."""
    abort(caller.lake.ledger(caller.job), lambda _: caller.lake.sink(caller.job), "fuzz")
    return Said(call=name, outcome="ok")


def _sweep(caller: Caller, name: str) -> Said:
    sweep(caller.lake.ledger(caller.job), lambda _: caller.lake.sink(caller.job))
    return Said(call=name, outcome="ok")


def _quarantined(caller: Caller, name: str) -> Said:
    ledger = caller.lake.ledger(caller.job)
    for uri, chunk in quarantine_chunks(ledger).items():
        read_chunk(ledger.storage, uri, chunk)
    return Said(call=name, outcome="ok")


_READING: dict[str, Callable[[Caller, str], Said]] = {
    "runs": _command("runs"),
    "runs --json": _command("runs", "--json"),
    "status": _command("status", "RUN"),
    "status --json": _command("status", "RUN", "--json"),
    "watch": _command("watch", "RUN", "--once"),
    "watch --json": _command("watch", "RUN", "--once", "--json"),
    "inspect": _command("inspect", "RUN", "--tasks", "3"),
    "inspect --json": _command("inspect", "RUN", "--json"),
    "report": _report,
    "report --json": _command("report", "RUN", "--json"),
    "doctor": _command("doctor"),
    "sweep": _command("sweep", "RUN", of_table=True),
    "quarantined": _quarantined,
}
_WRITING: dict[str, Callable[[Caller, str], Said]] = {
    "abort --yes": _command("abort", "RUN", "--yes", of_table=True),
    "abort --yes --json": _command("abort", "RUN", "--yes", "--json", of_table=True),
    "sweep --yes": _command("sweep", "RUN", "--yes", of_table=True),
    "run.abort": _abort,
    "run.sweep": _sweep,
    "start": _start(),
    "start, wait": _start(takeover="wait"),
    "start, if_committed=return": _start(if_committed="return"),
    "start, verify_input=rows": _start(verify_input="rows"),
    "remaining": _remaining,
}
CALLS = {**_READING, **_WRITING}
READING, WRITING = tuple(_READING), tuple(_WRITING)
ABORTS = ("abort --yes", "abort --yes --json", "run.abort")
SWEEPS = ("sweep --yes", "run.sweep")
STARTS = tuple(item for item in WRITING if item.startswith("start") or item == "remaining")
