"""Retry: which errors of a call are worth another one, and how long to wait before it."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from email.utils import parsedate_to_datetime
from typing import Any

from holdfast.errors import SettingsError
from holdfast.model.durations import seconds_of
from holdfast.model.lasting import PASSING, RATE_LIMITED, names, status_of


@dataclass(frozen=True, kw_only=True)
class Retry:
    """When and how a call for one row is made again.

    A call that is refused for its rate is not the row's fault: it does not count as an attempt,
    and all calls of the task wait as long as the server asks. It is made again until
    `patience` has passed since the row's first call.

    Args:
        on: What is worth another call: error classes, HTTP status codes, or the dotted names of
            error classes. By default time-outs, lost connections, 408, 429, 5xx of the moment.
        attempts: How many calls a row gets in all.
        first_wait: The wait before the second call; it doubles from call to call.
        longest_wait: What it does not grow beyond. A longer `Retry-After` is followed.
        patience: For how long a row is held up by rate limits before it counts as failed.

    Raises:
        SettingsError: An argument cannot be used.
    """

    on: tuple[type[BaseException] | int | str, ...] = PASSING
    attempts: int = 5
    first_wait: str | float | timedelta = "1s"
    longest_wait: str | float | timedelta = "60s"
    patience: str | float | timedelta = "15min"

    def __post_init__(self) -> None:
        """Refuse what cannot be followed.

        Raises:
            SettingsError: An argument cannot be used.
        """
        if type(self.attempts) is not int or self.attempts < 1:
            raise SettingsError(
                what=f"Retry(attempts={self.attempts!r})", cure="give a whole number of at least 1"
            )
        for name in ("first_wait", "longest_wait", "patience"):
            duration(f"Retry({name}=…)", getattr(self, name))
        if not isinstance(self.on, tuple | list):
            raise SettingsError(what=f"Retry(on={self.on!r})", cure="give a tuple: on=(429, 503)")
        for one in self.on:
            is_error = isinstance(one, type) and issubclass(one, BaseException)
            if not is_error and not isinstance(one, int | str):
                raise SettingsError(
                    what=f"Retry(on=…): {one!r}",
                    cure="give error classes, HTTP status codes, or dotted names of classes",
                )

    def wait_s(
        self, error: BaseException, attempts: int, since_s: float, refusals: int = 0
    ) -> float | None:
        """Return how long to wait before the next call; None if there is to be none.

        Args:
            error: What the last call raised.
            attempts: How many calls counted so far, this one included if it counts.
            since_s: How long ago the row's first call was.
            refusals: How many calls were refused for their rate.
        """
        asked = retry_after_s(error) or 0.0
        if not names(self.on, error):
            return None
        if is_rate_limit(error):
            if since_s + asked > seconds_of(self.patience):
                return None
        elif attempts >= self.attempts:
            return None
        if asked:
            # Not one moment sooner; and not all at the same moment.
            return asked * random.uniform(1.0, 1.1)  # noqa: S311 - nothing secret hangs on it.
        calls = max(attempts + refusals, 1)
        doubled = seconds_of(self.first_wait) * 2.0 ** min(calls - 1, 30)
        wait = min(doubled, seconds_of(self.longest_wait))
        # Spread, so that calls that failed together do not come back together.
        return wait * random.uniform(0.5, 1.0)  # noqa: S311 - nothing secret hangs on it.


def is_rate_limit(error: BaseException) -> bool:
    """Whether the server says that calls come too fast, or names a time to come back."""
    return status_of(error) == RATE_LIMITED or retry_after_s(error) is not None


def retry_after_s(error: BaseException) -> float | None:
    """Return the wait that the server asks for, in seconds; None if it asks for none.

    Read from the error's own `retry_after`, or from the header of the response that it carries,
    which may be a number of seconds or a date.
    """
    asked: Any = getattr(error, "retry_after", None)
    for holder in (getattr(error, "response", None), error):
        headers = getattr(holder, "headers", None)
        if asked is None and isinstance(headers, Mapping):
            asked = headers.get("retry-after") or headers.get("Retry-After")
    if asked is None:
        return None
    try:
        return max(float(asked), 0.0)
    except (TypeError, ValueError):
        pass
    try:
        moment = parsedate_to_datetime(str(asked))
    except (TypeError, ValueError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    return max((moment - datetime.fromtimestamp(time.time(), timezone.utc)).total_seconds(), 0.0)


def duration(what: str, value: str | float | timedelta) -> float:
    """Return a duration in seconds.

    Raises:
        SettingsError: It is none.
    """
    try:
        return seconds_of(value)
    except (TypeError, ValueError) as error:
        raise SettingsError(what=f"{what}: {error}", cure='give a duration ("30s")') from error
