"""Lasting: a scheduler that obeys `retry_safe` neither loops on a bug nor gives up too soon."""

from __future__ import annotations

import errno
import json
import os
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyiceberg.exceptions
import pytest
import requests
from py4j.protocol import Py4JError
from pyspark.errors import (
    AnalysisException,
    ParseException,
    PySparkException,
    PySparkTypeError,
    PythonException,
)

from holdfast import Retry, per_row
from holdfast.engine.passes import raise_problems
from holdfast.errors import (
    CatalogUnavailableError,
    JobFailedError,
    SchemaMismatchError,
    StoreUnavailableError,
    TooManyErrorsError,
    TransformError,
)
from holdfast.ledger.store import create_once, list_objects, probe_store
from holdfast.model.lasting import code_lasts, lasts
from holdfast.sinks.iceberg.catalog import open_catalog
from holdfast.spark.jobs import spark_errors
from holdfast.storage import locations
from holdfast.storage.objects import ObjectStorage
from holdfast.storage.port import StorageError
from holdfast.worker.reports import TaskReport, TransformFailedError, problem_of
from holdfast.worker.transforms import TransformOutputError
from tests.fakes.http_servers import running
from tests.fakes.rig import Rig
from tests.fakes.s3_server import AnsweringS3
from tests.stack_access import Stack


class OwnError(Exception):
    """An error that only its author knows."""


class AnswerError(ValueError):
    """Stands in for pydantic's error about an answer, which is recognised by its name."""


AnswerError.__module__, AnswerError.__qualname__ = (
    "pydantic_core._pydantic_core",
    "ValidationError",
)


class ApiError(Exception):
    """A client's error with the server's status, like those of openai and httpx."""

    def __init__(self, status_code: int) -> None:
        """Take the status."""
        super().__init__(f"the server said {status_code}")
        self.status_code = status_code


def from_error(error: Exception, cause: Exception) -> Exception:
    """Return an error that was raised from another one."""
    error.__cause__ = cause
    return error


def while_handling(error: Exception, handled: Exception) -> Exception:
    """Return an error that was raised while another one was being handled."""
    error.__context__ = handled
    return error


MISFIT = SchemaMismatchError(table="t", column="c", problem="p")
MISTAKES: list[Exception] = [
    ValueError("bad"),
    TypeError("wrong"),
    KeyError("name"),
    AttributeError("none"),
    ZeroDivisionError(),
    AssertionError(),
    ModuleNotFoundError("torch"),
    NameError("typo"),
    SyntaxError("typo"),
    NotImplementedError(),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
    pa.ArrowInvalid("no date"),
    FileNotFoundError("model.bin"),
    PermissionError("model.bin"),
    TransformOutputError("no rows"),
    MISFIT,
    ApiError(400),
    ApiError(401),
    ApiError(404),
    from_error(OwnError(), KeyError("name")),
]
PASSING: list[Exception] = [
    ConnectionResetError(),
    TimeoutError(),
    requests.exceptions.ReadTimeout(),
    ApiError(429),
    ApiError(503),
    ApiError(409),
    OSError(errno.ENOSPC, "full"),
    MemoryError(),
    RuntimeError("CUDA error"),
    OwnError("unknown"),
    json.JSONDecodeError("no JSON", "I am sorry", 0),
    AnswerError("no such field"),
    PermissionError("The provided token has expired."),
    from_error(ValueError("no answer"), ConnectionError()),
    while_handling(KeyError("fallback"), TimeoutError()),
    # The cache lookup that led to the call is not a mistake.
    while_handling(OwnError("unknown"), KeyError("cache")),
]


@pytest.mark.parametrize("error", MISTAKES, ids=repr)
def test_a_mistake_in_the_transform_is_not_worth_a_retry(error: Exception) -> None:
    """Paying for a bug in a loop is the worst that a scheduler can do."""
    assert code_lasts(error)
    assert not transform_error(error).retry_safe


@pytest.mark.parametrize("error", PASSING, ids=repr)
def test_what_may_pass_is_worth_a_retry(error: Exception) -> None:
    """A job that gives up at a temporary failure waits for a person."""
    assert not code_lasts(error)
    assert transform_error(error).retry_safe


def report_of(error: Exception, place: int = 0) -> TaskReport:
    """Return the report of a task whose transform has raised."""
    problem = problem_of(TransformFailedError(error), (), pa.RecordBatch.from_pydict({}), 0)
    return TaskReport(place=place, end="stopped", problem=problem)


def transform_error(*errors: Exception) -> TransformError:
    """Return the error of a job whose tasks raised these in the transform."""
    with pytest.raises(TransformError) as caught:
        raise_problems([report_of(error, place) for place, error in enumerate(errors)])
    return caught.value


def test_one_task_with_a_mistake_makes_a_retry_useless() -> None:
    """It is also the one to show, though others failed before it."""
    error = transform_error(TimeoutError("slow"), KeyError("mistake"))
    assert not error.retry_safe
    assert "mistake" in error.example


@pytest.mark.parametrize("may_pass", [True, False])
def test_too_many_failed_rows_are_worth_a_retry_if_some_may_work(*, may_pass: bool) -> None:
    """Failed rows are tried again: if an outage was the reason, fewer may fail.

    Method: the first failed row of the task is a mistake, the second one may be an outage.
    """

    def answer(row: dict[str, Any]) -> dict[str, Any]:
        if row["id"] == 3:
            raise ValueError("a mistake")
        if row["id"] == 4:
            raise ConnectionError("an outage") if may_pass else KeyError("another mistake")
        return row

    transform = per_row(answer, concurrency=1, retry=Retry(attempts=1))
    with pytest.raises(TooManyErrorsError, match="a mistake") as caught:
        Rig().start(transform=transform, on_error="quarantine", max_errors=1)
    assert caught.value.retry_safe is may_pass


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (pyiceberg.exceptions.UnauthorizedError("401"), True),
        (pyiceberg.exceptions.ForbiddenError("403"), True),
        (pyiceberg.exceptions.BadRequestError("400"), True),
        (pyiceberg.exceptions.OAuthError("invalid_client"), True),
        (requests.exceptions.InvalidURL("http://"), True),
        (requests.exceptions.SSLError(ssl.SSLError("CERTIFICATE_VERIFY_FAILED")), True),
        (PermissionError(errno.EACCES, "no"), True),
        (OSError('FATAL: password authentication failed for user "x"'), True),
        (OSError("LanceError(IO): status code: 403 Forbidden: <Code>AccessDenied</Code>"), True),
        (pyiceberg.exceptions.ServiceUnavailableError("503"), False),
        (pyiceberg.exceptions.ServerError("500"), False),
        (pyiceberg.exceptions.AuthorizationExpiredError("419"), False),
        (requests.exceptions.ConnectionError("refused"), False),
        (FileNotFoundError("no such object"), False),
        (OSError("status code: 403 Forbidden: <Code>ExpiredToken</Code>"), False),
        (pyiceberg.exceptions.UnauthorizedError("Not authorized: Token expired"), False),
        (pyiceberg.exceptions.ForbiddenError("ExpiredToken: a new one is needed"), False),
        (OSError("403 Forbidden: Signature not valid in the specified time frame"), False),
        (OSError("401 Unauthorized: Lifetime validation failed. The token is expired."), False),
        (ValueError("manifest cannot be read"), False),
        (OwnError("unknown"), False),
    ],
    ids=repr,
)
def test_errors_of_catalogs_and_stores_are_classified(error: Exception, *, expected: bool) -> None:
    """A refused login is permanent; an outage, or an unknown error, may pass."""
    assert lasts(error) is expected


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[AnsweringS3]:
    """Run a server for one test; the client does not retry."""
    monkeypatch.setattr(locations, "_RETRY_CONFIG", {"max_retries": 0})
    with running(AnsweringS3()) as found:
        yield found


@pytest.mark.slow_unit
@pytest.mark.parametrize(
    ("status", "code", "worth"),
    [
        (403, "AccessDenied", False),
        (403, "InvalidAccessKeyId", False),
        (401, "Unauthorized", False),
        (404, "NoSuchBucket", False),
        (403, "RequestTimeTooSkewed", True),
        (400, "ExpiredToken", True),
        (400, "RequestTimeout", True),
        (500, "InternalError", True),
        (503, "SlowDown", True),
        (409, "ConditionalRequestConflict", True),
    ],
)
def test_each_answer_of_a_store_says_if_a_retry_may_help(
    server: AnsweringS3, status: int, code: str, *, worth: bool
) -> None:
    """When a run begins, and whenever the ledger is read later."""
    server.status = status
    server.body = f"<Error><Code>{code}</Code><Message>no</Message></Error>"
    storage = server.storage()
    for action in (
        lambda: create_once(storage, "s3://bucket/x", b"1", sleep=lambda _: None),
        lambda: list_objects(storage, "s3://bucket/x"),
        lambda: probe_store(storage, "s3://bucket", "n", sleep=lambda _: None),
    ):
        with pytest.raises(StoreUnavailableError) as caught:
            action()
        assert caught.value.retry_safe is worth


def test_an_upload_that_is_refused_says_so_too(server: AnsweringS3) -> None:
    """Parts are sent on other threads; the reason is in the error's text."""
    server.status = 403
    sink = server.storage().open_sink("s3://bucket/x")
    with pytest.raises(StorageError) as caught:  # noqa: PT012 - any of the calls may raise.
        for _ in range(20):
            sink.write(bytes(1 << 20))
        sink.close()
    assert caught.value.lasts


def test_a_path_that_cannot_be_written_is_not_worth_a_retry(tmp_path: Path) -> None:
    """A file in place of a folder does not go away."""
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnavailableError) as caught:
        create_once(ObjectStorage({}), f"file://{tmp_path}/file/x", b"1", sleep=lambda _: None)
    assert not caught.value.retry_safe


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_a_folder_that_may_not_be_written_is_not_worth_a_retry(tmp_path: Path) -> None:
    """A missing permission stays missing."""
    tmp_path.chmod(0o500)
    with pytest.raises(StoreUnavailableError) as caught:
        create_once(ObjectStorage({}), f"file://{tmp_path}/x", b"1", sleep=lambda _: None)
    assert not caught.value.retry_safe


@pytest.mark.stack
@pytest.mark.parametrize("changed", ["s3.access-key-id", "s3.secret-access-key"])
def test_a_real_server_that_refuses_a_key_is_not_worth_a_retry(stack: Stack, changed: str) -> None:
    """However the server words it."""
    storage = ObjectStorage({**stack.s3.store_options(), changed: "wrong"})
    uri = f"s3://{stack.s3.bucket}/lasting"
    with pytest.raises(StoreUnavailableError) as caught:
        create_once(storage, uri, b"1", sleep=lambda _: None)
    assert not caught.value.retry_safe


@pytest.mark.parametrize(
    ("properties", "worth"),
    [
        ({"type": "rest", "uri": "http://127.0.0.1:1"}, True),
        ({"type": "rest", "uri": "nonsense"}, False),
        ({"type": "sql", "uri": "nonsense"}, False),
        ({"type": "sql", "uri": "sqlite:////no/such/folder/catalog.db"}, False),
    ],
)
def test_errors_of_opening_a_catalog_are_classified(
    properties: dict[str, str], *, worth: bool
) -> None:
    """A catalog that does not listen may do so later; a wrong address stays wrong."""
    with pytest.raises(CatalogUnavailableError) as caught:
        open_catalog("lake", properties)
    assert caught.value.retry_safe is worth


def raised(error: Exception) -> Callable[[], None]:
    """Return a function that raises an error."""

    def raising() -> None:
        raise error

    return raising


UDF = """
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "/app/job.py", line 7, in score
{last}
"""
OURS = """Job aborted due to stage failure: Lost task 0.3
holdfast.errors.StoreUnavailableError: s3://b/x: the request to the store failed (403 Forbidden)
  Worth a retry: {word}.
  What to do: check
ValueError: what it was raised from
"""


@pytest.mark.parametrize(
    ("error", "worth"),
    [
        (AnalysisException("[PATH_NOT_FOUND] Path does not exist"), False),
        (ParseException("[PARSE_SYNTAX_ERROR]"), False),
        (PySparkTypeError("[NOT_STR]"), False),
        (PythonException(UDF.format(last="ValueError: bad")), False),
        (PySparkException("Caused by: java.nio.file.AccessDeniedException: s3a://b/x"), False),
        (PySparkException("java.io.FileNotFoundException: /x (Permission denied)"), False),
        (Py4JError(OURS.format(word="no: a retry would fail the same way")), False),
        (Py4JError(OURS.format(word="yes")), True),
        (PythonException(UDF.format(last="ConnectionError: reset")), True),
        (PySparkException("ExecutorLostFailure (executor 7 exited caused by one of them)"), True),
        (Py4JError("Answer from Java side is empty"), True),
        (
            PySparkException("java.nio.file.AccessDeniedException: s3a://b/x: ExpiredToken"),
            True,
        ),
        (AnalysisException("SessionHiveMetaStoreClient: Connection refused"), True),
        (
            PythonException(
                UDF.format(last="KeyError: 'cache'")
                + "During handling of the above exception, another exception occurred:\n"
                + UDF.format(last="requests.exceptions.ConnectionError: reset")
            ),
            True,
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_errors_of_a_failed_spark_job_are_classified(error: Exception, *, worth: bool) -> None:
    """A query that Spark refuses stays wrong; lost executors may come back."""
    with pytest.raises(JobFailedError) as caught, spark_errors():
        raised(error)()
    assert caught.value.retry_safe is worth
