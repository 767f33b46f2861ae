"""Where credentials come from, and whom to ask again: a job may outlive the first ones.

Without keys in the options, S3's own chain is used: the client reads keys from the environment
and renews those of a web identity, a container or a machine by itself. The shared credentials
file, which it does not know, is read here. The option `holdfast.credentials` names a function of
the user's, `module:function`, for everything else; so does HOLDFAST_CREDENTIALS in the environment
where the options hold no keys. It is called on the driver and on each worker. A catalog that vends
keys for a table is a `Vendor`, and comes before all of these.
"""

from __future__ import annotations

import configparser
import importlib
import os
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import Any, Protocol

from holdfast.errors import SettingsError
from holdfast.storage.expiring import Ask, Credentials

OPTION = "holdfast.credentials"
_VARIABLE = "HOLDFAST_CREDENTIALS"

# S3 gives out no temporary keys for less than 15 minutes, and a catalog has many workers to answer.
_UNTOLD_OF_A_VENDOR_S = 600.0
_IN_ENVIRONMENT = ("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE")


class Vendor(Hashable, Protocol):
    """Who gives out keys for one table. It is pickled with a task: workers ask it too."""

    @property
    def origin(self) -> str:
        """Who it is, for messages."""

    @property
    def first(self) -> Mapping[str, Any]:
        """What it gave when it was asked on the driver."""

    def ask(self) -> Mapping[str, Any]:
        """Return keys as a user's function does."""


def provider(options: Mapping[str, str], vendor: Vendor | None = None) -> Credentials | None:
    """Return what an S3 store asks for credentials; None for the keys or the chain that it has.

    Args:
        options: Storage options.
        vendor: Who gives out keys for what is stored there.

    Raises:
        SettingsError: The option names no function.
    """
    found = _asked(options, vendor)
    if found is not None:
        return found
    if _needs_none(options) or any(os.environ.get(one) for one in _IN_ENVIRONMENT):
        return None
    if not _from_file():
        return None
    origin = "the shared credentials file"
    return _kept(origin, lambda: Credentials(origin, _from_file))


def refresh(options: Mapping[str, str], vendor: Vendor | None = None) -> None:
    """Ask for new credentials in this thread if they are due, before a request does.

    A request asks on a thread of the client's, where a function that uses storage itself fails.

    Args:
        options: Storage options.
        vendor: Who gives out keys for what is stored there.

    Raises:
        SettingsError: The option names no function.
        StorageError: There are no credentials for now.
    """
    found = _asked(options, vendor)
    if found is not None:
        found()


def renew(before: float) -> bool:
    """Let all credentials from before a moment be asked for again; say whether there are any.

    Args:
        before: When the call that was refused began, by the monotonic clock.
    """
    ours = _ours()
    for one in ours:
        one.throw_away(before)
    return bool(ours)


def trouble() -> str:
    """Say why a call was refused, if new credentials could not be had; empty if they could."""
    return "; ".join(one.trouble for one in _ours() if one.trouble)


# By process and origin: all stores of a process share them.
_known: dict[tuple[int, Hashable], Credentials] = {}


def _ours() -> list[Credentials]:
    return [one for (process_id, _), one in list(_known.items()) if process_id == os.getpid()]


def _kept(origin: Hashable, make: Callable[[], Credentials]) -> Credentials:
    key = (os.getpid(), origin)
    if key not in _known:
        _known.setdefault(key, make())
    return _known[key]


def _asked(options: Mapping[str, str], vendor: Vendor | None) -> Credentials | None:
    """Return credentials that a vendor or a user's function gives; None if there is neither."""
    if vendor is not None:
        untold_s = _UNTOLD_OF_A_VENDOR_S
        return _kept(
            vendor,
            lambda: Credentials(vendor.origin, vendor.ask, first=vendor.first, untold_s=untold_s),
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
        raise SettingsError(what=f"{OPTION}={name!r} is no function", cure="name a function")
    ask: Ask = found
    return ask


def _from_file() -> Mapping[str, Any]:
    """Return the keys of the profile in use; empty if there are none."""
    path = os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or Path.home() / ".aws" / "credentials"
    parser = configparser.RawConfigParser()
    try:
        parser.read(path, encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError):
        return {}  # Its message would repeat a line of the file.
    profile = os.environ.get("AWS_PROFILE") or "default"
    if not parser.has_option(profile, "aws_access_key_id"):
        return {}
    return {
        "access_key_id": parser.get(profile, "aws_access_key_id"),
        "secret_access_key": parser.get(profile, "aws_secret_access_key", fallback=""),
        "token": parser.get(profile, "aws_session_token", fallback=None),
    }
