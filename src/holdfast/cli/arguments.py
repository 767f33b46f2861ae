"""What a command line names: a store, the runs in it, and a table without a Spark session."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from urllib.parse import unquote, urlsplit

from holdfast.engine.watch import refuse_unknown
from holdfast.errors import SettingsError
from holdfast.ledger.ledger import Ledger, Ports
from holdfast.model.identity import Identity
from holdfast.opening import configured_catalog, open_store, open_table
from holdfast.sinks.base import Sink
from holdfast.sinks.targets import IcebergTable, LanceTable, Target, target_of
from holdfast.storage.objects import ObjectStorage

# ---- The ledgers that a command line names: its store, and the runs in it

# Prefixes for a value that is given by its location.
_FROM_ENVIRONMENT, _FROM_FILE = "@env:", "@file:"
# For the help of each option that takes values.
ELSEWHERE = "VALUE may be @env:NAME or @file:PATH"


def open_named_store(given: argparse.Namespace) -> tuple[str, ObjectStorage]:
    """Return the store's URI and how it is reached.

    Raises:
        SettingsError: No store is named, or an option is not NAME=VALUE.
    """
    store: str | None = given.store
    if not store and not os.environ.get("HOLDFAST_STORE"):
        cure = "give --store URI, or set HOLDFAST_STORE"
        raise SettingsError(what="no store is named", cure=cure)
    if store and "://" not in store and not store.startswith(("/", "file:")):
        store = os.path.abspath(store)  # Relative to the working directory, as in a shell.  # noqa: PTH100
    return open_store(store, named_values(given.option) or None, None)


def open_existing_store(given: argparse.Namespace) -> tuple[str, ObjectStorage]:
    """Return a store that runs have been written to, as far as can be seen.

    Raises:
        SettingsError: As for `open_named_store`, or the store is a folder that does not exist.
    """
    uri, storage = open_named_store(given)
    # A bucket does not show whether it was mistyped; a folder does.
    if uri.startswith("file://") and not Path(unquote(urlsplit(uri).path)).is_dir():
        raise SettingsError(what=f"there is no folder {uri}", cure="check --store")
    return uri, storage


def open_ledger(given: argparse.Namespace) -> Ledger:
    """Return the ledger of the named run; nothing is read yet.

    Raises:
        SettingsError: No store is named, or the id is invalid.
    """
    uri, storage = open_named_store(given)
    return Ledger.open(given.run, uri, storage, Ports())


def open_known_ledger(given: argparse.Namespace) -> Ledger:
    """Return the ledger of an existing run.

    Raises:
        SettingsError: No store is named, or there is no such run in it.
        StoreUnavailableError: The store did not answer.
    """
    uri, storage = open_existing_store(given)
    ledger = Ledger.open(given.run, uri, storage, Ports())
    refuse_unknown(ledger)
    return ledger


def named_values(pairs: Iterable[str], flag: str = "--option") -> dict[str, str]:
    """Read NAME=VALUE pairs.

    Args:
        pairs: The given pairs.
        flag: The option they were given with, for the error.

    Raises:
        SettingsError: One is not a pair, or its value is not found in the place it names.
    """
    found = {}
    for number, pair in enumerate(pairs, start=1):
        name, equals, value = pair.partition("=")
        if not equals or not name:
            # The text is not repeated: a value without its name may be a secret.
            raise SettingsError(
                what=f"{flag} number {number} is not NAME=VALUE",
                cure="give it as NAME=VALUE",
            )
        found[name] = value_of(value, f"{flag} {name}")
    return found


def value_of(given: str, what: str) -> str:
    """Return a command-line value, or the content of an environment variable or a file.

    Every process of a machine may read the command lines of all others, so a secret must not be on
    one.

    Args:
        given: The value, `@env:NAME`, or `@file:PATH`.
        what: What the value is for, used in the error.

    Raises:
        SettingsError: There is no such variable, or the file cannot be read.
    """
    if given.startswith(_FROM_ENVIRONMENT):
        name = given.removeprefix(_FROM_ENVIRONMENT)
        if name not in os.environ:
            raise SettingsError(
                what=f"{what}: there is no environment variable {name!r}", cure="set and export it"
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
            ) from None  # For bytes that are not text, the error repeats some.
    return given


# ---- The table that a command line names, without a Spark session that knows its catalog
def add_table_arguments(parser: argparse.ArgumentParser, *, of_run: bool) -> None:
    """Add the arguments that name a table.

    Args:
        parser: The parser to add them to.
        of_run: Whether a run's ledger already names the table.
    """
    otherwise = "; by default the run's table" if of_run else ""
    parser.add_argument(
        "--table",
        metavar="NAME",
        help="catalog.namespace.table (namespace.table with --catalog), or a Lance dataset's "
        f"location{otherwise}",
    )
    parser.add_argument(
        "--catalog",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a catalog property, as in PyIceberg (type=rest, uri=...); may be repeated; "
        f"{ELSEWHERE}",
    )
    parser.add_argument(
        "--table-option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help=f"a storage option of a Lance dataset; may be repeated; {ELSEWHERE}",
    )


def sink_opener(given: argparse.Namespace) -> Callable[[Identity], Sink]:
    """Return a function that opens a run's table once the ledger has named it.

    Raises:
        SettingsError: A property is not NAME=VALUE.
    """
    known: list[Sink] = []

    def open_sink(identity: Identity) -> Sink:
        if not known:
            known.append(open_table(named_target(given, identity), None, of_known_run=True))
        return known[0]

    return open_sink


def named_target(given: argparse.Namespace, identity: Identity | None = None) -> Target:
    """Return the named table, with all that is needed to open it.

    Args:
        given: The command line.
        identity: The ledger's record of the run, if it is a run's table.

    Raises:
        SettingsError: It is not known how to reach its catalog.
    """
    name = given.table or (identity.table if identity else "")
    branch = identity.branch if identity else "main"
    target = target_of(name, branch)
    if isinstance(target, LanceTable):
        options = named_values(given.table_option, "--table-option")
        return LanceTable(target.uri, storage_options=options or None)
    first, _, rest = name.partition(".")
    properties = named_values(given.catalog, "--catalog")
    if properties:
        if given.table is None:  # In the ledger, the catalog's name comes first.
            properties, name = {"name": first, **properties}, rest
        elif identity is not None and identity.table.endswith(f".{name}"):
            properties = {"name": identity.table.removesuffix(f".{name}"), **properties}
        return IcebergTable(name, catalog=properties, branch=branch)
    found = configured_catalog(first)
    if found is None:
        raise SettingsError(
            what=f"{name}: how to reach its catalog {first!r} is unknown",
            cure="give its properties, as for PyIceberg (--catalog type=rest --catalog "
            "uri=https://...), or put them into PyIceberg's own configuration "
            f"(.pyiceberg.yaml, or PYICEBERG_CATALOG__{first.upper()}__URI and so on)",
        )
    return IcebergTable(rest, catalog={"name": first, **found}, branch=branch)
