"""Credentials from one origin, which is asked again before they expire."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from holdfast.errors import SettingsError
from holdfast.storage.port import StorageError

if TYPE_CHECKING:
    from obstore.store import S3Credential

Ask = Callable[[], Mapping[str, Any]]

# Asked for again so long before they expire: a request may wait, and be sent again.
_MARGIN_S = 120.0
# Nothing says how long these are good for: a file is replaced at any time.
_UNTOLD_S = 60.0
# Of the time that is left each process uses another share: a thousand workers that were given the
# same keys do not ask for new ones in one second.
_SHARE_MIN = 0.8
# obstore keeps what has not expired. What is kept here can be thrown away when it is refused.
_EXPIRED = datetime(2000, 1, 1, tzinfo=timezone.utc)


class Credentials:
    """The newest credentials from one origin. obstore calls it before each request."""

    def __init__(
        self,
        origin: str,
        ask: Ask,
        *,
        first: Mapping[str, Any] | None = None,
        untold_s: float = _UNTOLD_S,
    ) -> None:
        """Ask for nothing yet.

        Args:
            origin: Where they come from, for messages.
            ask: Gives `access_key_id`, `secret_access_key` and, if there are, `token` and
                `expires_at`.
            first: What it gave already.
            untold_s: How long those are used that do not say when they expire.

        Raises:
            SettingsError: The first are no credentials.
        """
        self._origin = origin
        self._ask = ask
        self._untold_s = untold_s
        self._lock = threading.Lock()
        self._found: S3Credential | None = None
        self._asked_at = 0.0
        self._good_until = 0.0
        # Why no newer ones could be had; empty when they could.
        self.trouble = ""
        if first is not None:
            self._take(first, time.monotonic())

    def __repr__(self) -> str:
        """Name the origin, and no more."""
        return f"Credentials({self._origin!r})"

    def __call__(self) -> S3Credential:
        """Return credentials that are good for some time.

        Raises:
            StorageError: The origin gave none, for now.
            SettingsError: What it gave are no credentials.
        """
        with self._lock:
            if self._found is None or time.monotonic() >= self._good_until:
                self._renew()
            assert self._found is not None  # noqa: S101 - for mypy: it was just set.
            return self._found

    def throw_away(self, before: float) -> None:
        """Ask again at the next call, unless that was done since a moment of the monotonic clock.

        Many calls are refused at once when credentials end: one question serves them all.
        """
        with self._lock:
            if self._asked_at <= before:
                self._good_until = 0.0

    def _renew(self) -> None:
        asked_at = time.monotonic()
        try:
            given = self._ask()
        except Exception as error:  # noqa: BLE001 - it is the user's own code.
            # Without its text, which may hold what it was about to return.
            self.trouble = f"no credentials from {self._origin}: {type(error).__name__}"
            if self._found is None:
                raise StorageError(self.trouble) from None
            # The old ones may last for a while, or be those of another store than the one that
            # has refused a call. From now on: the question itself may have taken long.
            self._good_until = time.monotonic() + _UNTOLD_S
        else:
            self._take(given, asked_at)

    def _take(self, given: Mapping[str, Any], asked_at: float) -> None:
        self._found, lasts_s = _understood(self._origin, given, self._untold_s)
        self.trouble = ""
        self._asked_at = asked_at
        self._good_until = asked_at + lasts_s * random.uniform(_SHARE_MIN, 1.0)  # noqa: S311


def _understood(
    origin: str, given: Mapping[str, Any], untold_s: float
) -> tuple[S3Credential, float]:
    """Return credentials as obstore wants them, and how many seconds they are used.

    Raises:
        SettingsError: They are no credentials.
    """
    missing = [one for one in ("access_key_id", "secret_access_key") if not given.get(one)]
    if missing:
        raise SettingsError(
            what=f"{origin} gave no {' and no '.join(missing)}",
            cure="return access_key_id, secret_access_key and, if there are, token and expires_at",
        )
    found: S3Credential = {
        "access_key_id": str(given["access_key_id"]),
        "secret_access_key": str(given["secret_access_key"]),
        "token": given.get("token") or None,
        "expires_at": _EXPIRED,
    }
    expires_at = given.get("expires_at")
    if expires_at is None:
        return found, untold_s
    if isinstance(expires_at, str):
        expires_at = datetime.fromisoformat(expires_at)
    if expires_at.tzinfo is None:
        expires_at = expires_at.replace(tzinfo=timezone.utc)
    left_s = (expires_at - datetime.now(timezone.utc)).total_seconds()
    if left_s <= 0.0:  # New, and over already: clocks differ, and the store will tell.
        return found, untold_s
    # Of those that are short-lived from the start the first half is used.
    return found, max(left_s - _MARGIN_S, left_s / 2)
