"""Open a catalog so that Holdfast can trust it: our storage, time-outs, no hidden retries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.io import PY_IO_IMPL
from requests.adapters import HTTPAdapter

from holdfast.errors import UnsupportedTableError
from holdfast.sinks.iceberg.file_io import FILE_IO_PATH
from holdfast.sinks.iceberg.settings import refuse_unsafe_catalog

# Connect, and wait for an answer. A commit without an answer is looked up, not waited for.
_TIMEOUT_S = (10.0, 60.0)


class _BoundedAdapter(HTTPAdapter):
    """requests waits for ever by default."""

    # The arguments are requests' own.
    def send(self, request: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        if kwargs.get("timeout") is None:
            kwargs["timeout"] = _TIMEOUT_S
        return super().send(request, *args, **kwargs)


def open_catalog(name: str, properties: Mapping[str, str]) -> Catalog:
    """Open a catalog by PyIceberg properties.

    Args:
        name: The catalog's name; SQL catalogs keep it in each row.
        properties: PyIceberg properties, `type` among them.

    Raises:
        UnsupportedTableError: The catalog is of a kind that cannot be written safely.
    """
    kind = properties.get("type", "rest" if "uri" in properties else "unknown")
    refuse_unsafe_catalog(name, kind)
    if properties.get("snapshot-loading-mode", "all") != "all":
        raise UnsupportedTableError(
            table=f"catalog {name!r}",
            what="snapshot-loading-mode hides snapshots, so a landed commit could be missed",
            cure="leave snapshot-loading-mode at 'all'",
        )
    catalog = load_catalog(name, **{**properties, "type": kind, PY_IO_IMPL: FILE_IO_PATH})
    # A REST server may send settings of its own: storage stays ours.
    catalog.properties[PY_IO_IMPL] = FILE_IO_PATH
    if isinstance(catalog, RestCatalog):
        for scheme in ("http://", "https://"):
            catalog._session.mount(scheme, _BoundedAdapter())  # noqa: SLF001 - no setting for it.
    return catalog


def single_post(catalog: Catalog) -> Callable[..., Any]:
    """Return the catalog's commit call without the client's own retries around it."""
    wrapped = getattr(type(catalog).commit_table, "__wrapped__", None)
    if wrapped is None:
        return catalog.commit_table
    return lambda *args: wrapped(catalog, *args)
