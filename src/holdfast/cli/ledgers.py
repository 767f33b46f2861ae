"""The ledgers that a command line names: its store, and the runs in it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path

from holdfast.engine.ports import Ports
from holdfast.engine.prepare import Ledger
from holdfast.engine.status import run_folders
from holdfast.errors import SettingsError
from holdfast.model.run_id import decode_run_id, encode_run_id, is_run_folder
from holdfast.opening import open_store
from holdfast.storage.objects import ObjectStorage

# In front of where a value is, instead of the value itself.
_FROM_ENVIRONMENT, _FROM_FILE = "@env:", "@file:"
# For the help of each flag that takes values.
ELSEWHERE = "VALUE may be @env:NAME or @file:PATH"


def open_named_store(given: argparse.Namespace) -> tuple[str, ObjectStorage]:
    """Return the store's URI and how it is reached.

    Raises:
        SettingsError: No store is named, or an option is not NAME=VALUE.
    """
    return open_store(given.store, named_values(given.option) or None, None)


def open_ledger(given: argparse.Namespace) -> Ledger:
    """Return the ledger of the run that is named; nothing is read yet.

    Raises:
        SettingsError: No store is named, or the id cannot be one.
    """
    uri, storage = open_named_store(given)
    return Ledger.open(given.run, uri, storage, Ports())


def open_known_ledger(given: argparse.Namespace) -> Ledger:
    """Return the ledger of a run that is there.

    Raises:
        SettingsError: No store is named, or there is no such run in it.
        StoreUnavailableError: The store did not answer.
    """
    ledger = open_ledger(given)
    folders = run_folders(ledger.storage, ledger.store)
    if encode_run_id(ledger.run_id) not in folders:
        raise SettingsError(
            what=f"there is no run {ledger.run_id!r} in {ledger.store}",
            cure=_nearest(
                ledger.run_id, [decode_run_id(name) for name in folders if is_run_folder(name)]
            ),
        )
    return ledger


def _nearest(run_id: str, known: list[str]) -> str:
    """Say which run may be meant."""
    if not known:
        return "check --store: it holds no run at all"
    near = get_close_matches(run_id, known, n=3, cutoff=0.4)
    near = near or [one for one in known if run_id in one][:3]
    asked = f"did you mean {' or '.join(repr(one) for one in near)}? " if near else ""
    return f"{asked}`holdfast runs` lists all {len(known):,} runs of the store"


def named_values(pairs: Iterable[str], flag: str = "--option") -> dict[str, str]:
    """Read NAME=VALUE pairs.

    Args:
        pairs: What was given.
        flag: Where, for the error.

    Raises:
        SettingsError: One is none, or its value is somewhere else and not found there.
    """
    found = {}
    for number, pair in enumerate(pairs, start=1):
        name, equals, value = pair.partition("=")
        if not equals or not name:
            # It is not repeated: a value without its name may be a secret.
            raise SettingsError(
                what=f"{flag} number {number} is no NAME=VALUE",
                cure="give it as NAME=VALUE",
            )
        found[name] = value_of(value, f"{flag} {name}")
    return found


def value_of(given: str, what: str) -> str:
    """Return a value of the command line, or what an environment variable or a file holds.

    Every process of a machine may read the command lines of all others: a secret has no place
    there.

    Args:
        given: The value, `@env:NAME`, or `@file:PATH`.
        what: Whose value it is, for the error.

    Raises:
        SettingsError: There is no such variable, or the file cannot be read.
    """
    if given.startswith(_FROM_ENVIRONMENT):
        name = given.removeprefix(_FROM_ENVIRONMENT)
        if name not in os.environ:
            raise SettingsError(
                what=f"{what}: the environment has no variable {name!r}", cure="set and export it"
            )
        return os.environ[name]
    if given.startswith(_FROM_FILE):
        path = given.removeprefix(_FROM_FILE)
        try:
            # Editors and `echo` end a file with a line break; no value ends with one.
            return Path(path).read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, ValueError) as error:
            raise SettingsError(
                what=f"{what}: the file {path!r} cannot be read ({type(error).__name__})",
                cure="name a text file that holds the value and nothing else",
            ) from None  # Of bytes that are no text the error repeats some.
    return given
