"""Catalogs: found in Spark's or PyIceberg's settings, and opened so that they can be trusted.

Spark users configure their catalog in `spark.sql.catalog.<name>.*`, under the names of Iceberg's
Java library. Most names are the same in PyIceberg; this module maps the rest, and refuses catalogs
that cannot do a true compare-and-set.

Everyone who may alter a table can set its properties. PyIceberg merges them over the catalog's own
when it opens a table's files, and imports the classes that they name: `s3.endpoint` there would
receive the signed requests of every job that writes the table. Here they choose neither storage nor
code: `_load_file_io` and `_update_and_stage_table` are overridden, and a PyIceberg version that no
longer goes through them is refused before it is used.
"""

from __future__ import annotations

import inspect
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote
from uuid import UUID

import msgspec
import pyiceberg
from pyiceberg.catalog import Catalog, MetastoreCatalog, load_catalog
from pyiceberg.catalog.rest import RestCatalog, TableResponse
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io import PY_IO_IMPL, FileIO
from pyiceberg.table import StagedTable, Table
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    SetPropertiesUpdate,
    TableRequirement,
    TableUpdate,
)
from pyiceberg.typedef import EMPTY_DICT, Identifier, Properties
from pyiceberg.utils.config import Config
from requests import Response, Session

from holdfast.errors import CatalogUnavailableError, SettingsError, UnsupportedTableError
from holdfast.model.lasting import lasts
from holdfast.sinks.iceberg.data_file import CODE_PROPERTIES, without_code
from holdfast.sinks.iceberg.file_io import FILE_IO_PATH, HoldfastFileIO
from holdfast.text import in_short, reason_and_cause


# ---- PyIceberg's own configuration of catalogs: its YAML file, and the environment
def configured(name: str) -> dict[str, str] | None:
    """Return the properties of a catalog, or None if it is not configured.

    Args:
        name: The catalog's name, as in `.pyiceberg.yaml` or `PYICEBERG_CATALOG__<NAME>__URI`.

    Raises:
        SettingsError: The configuration cannot be read.
    """
    try:
        found = Config().get_catalog_config(name)
    except Exception as error:  # noqa: BLE001 - YAML has errors of its own.
        raise SettingsError(
            what=f"PyIceberg's configuration cannot be read ({in_short(error)})",
            cure="fix .pyiceberg.yaml or the PYICEBERG_* variables",
        ) from None  # It would repeat nearby lines, which may hold a secret.
    return {key: str(value) for key, value in found.items()} if found else None


# ---- From Spark's catalog settings to PyIceberg's properties

_IMPLEMENTATIONS = {
    "org.apache.iceberg.rest.RESTCatalog": "rest",
    "org.apache.iceberg.jdbc.JdbcCatalog": "sql",
    "org.apache.iceberg.aws.glue.GlueCatalog": "glue",
    "org.apache.iceberg.hive.HiveCatalog": "hive",
    "org.apache.iceberg.hadoop.HadoopCatalog": "hadoop",
    "org.apache.iceberg.nessie.NessieCatalog": "nessie",
}
_TYPES = {"rest": "rest", "jdbc": "sql", "sql": "sql", "glue": "glue"}
_REFUSED = {
    "hive": (
        "its client does not check the expected metadata location, so two commits can both land"
    ),
    "hadoop": "a file system without atomic rename can lose a commit",
    "nessie": "the native Nessie API is not supported",
}
# Settings of Spark or Java that PyIceberg does not use.
_JAVA_ONLY = ("catalog-impl", "io-impl", "type", "default-namespace", "cache-enabled")
# How to log in to a REST catalog. PyIceberg reads `credential` and `token` on its own.
_AUTH = "rest.auth."
_SIGNS = "rest.sigv4-enabled"
_SIGNING_KEY = "rest.access-key-id"
_JDBC_DRIVERS = {"postgresql": "postgresql+psycopg2", "sqlite": "sqlite", "mysql": "mysql"}


def pyiceberg_properties(catalog: str, settings: Mapping[str, str]) -> dict[str, Any]:
    """Map one catalog's Spark settings to PyIceberg's properties.

    Args:
        catalog: The catalog's name in Spark.
        settings: The settings below `spark.sql.catalog.<name>.`, by name.

    Raises:
        UnsupportedTableError: The catalog is of a kind that cannot be written safely, or that
            Holdfast cannot log in to.
    """
    kind = settings.get("type") or _IMPLEMENTATIONS.get(settings.get("catalog-impl", ""), "")
    kind = _TYPES.get(kind.lower(), kind.lower())
    refuse_unsafe_catalog(catalog, kind or settings.get("catalog-impl", "unknown"))
    properties: dict[str, Any] = {
        name: value
        for name, value in settings.items()
        if name not in _JAVA_ONLY and not name.startswith(_AUTH)
    }
    properties["type"] = kind
    if kind == "rest":
        properties |= _login(catalog, settings)
    if region := settings.get("client.region"):
        properties.setdefault("s3.region", region)
        if kind == "glue":
            properties.setdefault("glue.region", region)
    if kind == "glue" and (catalog_id := settings.get("glue.id")):
        properties["glue.id"] = catalog_id
    if kind == "sql":
        properties["uri"] = _sqlalchemy_url(catalog, settings)
        for name in [name for name in properties if name.startswith("jdbc.")]:
            del properties[name]
    return properties


def _login(catalog: str, settings: Mapping[str, str]) -> dict[str, Any]:
    """Return how PyIceberg should log in to a REST catalog.

    Raises:
        UnsupportedTableError: The login method is not supported.
    """
    way = settings.get(f"{_AUTH}type", "").lower()
    if way == "sigv4" or settings.get(_SIGNS, "").lower() == "true":
        if _SIGNING_KEY in settings:  # PyIceberg would silently sign as another user.
            raise UnsupportedTableError(
                table=f"catalog {catalog!r}",
                what=f"{_SIGNING_KEY} is set to sign requests, but PyIceberg does not support it",
                cure="sign with the environment's keys, or pass hf.IcebergTable(name, "
                "catalog={...}) with client.access-key-id",
            )
        return {_SIGNS: "true"}
    if way in ("", "none", "oauth2"):
        return {}
    if way == "basic":
        names = ("username", "password")
        login = {name: settings.get(f"{_AUTH}basic.{name}", "") for name in names}
        return {"auth": {"type": "basic", "basic": login}}
    raise UnsupportedTableError(
        table=f"catalog {catalog!r}",
        what=f"{_AUTH}type is {way!r}, a login method that Holdfast does not support",
        cure="pass hf.IcebergTable(name, catalog={...}) with PyIceberg's own `auth`",
    )


def refuse_unsafe_catalog(catalog: str, kind: str) -> None:
    """Refuse catalogs whose commit is not a compare-and-set.

    Raises:
        UnsupportedTableError: The catalog is one of these.
    """
    if kind in set(_TYPES.values()):
        return
    raise UnsupportedTableError(
        table=f"catalog {catalog!r}",
        what=f"a catalog of kind {kind!r} is not supported: "
        f"{_REFUSED.get(kind, 'Holdfast does not know this kind')}",
        cure="use a REST, SQL (JDBC) or Glue catalog",
    )


def _sqlalchemy_url(catalog: str, settings: Mapping[str, str]) -> str:
    """Turn `jdbc:postgresql://host/db` with `jdbc.user` into an SQLAlchemy URL.

    Raises:
        UnsupportedTableError: It is not a JDBC URL of a supported database.
    """
    uri = settings.get("uri", "")
    match = re.fullmatch(r"jdbc:(\w+):(.*)", uri)
    if match is None:
        if "://" in uri and not uri.startswith("jdbc:"):
            return uri
        raise UnsupportedTableError(
            table=f"catalog {catalog!r}",
            what="its uri is not a JDBC URL",
            cure="set uri to jdbc:postgresql://host/database or jdbc:sqlite:/file",
        )
    database, rest = match.groups()
    if database not in _JDBC_DRIVERS:
        raise UnsupportedTableError(
            table=f"catalog {catalog!r}",
            what=f"its database {database!r} is not supported",
            cure="pass hf.IcebergTable(name, catalog={'type': 'sql', 'uri': <SQLAlchemy URL>})",
        )
    if database == "sqlite":
        path = rest.removeprefix("file:").partition("?")[0]
        return f"sqlite:///{path}"
    location = rest.removeprefix("//")
    user, password = settings.get("jdbc.user"), settings.get("jdbc.password")
    login = quote(user, safe="") if user else ""
    if user and password:
        login += f":{quote(password, safe='')}"
    return f"{_JDBC_DRIVERS[database]}://{login}{'@' if login else ''}{location}"


# ---- Open a catalog that Holdfast can trust: our storage, timeouts, no hidden retries

# Connect and read timeouts. A commit without an answer is looked up, not waited for.
_TIMEOUT_S = (10.0, 60.0)
_FILE_IO, _STAGE, _ANSWER = "_load_file_io", "_update_and_stage_table", "_response_to_table"
# By kind of catalog: which PyIceberg methods must call which others, so that every path to a
# table's files goes through the overrides here.
_WAYS = {
    "rest": {"load_table": _ANSWER, _ANSWER: _FILE_IO, "__init__": "_fetch_config"},
    "sql": {
        "load_table": "_convert_orm_to_iceberg",
        "_convert_orm_to_iceberg": _FILE_IO,
        "commit_table": _STAGE,
        _STAGE: _FILE_IO,
    },
    "glue": {
        "load_table": "_convert_glue_to_iceberg",
        "_convert_glue_to_iceberg": _FILE_IO,
        "commit_table": _STAGE,
        _STAGE: _FILE_IO,
    },
}

# By kind of catalog: its own field names that it stores next to a table's properties.
_POINTERS = {"glue": ("metadata_location", "previous_metadata_location", "table_type")}


# Settings that a server sends along with a table and that expire.
_EXPIRES = re.compile("key|secret|token|credential|sas|expir", re.IGNORECASE)
_NOT_MODIFIED, _IF_OTHER = 304, "If-None-Match"
# In the address of every request about one table.
_TABLE = "/tables/"
_REDIRECTS = range(300, 400)
# What a server may not set, neither in its configuration nor beside a table: code that runs here,
# logins and where they are sent, how connections are secured, and how much of a table is shown.
_NOT_FROM_SERVERS = re.compile(
    r"(auth|ssl|py-|rest\.sigv4-|oauth2-server-uri$|snapshot-loading-mode$|holdfast\.)"
    r"|header\..*(auth|cookie|token|key|secret|credential|password)",
    re.IGNORECASE,
)


def _from_server(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a server may set among what it has sent."""
    return {name: value for name, value in config.items() if not _NOT_FROM_SERVERS.match(name)}


class RedirectedError(Exception):
    """A catalog's address answers with another address."""

    lasts = True

    def __init__(self, response: Response) -> None:
        """Name both addresses, without queries: these may hold a login."""
        asked = response.url.partition("?")[0]
        other = response.headers.get("Location", "no address").partition("?")[0]
        super().__init__(
            f"{asked} answers with a redirect ({response.status_code}) to {other}. Holdfast "
            "follows none: a redirected commit could be taken for a look at the table. Set the "
            "catalog's `uri` to the address that answers itself"
        )


class _UnchangedError(Exception):
    """A server's answer that a table is still as it was when it was last loaded."""

    def __init__(self, table: Table) -> None:
        super().__init__(table)
        self.table = table


class _PostedError(Exception):
    """A server's answer to a commit. PyIceberg would parse all metadata in it."""

    def __init__(self, answer: bytes) -> None:
        super().__init__(answer)
        self.answer = answer


class _Added(msgspec.Struct):
    id: int = msgspec.field(name="snapshot-id")


class _Metadata(msgspec.Struct):
    uuid: UUID = msgspec.field(name="table-uuid")
    snapshots: list[_Added] = []


class _Committed(msgspec.Struct):
    """The part of an answer to a commit that distinguishes it from other answers."""

    metadata: _Metadata
    location: str = msgspec.field(name="metadata-location")


class _Exchange(threading.local):
    """What one thread's request is about, and what its answer said."""

    # A table that is known already, if there is one, and its tag; and the tag of the answer.
    known: Table | None = None
    known_tag = ""
    tag = ""
    # Whether the table's settings came without keys, which expire.
    lasts = False
    is_post = False


class TimedRestCatalog(RestCatalog):
    """PyIceberg's REST catalog with timeouts; without them it would wait forever.

    The metadata of a table with a long history is large. It is parsed once as long as it stays the
    same, and the copy in the answer to a commit is not parsed at all.
    """

    def __init__(self, name: str, **properties: Any) -> None:  # noqa: ANN401 - as PyIceberg's.
        """Connect; `given` holds the given properties, without those that the server adds."""
        self.given = properties
        self._exchange = _Exchange()
        self._last: tuple[str, Table] | None = None
        super().__init__(name, **properties)

    def load_table(self, identifier: str | Identifier) -> Table:
        """Load a table; if the server says that it has not changed, return it as it was."""
        exchange, known = self._exchange, self._last
        if known is not None and known[1].name() == self.identifier_to_tuple(identifier):
            exchange.known_tag, exchange.known = known
        try:
            table: Table = super().load_table(identifier)
        except _UnchangedError as unchanged:
            return unchanged.table
        finally:
            exchange.known_tag, exchange.known = "", None
        self._last = (exchange.tag, table) if exchange.tag and exchange.lasts else None
        return table

    def post_once(
        self,
        table: Table,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> None:
        """Commit without the client's own retries.

        Raises:
            ValidationError: The answer is not one to this commit: it may have landed or not.
        """
        self._exchange.is_post = True
        try:
            post = RestCatalog.commit_table
            getattr(post, "__wrapped__", post)(self, table, requirements, updates)
        except _PostedError as posted:
            answer = msgspec.json.decode(posted.answer, type=_Committed)
            if answer.metadata.uuid != table.metadata.table_uuid:
                raise msgspec.ValidationError("the answer is about another table") from None
            wanted = {u.snapshot.snapshot_id for u in updates if isinstance(u, AddSnapshotUpdate)}
            if not wanted or not wanted <= {snapshot.id for snapshot in answer.metadata.snapshots}:
                raise msgspec.ValidationError("the answer lacks the snapshot") from None
        finally:
            self._exchange.is_post = False

    def _fetch_config(self) -> None:
        super()._fetch_config()
        own = {k: v for k, v in self.given.items() if _NOT_FROM_SERVERS.match(k)}
        self.properties = {**_from_server(self.properties), **own}

    def _create_session(self) -> Session:
        session = super()._create_session()
        # On the session, not on an adapter: signing mounts its own adapter.
        session.request = partial(self._request, session.request)  # type: ignore[method-assign]
        return session

    def _request(
        self,
        request: Callable[..., Response],
        method: str,
        url: str,
        **options: Any,  # noqa: ANN401 - those of requests.
    ) -> Response:
        options = {**options, "allow_redirects": False, "timeout": _TIMEOUT_S}
        exchange, is_login = self._exchange, _TABLE not in url  # Or another request.
        if exchange.known_tag and not is_login:
            options["headers"] = {**(options.get("headers") or {}), _IF_OTHER: exchange.known_tag}
        response = request(method, url, **options)
        if exchange.known and not is_login and response.status_code == _NOT_MODIFIED:
            raise _UnchangedError(exchange.known)
        if response.status_code in _REDIRECTS:
            raise RedirectedError(response)
        if exchange.is_post and response.ok and not is_login:
            raise _PostedError(response.content)
        if not is_login:
            exchange.tag = response.headers.get("ETag") or ""
        return response

    def _load_file_io(
        self,
        properties: Properties = EMPTY_DICT,  # noqa: ARG002 - a table's among them.
        location: str | None = None,  # noqa: ARG002 - PyIceberg's signature.
    ) -> FileIO:
        return HoldfastFileIO(self.properties)

    def _response_to_table(
        self, identifier_tuple: tuple[str, ...], table_response: TableResponse
    ) -> Table:
        table = super()._response_to_table(identifier_tuple, table_response)
        # What the server sends next to the table comes from the catalog itself: keys, an endpoint.
        keys = self._resolve_storage_credentials(
            table_response.storage_credentials, table_response.metadata_location
        )
        sent = _from_server(table_response.config)
        table.io = HoldfastFileIO({**self.properties, **sent, **_from_server(keys)})
        expires = any(_EXPIRES.search(name) for name in table_response.config)
        self._exchange.lasts = not expires and not table_response.storage_credentials
        return table


def open_catalog(name: str, properties: Mapping[str, str]) -> Catalog:
    """Open a catalog with PyIceberg properties.

    Args:
        name: The catalog's name; SQL catalogs store it in each row.
        properties: PyIceberg properties, including `type`.

    Raises:
        UnsupportedTableError: The catalog is of a kind that cannot be written safely.
        SettingsError: A package for it is missing, or the PyIceberg version bypasses our guards.
        CatalogUnavailableError: The catalog does not answer, or refuses the login.
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
    except Exception as error:  # noqa: BLE001 - each kind of catalog has errors of its own.
        reason, cause = reason_and_cause(error, ours)
        raise CatalogUnavailableError(
            table=f"catalog {name!r}",
            reason=reason,
            # An error that is not a server's answer is about the properties.
            retry_safe=not lasts(error) and type(error) not in (KeyError, ValueError),
        ) from cause
    _refuse_unguarded(kind, type(catalog))
    if isinstance(catalog, MetastoreCatalog):
        # On the instance: the classes need packages that not everyone has, and PyIceberg stays
        # unchanged for the rest of the user's process.
        stage = catalog._update_and_stage_table  # noqa: SLF001
        catalog._load_file_io = partial(_catalogs_file_io, catalog)  # type: ignore[method-assign]  # noqa: SLF001
        catalog._update_and_stage_table = partial(_stage, catalog, stage)  # type: ignore[method-assign]  # noqa: SLF001
        if kind == "sql":
            _parse_once(catalog)
    return catalog


def _parse_once(catalog: Any) -> None:  # noqa: ANN401 - the class needs SQLAlchemy.
    """Keep the last table that an SQL catalog has loaded: metadata files never change."""
    convert = catalog._convert_orm_to_iceberg  # noqa: SLF001
    last: list[tuple[object, Table]] = []

    def converted(row: Any) -> Table:  # noqa: ANN401 - PyIceberg's.
        facts = (row.table_namespace, row.table_name, row.metadata_location)
        if last and last[0][0] == facts:
            return last[0][1]
        table: Table = convert(row)
        last[:] = [(facts, table)]
        return table

    catalog._convert_orm_to_iceberg = converted  # noqa: SLF001


def _refuse_unguarded(kind: str, opened: type[Catalog]) -> None:
    """Refuse a PyIceberg version that does not go through the overrides here.

    Raises:
        SettingsError: A table's properties could choose storage or code.
    """
    for name, hook in _WAYS[kind].items():
        if not _calls(opened, name, hook):
            raise SettingsError(
                what=f"PyIceberg {pyiceberg.__version__} cannot be used: in its {kind} catalog, "
                f"{name} does not call {hook}, by which Holdfast keeps a table's properties from "
                "choosing storage and code",
                cure="install a version of PyIceberg that Holdfast was tested with",
            )


def _calls(opened: type[Catalog], name: str, hook: str) -> bool:
    """Whether PyIceberg has both methods, and the first one's code names the second."""
    theirs = [vars(base) for base in opened.__mro__ if base is not TimedRestCatalog]
    method = next((names[name] for names in theirs if name in names), None)
    code = getattr(inspect.unwrap(method), "__code__", None) if method is not None else None
    return code is not None and hook in code.co_names and any(hook in names for names in theirs)


def pointers_among(catalog: Catalog, properties: Mapping[str, str]) -> list[str]:
    """Return the properties of a table that would overwrite the catalog's metadata pointer.

    PyIceberg writes a table's properties over the catalog's own fields of these names: a commit
    would be reported as successful and leave the table unchanged.

    Args:
        catalog: An open catalog.
        properties: The table's properties.
    """
    pointers = _POINTERS.get(str(catalog.properties.get("type")), ())
    return [name for name in pointers if name in properties]


def _catalogs_file_io(
    catalog: Catalog,
    properties: Properties = EMPTY_DICT,  # noqa: ARG001 - a table's.
    location: str | None = None,  # noqa: ARG001 - PyIceberg's signature.
) -> FileIO:
    return HoldfastFileIO(catalog.properties)


def _stage(  # noqa: PLR0913, PLR0917 - four of them are PyIceberg's.
    catalog: Catalog,
    stage: Callable[..., StagedTable],
    current_table: Table | None,
    table_identifier: Identifier,
    requirements: tuple[TableRequirement, ...],
    updates: tuple[TableUpdate, ...],
) -> StagedTable:
    """Make a table's next metadata without the code that its properties name.

    PyIceberg asks that code where to write the metadata. The property is removed first, and put
    back into what is written: it belongs to the table, and others may want it.

    Raises:
        ValueError: An update would name code; Holdfast makes no such update.
        CommitFailedException: The commit would have no effect. The next look shows this.
    """
    for update in updates:
        if isinstance(update, SetPropertiesUpdate) and update.updates.keys() & CODE_PROPERTIES:
            raise ValueError("Holdfast does not set properties that name code")
    if current_table is None:
        return stage(current_table, table_identifier, requirements, updates)
    metadata = current_table.metadata
    if pointers_among(catalog, metadata.properties):
        raise CommitFailedException("a property of the table hides its newest metadata")
    code = {k: v for k, v in metadata.properties.items() if k in CODE_PROPERTIES}
    plain = Table(
        identifier=table_identifier,
        metadata=metadata.model_copy(
            update={
                "properties": without_code(metadata.properties),
                "snapshots": _Shared(metadata.snapshots),
                "snapshot_log": _Shared(metadata.snapshot_log),
            }
        ),
        metadata_location=current_table.metadata_location,
        io=current_table.io,
        catalog=catalog,
    )
    staged = stage(plain, table_identifier, requirements, updates)
    staged.metadata = staged.metadata.model_copy(
        update={"properties": {**staged.metadata.properties, **code}}
    )
    return staged


_Item = TypeVar("_Item")


class _Shared(list[_Item]):
    """A table's history, which PyIceberg copies item by item; copies share items here."""

    def __deepcopy__(self, _memo: object) -> _Shared[_Item]:
        return _Shared(self)

    def __add__(self, more: Iterable[_Item]) -> _Shared[_Item]:  # type: ignore[override]
        return _Shared([*self, *more])


def single_post(catalog: Catalog) -> Callable[..., Any]:
    """Return the catalog's commit call without the client's own retries."""
    return catalog.post_once if isinstance(catalog, TimedRestCatalog) else catalog.commit_table
