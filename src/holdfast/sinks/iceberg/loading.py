"""Load a table: its facts, its storage options, and how its keys are renewed.

A REST catalog may vend keys for a table's files each time the table is loaded, valid for an hour or
less. Workers get the driver's keys, and ask the catalog for new ones in time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, cast

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.table import Table

from holdfast.errors import CatalogUnavailableError, TableMissingError
from holdfast.model.lasting import lasts
from holdfast.sinks.base import TableView
from holdfast.sinks.iceberg.catalog import TimedRestCatalog, open_catalog
from holdfast.sinks.iceberg.file_io import HoldfastFileIO
from holdfast.sinks.iceberg.manifests import ExactTable
from holdfast.text import reason_and_cause


# ---- Facts about a table that matter when a job is set up
@dataclass(frozen=True, slots=True, kw_only=True)
class TableFacts:
    """A few facts about an Iceberg table."""

    location: str
    format_version: int
    snapshots: int
    # Whether writers are asked to hold back their snapshots until they have been audited.
    is_audited: bool


def table_facts(view: TableView) -> TableFacts:
    """Return the facts of a loaded table."""
    table: Table = view.handle
    return TableFacts(
        location=table.location(),
        format_version=table.metadata.format_version,
        snapshots=len(table.metadata.snapshots),
        is_audited=table.properties.get("write.wap.enabled", "false").lower() == "true",
    )


# ---- Load a table: its storage options can be trusted, and its keys can be renewed

_KEY = "s3.access-key-id"
_SECRET = "s3.secret-access-key"  # noqa: S105 - a name.
_TOKEN = "s3.session-token"  # noqa: S105 - a name.
_EXPIRES_AT_MS = "s3.session-token-expires-at-ms"


def load_table(catalog: Catalog, identifier: str, name: str) -> Table:
    """Load a table's current state.

    Args:
        catalog: An open catalog, from `open_catalog`.
        identifier: `namespace.table`.
        name: The table's display name.

    Raises:
        TableMissingError: There is no such table.
        CatalogUnavailableError: The catalog does not answer.
    """
    try:
        table = catalog.load_table(identifier)
    except (NoSuchTableError, NoSuchNamespaceError) as error:
        _, cause = reason_and_cause(error, catalog.properties)
        raise TableMissingError(table=name, what="there is no such table") from cause
    except Exception as error:  # noqa: BLE001 - each kind of catalog has errors of its own.
        reason, cause = reason_and_cause(error, catalog.properties)
        raise CatalogUnavailableError(
            table=name, reason=reason, retry_safe=not lasts(error)
        ) from cause
    options = dict(table.io.properties)  # Only the catalog's: see `catalog`.
    vendor = _vendor(catalog, identifier, table.metadata_location, options)
    if vendor is not None:
        options = {k: v for k, v in options.items() if k not in (_KEY, _SECRET, _TOKEN)}
    return ExactTable.of(table, HoldfastFileIO(options, vendor))


def io_of(table: Table) -> HoldfastFileIO:
    """Return the storage of a table that `load_table` returned."""
    return cast("HoldfastFileIO", table.io)


def _vendor(
    catalog: Catalog, identifier: str, location: str, options: Mapping[str, Any]
) -> CatalogKeys | None:
    """Return what supplies the keys in a table's options; None if they are the user's own."""
    if not isinstance(catalog, TimedRestCatalog):
        return None
    given = catalog.given
    if options.get(_KEY) == given.get(_KEY):
        return None
    # A token of the user's own belongs to another key.
    theirs = {k: v for k, v in options.items() if k != _TOKEN or v != given.get(_TOKEN)}
    # Objects of this process are not sent along; a worker has its own credential chain.
    plain = {k: v for k, v in given.items() if isinstance(v, str | int | float | dict)}
    settings = json.dumps(plain, sort_keys=True, default=str)
    return CatalogKeys(
        catalog=catalog.name,
        identifier=identifier,
        settings=hashlib.sha256(settings.encode()).hexdigest(),
        location=location,
        first=_keys_in(theirs),
        properties=plain,
    )


@dataclass(frozen=True, kw_only=True)
class CatalogKeys:
    """The keys that a REST catalog vends for one table: a `Vendor`."""

    catalog: str
    identifier: str
    # A digest, because one name may refer to several catalogs, warehouses and logins.
    settings: str = field(repr=False)
    # The location of its metadata: selects among keys for several locations.
    location: str = field(compare=False, repr=False)
    first: Mapping[str, Any] = field(compare=False, repr=False)
    properties: Mapping[str, Any] = field(compare=False, repr=False)

    @property
    def origin(self) -> str:
        """The catalog and the table."""
        return f"catalog {self.catalog!r}, for table {self.identifier}"

    def ask(self) -> Mapping[str, Any]:
        """Ask the catalog over a new connection: the token of the last one may have expired.

        Raises:
            CatalogUnavailableError: The catalog does not answer.
            TableMissingError: The table is gone.
            LookupError: The catalog no longer vends keys.
        """
        catalog = cast("RestCatalog", open_catalog(self.catalog, self.properties))
        try:
            options = catalog.load_credentials(self.identifier, self.location)
        except Exception:  # noqa: BLE001 - few servers have it. Loading the table shows more.
            options = {}
        if options.get(_KEY):
            return _keys_in(options)
        vendor = io_of(load_table(catalog, self.identifier, self.identifier)).vendor
        if vendor is None:
            raise LookupError("the catalog no longer vends keys")
        return vendor.first


def _keys_in(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return vended keys in the form that `storage.credentials` expects."""
    ends = None
    with contextlib.suppress(ValueError, OverflowError, OSError):  # Omit an impossible expiry.
        ends = datetime.fromtimestamp(int(options.get(_EXPIRES_AT_MS, "")) / 1000, timezone.utc)
    return {
        "access_key_id": options.get(_KEY),
        "secret_access_key": options.get(_SECRET),
        "token": options.get(_TOKEN),
        "expires_at": ends,
    }
