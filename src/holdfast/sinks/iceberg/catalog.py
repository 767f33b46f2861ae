"""Open a catalog so that Holdfast can trust it: our storage, time-outs, no hidden retries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.io import PY_IO_IMPL, FileIO
from pyiceberg.typedef import EMPTY_DICT, Properties
from requests import Session

from holdfast.errors import (
    CatalogUnavailableError,
    SettingsError,
    UnsupportedTableError,
)
from holdfast.sinks.iceberg.file_io import FILE_IO_PATH, HoldfastFileIO
from holdfast.sinks.iceberg.settings import refuse_unsafe_catalog
from holdfast.sinks.wording import in_short

# Connect, and wait for an answer. A commit without an answer is looked up, not waited for.
_TIMEOUT_S = (10.0, 60.0)


class TimedRestCatalog(RestCatalog):
    """PyIceberg's REST catalog, which would wait for an answer for ever."""

    def __init__(self, name: str, **properties: Any) -> None:  # noqa: ANN401 - as PyIceberg's.
        """Connect; `given` is what was given, without what the server adds to it."""
        self.given = properties
        super().__init__(name, **properties)

    def _create_session(self) -> Session:
        session = super()._create_session()
        # On the session, not on an adapter: signing mounts an adapter of its own.
        session.request = partial(session.request, timeout=_TIMEOUT_S)  # type: ignore[method-assign]
        return session


def open_catalog(name: str, properties: Mapping[str, str]) -> Catalog:
    """Open a catalog by PyIceberg properties.

    Args:
        name: The catalog's name; SQL catalogs keep it in each row.
        properties: PyIceberg properties, `type` among them.

    Raises:
        UnsupportedTableError: The catalog is of a kind that cannot be written safely.
        SettingsError: A package for it is missing.
        CatalogUnavailableError: It does not answer, or does not let us in.
    """
    kind = properties.get("type", "rest" if "uri" in properties else "unknown")
    refuse_unsafe_catalog(name, kind)
    if properties.get("snapshot-loading-mode", "all") != "all":
        raise UnsupportedTableError(
            table=f"catalog {name!r}",
            what="snapshot-loading-mode hides snapshots, so a landed commit could be missed",
            cure="leave snapshot-loading-mode at 'all'",
        )
    try:
        ours = {**properties, "type": kind, PY_IO_IMPL: FILE_IO_PATH}
        rest = kind == "rest"
        catalog = TimedRestCatalog(name, **ours) if rest else load_catalog(name, **ours)
    except ImportError as error:
        raise SettingsError(
            what=f"catalog {name!r} needs a package that is not installed ({error.name})",
            cure=f"pip install {error.name}",
        ) from error
    except Exception as error:  # Each kind of catalog has errors of its own.
        raise CatalogUnavailableError(table=f"catalog {name!r}", reason=in_short(error)) from error
    # A server or a table may name another FileIO, even code of its own: storage stays ours.
    catalog.properties[PY_IO_IMPL] = FILE_IO_PATH
    catalog._load_file_io = partial(_our_file_io, catalog)  # type: ignore[method-assign]  # noqa: SLF001
    return catalog


def _our_file_io(
    catalog: Catalog,
    properties: Properties = EMPTY_DICT,
    location: str | None = None,  # noqa: ARG001 - PyIceberg's signature.
) -> FileIO:
    return HoldfastFileIO({**catalog.properties, **properties})


def single_post(catalog: Catalog) -> Callable[..., Any]:
    """Return the catalog's commit call without the client's own retries around it."""
    wrapped = getattr(type(catalog).commit_table, "__wrapped__", None)
    if wrapped is None:
        return catalog.commit_table
    return lambda *args: wrapped(catalog, *args)
