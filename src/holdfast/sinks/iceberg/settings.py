"""From Spark's catalog settings to PyIceberg's properties.

Spark users have their catalog in `spark.sql.catalog.<name>.*`, in the names of Iceberg's Java
library. Most names are the same in PyIceberg; this module maps the rest, and refuses catalogs
that cannot give a true compare-and-set.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from holdfast.errors import UnsupportedTableError

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
    "hive": "its client checks no expected metadata location, so two commits can both land",
    "hadoop": "a file system without atomic rename can lose a commit",
    "nessie": "the native Nessie API is not supported",
}
# Settings of Spark's or Java's own that mean nothing to PyIceberg.
_JAVA_ONLY = ("catalog-impl", "io-impl", "type", "default-namespace", "cache-enabled")
# How to log in to a REST catalog. PyIceberg finds `credential` and `token` by itself.
_AUTH = "rest.auth."
_SIGNS = "rest.sigv4-enabled"
_SIGNING_KEY = "rest.access-key-id"
_JDBC_DRIVERS = {"postgresql": "postgresql+psycopg2", "sqlite": "sqlite", "mysql": "mysql"}


def pyiceberg_properties(catalog: str, settings: Mapping[str, str]) -> dict[str, Any]:
    """Map one catalog's Spark settings to PyIceberg's properties.

    Args:
        catalog: The catalog's name in Spark.
        settings: What follows `spark.sql.catalog.<name>.`, by name.

    Raises:
        UnsupportedTableError: The catalog is of a kind that cannot be written safely, or that we
            cannot log in to.
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
    """Return how PyIceberg is to log in to a REST catalog.

    Raises:
        UnsupportedTableError: It is a way that we do not know.
    """
    way = settings.get(f"{_AUTH}type", "").lower()
    if way == "sigv4" or settings.get(_SIGNS, "").lower() == "true":
        if _SIGNING_KEY in settings:  # PyIceberg would sign as somebody else, without a word.
            raise UnsupportedTableError(
                table=f"catalog {catalog!r}",
                what=f"{_SIGNING_KEY} is to sign requests, and PyIceberg does not know it",
                cure="let the environment's own keys sign, or pass hf.IcebergTable(name, "
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
        what=f"{_AUTH}type is {way!r}, and how that logs in is not known here",
        cure="pass hf.IcebergTable(name, catalog={...}) with PyIceberg's own `auth`",
    )


def refuse_unsafe_catalog(catalog: str, kind: str) -> None:
    """Stop at catalogs whose commit is no compare-and-set.

    Raises:
        UnsupportedTableError: This is one.
    """
    if kind in set(_TYPES.values()):
        return
    raise UnsupportedTableError(
        table=f"catalog {catalog!r}",
        what=f"of kind {kind!r}, which is refused: {_REFUSED.get(kind, 'it is not known')}",
        cure="use a REST, SQL (JDBC) or Glue catalog",
    )


def _sqlalchemy_url(catalog: str, settings: Mapping[str, str]) -> str:
    """Turn `jdbc:postgresql://host/db` with `jdbc.user` into an SQLAlchemy URL.

    Raises:
        UnsupportedTableError: It is no JDBC URL of a database that we know.
    """
    uri = settings.get("uri", "")
    match = re.fullmatch(r"jdbc:(\w+):(.*)", uri)
    if match is None:
        if "://" in uri and not uri.startswith("jdbc:"):
            return uri
        raise UnsupportedTableError(
            table=f"catalog {catalog!r}",
            what="its uri is no JDBC URL",
            cure="set uri to jdbc:postgresql://host/database or jdbc:sqlite:/file",
        )
    database, rest = match.groups()
    if database not in _JDBC_DRIVERS:
        raise UnsupportedTableError(
            table=f"catalog {catalog!r}",
            what=f"on the database {database!r}, which is not supported",
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
