"""Where it failed: the worker's traceback reaches the driver, and the message the ledger."""

from __future__ import annotations

import json
import runpy
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast import per_row, per_worker
from holdfast.engine.watch import status
from holdfast.errors import JobError, JobFailedError, TooManyErrorsError, TransformError
from holdfast.model.records import Stop
from holdfast.worker.reports import TransformFailedError, WorkerTraceback, problem_of
from tests.fakes.rig import Rig

SCRIPT = """
import asyncio
import json


def parsed(text):
    return json.loads(text)  # The user's own line.


def batch_transform(batch):
    return parsed("no JSON")


def row(row):
    return parsed("no JSON")


async def async_row(row):
    await asyncio.sleep(0)
    return parsed("no JSON")


def ending_row(row):
    raise SystemExit(3)  # The user's own line.


def factory():
    return parsed("no JSON")


def nothing(_):
    pass


class Nothing:
    def __call__(self, _):
        pass
"""
OWN_LINE = "job.py:7 in parsed, `return json.loads(text)  # The user's own line.`"


@pytest.fixture
def job(tmp_path: Path) -> dict[str, Any]:
    """Return the names that a user's script in a file defines."""
    script = tmp_path / "job.py"
    script.write_text(SCRIPT, encoding="utf-8")
    return runpy.run_path(str(script))


def failure(**options: Any) -> JobError:  # noqa: ANN401 - those of a start.
    """Return the error of a run whose transform fails."""
    with pytest.raises((TransformError, TooManyErrorsError)) as caught:
        Rig().start(retries=0, **options)
    return caught.value


MADE: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "batches": lambda job: {"transform": job["batch_transform"]},
    "rows": lambda job: {"transform": per_row(job["row"])},
    "rows, async": lambda job: {"transform": per_row(job["async_row"])},
    "a factory": lambda job: {"transform": per_worker(job["factory"])},
    "a factory of a row function": lambda job: {"transform": per_row(per_worker(job["factory"]))},
    "halves": lambda job: {
        "transform": job["batch_transform"],
        "on_error": "quarantine",
        "max_errors": 0,
    },
    "rows set aside": lambda job: {
        "transform": per_row(job["row"]),
        "on_error": "quarantine",
        "max_errors": 0,
    },
}


@pytest.mark.parametrize("kind", MADE)
def test_the_message_names_the_users_own_line(job: dict[str, Any], kind: str) -> None:
    """It is not the library's line that raised, nor ours; the whole traceback is the cause."""
    error = failure(**MADE[kind](job))
    assert OWN_LINE in str(error)
    assert isinstance(error.__cause__, WorkerTraceback)
    printed = "".join(traceback.format_exception(error))
    assert printed.index("json/decoder.py") < printed.index("holdfast.errors.")
    assert "job.py" in str(error.__cause__)
    assert "JSONDecodeError: Expecting value" in str(error.__cause__)


def test_a_call_that_ends_the_process_names_its_line_too(job: dict[str, Any]) -> None:
    """What a row function raises is wrapped on its way out of a thread."""
    error = failure(transform=per_row(job["ending_row"]))
    assert "job.py:24 in ending_row, `raise SystemExit(3)  # The user's own line.`" in str(error)
    assert "The above exception was the direct cause" in str(error.__cause__)


@pytest.mark.parametrize(
    ("made", "named"),
    [
        (lambda job: job["nothing"], "job.py:31 in nothing, `def nothing(_):`"),
        (lambda job: partial(job["nothing"]), "job.py:31 in nothing"),
        (lambda job: per_row(job["nothing"]), "job.py:31 in nothing"),
        (lambda job: job["Nothing"](), "job.py:36 in __call__, `def __call__(self, _):`"),
        (lambda job: per_worker(job["Nothing"]), "job.py:36 in __call__"),
    ],
    ids=["function", "partial", "row function", "object", "per worker"],
)
def test_a_wrong_answer_names_the_function_that_returned_it(
    job: dict[str, Any], made: Callable[[dict[str, Any]], Any], named: str
) -> None:
    """A forgotten `return` raises nothing in the user's own lines."""
    error = str(failure(transform=made(job)))
    assert named in error
    assert "returned NoneType" in error


def problem(error: Exception) -> dict[str, str]:
    """Return what a task reports about an error."""
    batch = pa.RecordBatch.from_pydict({})
    return problem_of(TransformFailedError(error), (), batch, 0).facts


def raised(action: Callable[[], object]) -> Exception:
    """Return what an action raises, with its frames."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 - any error.
        action()
    return caught.value


def test_causes_of_the_error_are_in_the_traceback() -> None:
    """The first of them is usually the one to look for."""

    def wrapped() -> None:
        try:
            json.loads("no JSON")
        except ValueError as error:
            raise LookupError("no answer") from error

    text = problem(raised(wrapped))["traceback"]
    assert text.index("JSONDecodeError") < text.index("LookupError: no answer")
    assert "wrapped" in problem(raised(wrapped))["where"]


def test_a_folder_of_jobs_is_not_mistaken_for_a_library(tmp_path: Path) -> None:
    """Its name may start like that of a package."""
    script = tmp_path / "pyspark-jobs" / "job.py"
    script.parent.mkdir()
    script.write_text(SCRIPT, encoding="utf-8")
    error = failure(transform=runpy.run_path(str(script))["batch_transform"])
    assert "pyspark-jobs/job.py:7 in parsed" in str(error)


def test_a_frame_of_a_library_is_named_if_there_is_no_other() -> None:
    """The transform may be a library function, and an error may never have been raised."""
    error = raised(lambda: json.loads("no JSON"))
    stack = error.__traceback__
    while stack is not None and "decoder" not in stack.tb_frame.f_code.co_filename:
        stack = stack.tb_next
    assert "json/decoder.py" in problem(error.with_traceback(stack))["where"]
    assert problem(ValueError("never raised"))["where"] == "unknown"


def test_a_long_traceback_is_cut_in_the_middle() -> None:
    """Spark collects one from every task: both ends are kept, as they say the most."""
    long = problem(ValueError("begin " + 50_000 * "x" + " end"))["traceback"]
    assert len(long) < 21_000
    assert "begin" in long
    assert "characters left out" in long
    assert long.endswith(" end")


class Mute(Exception):  # noqa: N818 - a user's own.
    """An error that cannot be shown."""

    def __str__(self) -> str:
        """Fail, as a careless __str__ does."""
        raise AttributeError("no such attribute")


def test_hostile_errors_are_shown_safely() -> None:
    """Escape sequences and passwords are removed, and a failing `__str__` hides nothing."""
    error = RuntimeError("\x1b[2J https://me:hunter2@host/ \ud800")
    facts = problem(error)
    assert "\x1b" not in facts["traceback"]
    assert "hunter2" not in facts["traceback"]
    json.dumps(facts).encode()
    assert problem(Mute())["error"] == "Mute: (it cannot be shown as text)"
    assert "Mute" in problem(Mute())["traceback"]


def test_the_message_of_the_error_is_in_the_ledger_and_in_the_status(job: dict[str, Any]) -> None:
    """A user who looks the next day sees what happened, not only a class name."""
    rig = Rig()
    with pytest.raises(TransformError):
        rig.start(transform=job["batch_transform"], retries=0)
    ledger = rig.ledger()
    ledger.log.refresh()
    stop = ledger.log.records[-1].body
    assert isinstance(stop, Stop)
    assert stop.reason == "TransformError"
    assert stop.message.startswith("the transform failed in 2 of 2 tasks; first: JSONDecodeError")
    found = status(ledger)
    assert found.stopped_by == f"TransformError: {stop.message}"
    assert f"  stopped   by TransformError: {stop.message}" in str(found)
    with pytest.warns(UserWarning, match="the transform's code has changed"):
        rig.start()
    assert status(rig.ledger()).stopped_by == ""


def test_a_message_is_one_line_of_bounded_length_without_passwords() -> None:
    """Every listing of runs reads the records."""
    error = JobFailedError(reason="at https://me:hunter2@host/\n\x1b[2J" + 5000 * "x")
    assert len(error.summary) == 500
    assert error.summary.endswith("…")
    assert error.summary.isprintable()
    assert "hunter2" not in error.summary


@pytest.mark.parametrize(
    "line",
    [
        'client(api_key="sk-canary", model="m")',
        "client(password='sk-canary')",
        'headers = {"Authorization": "sk-canary"}',
        'options["s3.secret-access-key"] = "sk-canary"',
        'AUTH_TOKEN = r"sk-canary"',
        'get("https://me:sk-canary@host/")',
    ],
)
def test_a_secret_in_a_line_of_source_is_neither_shown_nor_stored(
    tmp_path: Path, line: str
) -> None:
    """The line is in the message, and therefore in the ledger."""
    script = tmp_path / "job.py"
    script.write_text(f"def fail(batch):\n    {line}; undefined\n", encoding="utf-8")
    names = runpy.run_path(str(script), {"client": dict, "get": len, "options": {}})
    facts = problem(raised(lambda: names["fail"](None)))
    assert "job.py:2 in fail, `" in facts["where"]
    assert "undefined`" in facts["where"]
    assert "sk-canary" not in facts["where"] + facts["traceback"]
