"""Retry: which errors are worth another call, and how long to wait before it."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.errors import SettingsError
from holdfast.worker.transforms import Retry, is_rate_limit, retry_after_s
from tests.fakes.row_functions import HttpError, refused


class Carrier(Exception):  # noqa: N818 - it imitates errors of other libraries.
    """An error with any attributes."""

    def __init__(self, **attributes: Any) -> None:  # noqa: ANN401 - whatever a library gives.
        """Set the attributes."""
        super().__init__("carrier")
        for name, value in attributes.items():
            setattr(self, name, value)


class LostError(Carrier):
    """An error whose class is known only by its name."""


class VeryLostError(LostError):
    """An error derived from it."""


NAME = f"{LostError.__module__}.LostError"


@pytest.fixture(autouse=True)
def no_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every wait as long as allowed."""

    def longest(_low: float, high: float) -> float:
        return high

    monkeypatch.setattr(random, "uniform", longest)


def is_retried(error: BaseException, retry: Retry | None = None) -> bool:
    """Whether a first call that fails with this error is followed by another."""
    return (retry or Retry()).wait_s(error, 1, 0.0) is not None


@pytest.mark.parametrize("error", [ConnectionResetError(), TimeoutError(), asyncio.TimeoutError()])
def test_lost_connections_and_timeouts_are_retried(error: Exception) -> None:
    """They are transient."""
    assert is_retried(error)


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504, 529])
@pytest.mark.parametrize("where", ["response.status_code", "status_code", "status"])
def test_a_transient_status_is_retried_wherever_the_error_carries_it(
    status: int, where: str
) -> None:
    """The attribute differs between httpx and requests, openai, and aiohttp."""
    holder, _, name = where.rpartition(".")
    inner = {name: status}
    error = Carrier(**({"response": SimpleNamespace(**inner)} if holder else inner))
    assert is_retried(error)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("bad row"),
        HttpError(400),
        HttpError(401),
        HttpError(404),
        Carrier(status="503"),
        Carrier(response=None),
        VeryLostError(),
    ],
)
def test_any_other_error_is_not_retried(error: Exception) -> None:
    """The row is at fault, or may be: another call costs the same."""
    assert not is_retried(error)


@pytest.mark.parametrize(
    ("on", "is_so"),
    [
        ((LostError,), True),
        ((NAME,), True),
        ((f"{LostError.__module__}.Carrier",), True),
        (("LostError",), False),
        (("other.LostError",), False),
        ((503,), True),
        ((500, ValueError, "x.Y"), False),
        ((), False),
    ],
)
def test_errors_to_retry_are_named_by_class_status_or_dotted_name(
    on: tuple[type[BaseException] | int | str, ...], *, is_so: bool
) -> None:
    """A name includes the classes derived from it."""
    assert is_retried(VeryLostError(status=503), Retry(on=on)) is is_so


def test_a_status_of_the_response_takes_precedence_over_one_of_the_error() -> None:
    """The error's own status may be the library's number for something else."""
    error = Carrier(status=7, response=SimpleNamespace(status_code=503))
    assert is_retried(error, Retry(on=(503,)))
    assert not is_retried(error, Retry(on=(7,)))


def test_a_status_that_is_text_is_skipped() -> None:
    """Some responses have text under that name; the search for a number goes on."""
    error = Carrier(response=SimpleNamespace(status="503 Service Unavailable"), status_code=503)
    assert is_retried(error)


@pytest.mark.parametrize("attempts", [1, 3])
def test_a_row_gets_its_number_of_attempts_and_no_more(attempts: int) -> None:
    """The number includes the first call."""
    retry = Retry(attempts=attempts)
    waits = [retry.wait_s(TimeoutError(), made, 0.0) for made in range(1, attempts + 2)]
    assert [wait is not None for wait in waits] == [True] * (attempts - 1) + [False, False]


@pytest.mark.parametrize("error", [refused(), HttpError(503, {"retry-after": "1"})])
def test_a_rate_limit_ends_with_patience_not_with_attempts(error: Exception) -> None:
    """It is not the row's fault, but a row must not wait for ever."""
    retry = Retry(attempts=1, patience="10s")
    assert retry.wait_s(error, 99, 8.9) is not None
    assert retry.wait_s(error, 0, 10.1) is None


def test_a_wait_that_would_outlast_patience_is_not_begun() -> None:
    """The row fails at once, not after a wait that can no longer help it."""
    retry = Retry(patience="10s")
    assert retry.wait_s(refused(5), 0, 4.9) is not None
    assert retry.wait_s(refused(5), 0, 5.1) is None
    assert retry.wait_s(refused(60), 0, 0.0) is None


def test_each_refusal_without_a_wait_of_its_own_lengthens_the_next_one() -> None:
    """They are not attempts, but a busy server must be left alone longer."""
    retry = Retry(first_wait=1, longest_wait=60)
    waits = [retry.wait_s(refused(), 0, 0.0, refusals) for refusals in (1, 2, 3, 4)]
    assert waits == [1.0, 2.0, 4.0, 8.0]
    assert retry.wait_s(TimeoutError(), 2, 0.0, 2) == 8.0


def test_patience_does_not_apply_to_other_errors() -> None:
    """A row that fails on its own gets its attempts, however slow they are."""
    assert Retry(patience="1s").wait_s(TimeoutError(), 1, 1000.0) is not None


def test_a_refusal_that_on_leaves_out_is_not_retried() -> None:
    """Errors that `on` leaves out are not retried."""
    assert not is_retried(refused(1), Retry(on=(TimeoutError,)))


def test_waits_double_up_to_the_longest() -> None:
    """With many attempts, no number exceeds what a float can hold."""
    retry = Retry(attempts=10_000, first_wait=2, longest_wait=9)
    waits = [retry.wait_s(TimeoutError(), made, 0.0) for made in (1, 2, 3, 4, 5, 9_000)]
    assert waits == [2.0, 4.0, 8.0, 9.0, 9.0, 9.0]


def test_calls_that_failed_together_are_not_retried_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A wait is spread over its later half."""
    asked: list[tuple[float, float]] = []

    def least(low: float, high: float) -> float:
        asked.append((low, high))
        return low

    monkeypatch.setattr(random, "uniform", least)
    assert Retry(first_wait=4).wait_s(TimeoutError(), 1, 0.0) == 2.0
    assert asked == [(0.5, 1.0)]


@pytest.mark.parametrize("asked", [30, 0.1])
def test_a_wait_that_the_server_asks_for_is_respected_and_spread_after_it(asked: float) -> None:
    """An earlier call would only be refused again; the server's wait counts, long or short."""
    wait = Retry(first_wait=1, longest_wait=2).wait_s(refused(asked), 0, 0.0)
    assert wait == pytest.approx(asked * 1.1)


@pytest.mark.parametrize("asked", [0, -1, "Sun, 06 Nov 1994 08:49:37 GMT"])
def test_a_server_that_asks_for_no_wait_is_not_called_in_a_tight_loop(asked: float | str) -> None:
    """A busy server often sends this; a task would then make thousands of calls a second."""
    wait = Retry(first_wait=1).wait_s(refused(asked), 0, 0.0)
    assert wait is not None
    assert wait >= 0.5


@pytest.mark.parametrize("name", ["Retry-After", "retry-after"])
def test_retry_after_is_a_number_of_seconds(name: str) -> None:
    """Both spellings work, for clients whose headers are a plain dict."""
    assert retry_after_s(HttpError(503, {name: "2.5"})) == 2.5


def test_retry_after_is_a_date(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may lack a zone, which is then GMT."""
    now = datetime(2026, 11, 15, 9, 0, tzinfo=timezone.utc)
    monkeypatch.setattr(time, "time", now.timestamp)
    later = format_datetime(now + timedelta(seconds=90), usegmt=True)
    assert retry_after_s(HttpError(429, {"Retry-After": later})) == 90.0
    without_zone = later.replace("GMT", "-0000")
    assert retry_after_s(HttpError(429, {"Retry-After": without_zone})) == 90.0


@pytest.mark.parametrize("asked", ["-3", "Sun, 06 Nov 1994 08:49:37 GMT"])
def test_a_wait_that_is_already_over_is_zero(asked: str) -> None:
    """It is still a rate limit."""
    assert retry_after_s(HttpError(503, {"Retry-After": asked})) == 0.0
    assert is_rate_limit(HttpError(503, {"Retry-After": asked}))


def test_an_error_may_name_the_wait_itself() -> None:
    """Its attribute takes precedence over the header."""
    headers = SimpleNamespace(headers={"Retry-After": "9"})
    assert retry_after_s(Carrier(retry_after=3)) == 3.0
    assert retry_after_s(Carrier(retry_after="4", response=headers)) == 4.0


@pytest.mark.parametrize(
    "error",
    [
        ValueError(),
        HttpError(503),
        HttpError(503, {"Retry-After": "soon"}),
        Carrier(response=SimpleNamespace(headers=["Retry-After"])),
        Carrier(retry_after=object()),
    ],
)
def test_an_error_without_a_readable_wait_is_not_a_rate_limit(error: Exception) -> None:
    """A header that cannot be parsed must end neither the retries nor the task."""
    assert retry_after_s(error) is None
    assert not is_rate_limit(error)


def test_429_is_a_rate_limit_with_and_without_a_wait() -> None:
    """The status is enough."""
    assert is_rate_limit(refused())
    assert is_rate_limit(refused(1))


@pytest.mark.parametrize(
    "settings",
    [
        {"attempts": 0},
        {"attempts": 2.0},
        {"attempts": True},
        {"first_wait": "soon"},
        {"first_wait": 0},
        {"longest_wait": -1},
        {"patience": None},
        {"on": (int,)},
        {"on": (None,)},
        {"on": (5.5,)},
        {"on": (ValueError(),)},
    ],
)
def test_a_setting_that_cannot_be_used_is_refused(settings: Mapping[str, Any]) -> None:
    """The message names the argument."""
    with pytest.raises(SettingsError) as caught:
        Retry(**settings)
    assert f"{next(iter(settings))}=" in caught.value.what


@pytest.mark.parametrize("on", ["httpx.TransportError", 503, ConnectionError])
def test_a_single_error_without_its_tuple_is_refused(on: Any) -> None:  # noqa: ANN401
    """Brackets around one value are not a tuple, and a typo must not end all retries."""
    with pytest.raises(SettingsError, match="on"):
        Retry(on=on)


def test_durations_are_given_in_any_form() -> None:
    """The forms are the same as everywhere."""
    retry = Retry(first_wait="500ms", longest_wait=timedelta(seconds=1), patience=3)
    assert [retry.wait_s(TimeoutError(), made, 0.0) for made in (1, 2, 3)] == [0.5, 1.0, 1.0]
