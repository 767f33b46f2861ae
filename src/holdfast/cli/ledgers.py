"""The ledgers that a command line names: its store, and the runs in it."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from difflib import get_close_matches

from holdfast.engine.ports import Ports
from holdfast.engine.prepare import Ledger
from holdfast.engine.status import run_folders
from holdfast.errors import SettingsError
from holdfast.model.run_id import decode_run_id, encode_run_id
from holdfast.opening import open_store
from holdfast.storage.objects import ObjectStorage


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
            cure=_nearest(ledger.run_id, [decode_run_id(one) for one in folders]),
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
        SettingsError: One is none.
    """
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise SettingsError(what=f"{flag} {pair!r}", cure="give it as NAME=VALUE")
        found[name] = value
    return found
