"""Where credentials come from, and how they are renewed before they expire.

Without keys in the options, S3's own chain is used: the client reads keys from the environment
and itself renews those of a web identity, a container or a machine. It does not read the shared
credentials file, so that is read here. For everything else the option `holdfast.credentials` names
a function of the user's as `module:function`; so does HOLDFAST_CREDENTIALS in the environment, if
the options hold no keys. It is called on the driver and on each worker. A catalog that vends keys
for a table is a `Vendor`, and takes precedence over all of these.
"""

from __future__ import annotations

import configparser
import importlib
import os
import random
import threading
import time
from collections.abc import Callable, Hashable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.errors import SettingsError
from holdfast.storage.port import StorageError

# ---- Credentials from one origin, renewed before they expire

if TYPE_CHECKING:
    from obstore.store import S3Credential

Ask = Callable[[], Mapping[str, Any]]

# How long before expiry credentials are renewed: a request may wait, and be retried.
_MARGIN_S = 120.0
# How long credentials without an expiry are used: a file can be replaced at any time.
_DEFAULT_TTL_S = 60.0
# Each process uses a random share of the time that is left, so that a thousand workers with the
# same keys do not ask for new ones in the same second.
_SHARE_MIN = 0.8
# obstore caches credentials that have not expired. Ours must be replaceable when they are refused,
# so obstore gets them as expired and they are cached here.
_EXPIRED = datetime(2000, 1, 1, tzinfo=timezone.utc)


class Credentials:
    """The newest credentials from one origin. obstore calls it before each request."""

    def __init__(
        self,
        origin: str,
        ask: Ask,
        *,
        first: Mapping[str, Any] | None = None,
        ttl_s: float = _DEFAULT_TTL_S,
    ) -> None:
        """Keep the parts; nothing is asked for yet.

        Args:
            origin: Where the credentials come from, for messages.
            ask: Returns `access_key_id`, `secret_access_key` and, if they exist, `token` and
                `expires_at`.
            first: What `ask` has already returned.
            ttl_s: How long credentials without an expiry are used.

        Raises:
            SettingsError: `first` does not hold credentials.
        """
        self._origin = origin
        self._ask = ask
        self._ttl_s = ttl_s
        self._lock = threading.Lock()
        self._found: S3Credential | None = None
        self._asked_at = 0.0
        self._good_until = 0.0
        # Why the last renewal failed; empty if it did not.
        self.trouble = ""
        if first is not None:
            self._take(first, time.monotonic())

    def __repr__(self) -> str:
        """Show the origin, and nothing secret."""
        return f"Credentials({self._origin!r})"

    def __call__(self) -> S3Credential:
        """Return credentials that will be valid for some time.

        Raises:
            StorageError: The origin gave none; a retry may succeed.
            SettingsError: What the origin gave are not credentials.
        """
        with self._lock:
            if self._found is None or time.monotonic() >= self._good_until:
                self._renew()
            assert self._found is not None  # noqa: S101 - for mypy: it was just set.
            return self._found

    def throw_away(self, before: float) -> None:
        """Renew at the next call, unless that was done since `before` on the monotonic clock.

        Many calls are refused at once when credentials expire: one renewal serves them all.
        """
        with self._lock:
            if self._asked_at <= before:
                self._good_until = 0.0

    def _renew(self) -> None:
        asked_at = time.monotonic()
        try:
            given = self._ask()
        except Exception as error:  # noqa: BLE001 - it is the user's own code.
            # Without the error's text, which may hold the credentials.
            self.trouble = f"no credentials from {self._origin}: {type(error).__name__}"
            if self._found is None:
                raise StorageError(self.trouble) from None
            # The old ones may still be valid, or belong to another store than the one that refused
            # a call. Counted from now, not from `asked_at`: asking may have taken long.
            self._good_until = time.monotonic() + _DEFAULT_TTL_S
        else:
            self._take(given, asked_at)

    def _take(self, given: Mapping[str, Any], asked_at: float) -> None:
        self._found, lasts_s = _understood(self._origin, given, self._ttl_s)
        self.trouble = ""
        self._asked_at = asked_at
        self._good_until = asked_at + lasts_s * random.uniform(_SHARE_MIN, 1.0)  # noqa: S311


def _understood(origin: str, given: Mapping[str, Any], ttl_s: float) -> tuple[S3Credential, float]:
    """Return credentials in obstore's form, and how many seconds to use them.

    Raises:
        SettingsError: A key is missing.
    """
    missing = [name for name in ("access_key_id", "secret_access_key") if not given.get(name)]
    if missing:
        raise SettingsError(
            what=f"{origin} returned no {' and no '.join(missing)}",
            cure="return access_key_id, secret_access_key and, if any, token and expires_at",
        )
    found: S3Credential = {
        "access_key_id": str(given["access_key_id"]),
        "secret_access_key": str(given["secret_access_key"]),
        "token": given.get("token") or None,
        "expires_at": _EXPIRED,
    }
    expires_at = given.get("expires_at")
    if expires_at is None:
        return found, ttl_s
    if isinstance(expires_at, str):
        expires_at = datetime.fromisoformat(expires_at)
    if expires_at.tzinfo is None:
        expires_at = expires_at.replace(tzinfo=timezone.utc)
    left_s = (expires_at - datetime.now(timezone.utc)).total_seconds()
    if left_s <= 0.0:  # New, but already expired: clocks differ, and the store will decide.
        return found, ttl_s
    # Short-lived credentials are used for the first half of their lifetime.
    return found, max(left_s - _MARGIN_S, left_s / 2)


# ---- Where credentials come from, and how to renew them: a job may outlive the first ones

OPTION = "holdfast.credentials"
_VARIABLE = "HOLDFAST_CREDENTIALS"

# S3's temporary keys last at least 15 minutes, and a catalog has many workers to answer.
_VENDED_KEY_TTL_S = 600.0
_IN_ENVIRONMENT = ("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE")


class Vendor(Hashable, Protocol):
    """Vends keys for one table; it is pickled with a task, and workers ask it too."""

    @property
    def origin(self) -> str:
        """The vendor's name, for messages."""

    @property
    def first(self) -> Mapping[str, Any]:
        """The keys that it returned on the driver."""

    def ask(self) -> Mapping[str, Any]:
        """Return keys in the form that a user's function returns them."""


def provider(options: Mapping[str, str], vendor: Vendor | None = None) -> Credentials | None:
    """Return an S3 store's credential provider; None if it uses fixed keys or its own chain.

    Args:
        options: Storage options.
        vendor: The vendor of keys for this storage, if there is one.

    Raises:
        SettingsError: The option does not name a function.
    """
    found = _asked(options, vendor)
    if found is not None:
        return found
    if _needs_none(options) or any(os.environ.get(name) for name in _IN_ENVIRONMENT):
        return None
    if not _from_file():
        return None
    origin = "the shared credentials file"
    return _kept(origin, lambda: Credentials(origin, _from_file))


def refresh(options: Mapping[str, str], vendor: Vendor | None = None) -> None:
    """Renew credentials in this thread if they are due, before a request does.

    A request asks on one of the client's threads, where a function that itself uses storage fails.

    Args:
        options: Storage options.
        vendor: The vendor of keys for this storage, if there is one.

    Raises:
        SettingsError: The option does not name a function.
        StorageError: There are no credentials; a retry may succeed.
    """
    found = _asked(options, vendor)
    if found is not None:
        found()


def renew(before: float) -> bool:
    """Mark all credentials from before a moment for renewal; return whether there are any.

    Args:
        before: When the refused call began, by the monotonic clock.
    """
    ours = _ours()
    for credentials in ours:
        credentials.throw_away(before)
    return bool(ours)


def trouble() -> str:
    """Return why new credentials were not available; empty if they were."""
    return "; ".join(credentials.trouble for credentials in _ours() if credentials.trouble)


# Credentials by process and origin: all stores of a process share them.
_known: dict[tuple[int, Hashable], Credentials] = {}


def _ours() -> list[Credentials]:
    return [
        credentials
        for (process_id, _), credentials in list(_known.items())
        if process_id == os.getpid()
    ]


def _kept(origin: Hashable, make: Callable[[], Credentials]) -> Credentials:
    key = (os.getpid(), origin)
    if key not in _known:
        _known.setdefault(key, make())
    return _known[key]


def _asked(options: Mapping[str, str], vendor: Vendor | None) -> Credentials | None:
    """Return credentials from a vendor or a user's function; None if there is neither."""
    if vendor is not None:
        ttl_s = _VENDED_KEY_TTL_S
        return _kept(
            vendor,
            lambda: Credentials(vendor.origin, vendor.ask, first=vendor.first, ttl_s=ttl_s),
        )
    name = _named(options)
    return _kept(name, lambda: Credentials(name, _function(name))) if name else None


def _named(options: Mapping[str, str]) -> str:
    if options.get(OPTION):
        return options[OPTION]
    return "" if _needs_none(options) else os.environ.get(_VARIABLE, "")


def _needs_none(options: Mapping[str, str]) -> bool:
    has_keys = options.get("s3.access-key-id") or options.get("client.access-key-id")
    return bool(has_keys) or options.get("s3.anonymous", "false").lower() == "true"


def _function(name: str) -> Ask:
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise SettingsError(
            what=f"{OPTION}={name!r} cannot be imported here: {type(error).__name__}",
            cure="name a function as module:function, importable on the driver and on executors",
        ) from None
    if not callable(found):
        raise SettingsError(what=f"{OPTION}={name!r} is not a function", cure="name a function")
    ask: Ask = found
    return ask


def _from_file() -> Mapping[str, Any]:
    """Return the keys of the profile in use; empty if there are none."""
    path = os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or Path.home() / ".aws" / "credentials"
    parser = configparser.RawConfigParser()
    try:
        parser.read(path, encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError):
        return {}  # The error's message would repeat a line of the file.
    profile = os.environ.get("AWS_PROFILE") or "default"
    if not parser.has_option(profile, "aws_access_key_id"):
        return {}
    return {
        "access_key_id": parser.get(profile, "aws_access_key_id"),
        "secret_access_key": parser.get(profile, "aws_secret_access_key", fallback=""),
        "token": parser.get(profile, "aws_session_token", fallback=None),
    }
