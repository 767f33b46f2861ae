"""The table that a command line names, without a Spark session that knows its catalog."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from holdfast.cli.ledgers import ELSEWHERE, named_values
from holdfast.errors import SettingsError
from holdfast.model.identity import Identity
from holdfast.opening import configured_catalog, open_table
from holdfast.sinks.base import Sink
from holdfast.sinks.targets import IcebergTable, LanceTable, Target, target_of


def add_table_arguments(parser: argparse.ArgumentParser, *, of_run: bool) -> None:
    """Say how a table is named.

    Args:
        parser: Whose arguments these are.
        of_run: Whether a run's ledger names the table already.
    """
    otherwise = "; by default the one that the run names" if of_run else ""
    parser.add_argument(
        "--table",
        metavar="NAME",
        help="catalog.namespace.table (namespace.table with --catalog), or a Lance dataset's "
        f"place{otherwise}",
    )
    parser.add_argument(
        "--catalog",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a property of the catalog as in PyIceberg (type=rest, uri=...); may be given again; "
        f"{ELSEWHERE}",
    )
    parser.add_argument(
        "--table-option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help=f"a storage option of a Lance dataset; may be given again; {ELSEWHERE}",
    )


def sink_opener(given: argparse.Namespace) -> Callable[[Identity], Sink]:
    """Return how a run's table is opened, once the ledger has said which one it is.

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
    """Return the table that is meant, with all that is needed to open it.

    Args:
        given: The command line.
        identity: What the run's ledger says, if it is a run's table.

    Raises:
        SettingsError: It is not known how its catalog is reached.
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
        if given.table is None:  # The ledger has the catalog's name in front.
            properties, name = {"name": first, **properties}, rest
        elif identity is not None and identity.table.endswith(f".{name}"):
            properties = {"name": identity.table.removesuffix(f".{name}"), **properties}
        return IcebergTable(name, catalog=properties, branch=branch)
    found = configured_catalog(first)
    if found is None:
        raise SettingsError(
            what=f"{name}: it is not known here how the catalog {first!r} is reached",
            cure="give its properties as PyIceberg takes them (--catalog type=rest --catalog "
            "uri=https://...), or put them into PyIceberg's own configuration "
            f"(.pyiceberg.yaml, or PYICEBERG_CATALOG__{first.upper()}__URI and so on)",
        )
    return IcebergTable(rest, catalog={"name": first, **found}, branch=branch)
