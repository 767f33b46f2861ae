"""What a user names as the target of a write. Plain values: no catalog is contacted here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.errors import SettingsError
from holdfast.model.limits import refuse_below
from holdfast.text import without_passwords


@dataclass(frozen=True, kw_only=True)
class Create:
    """How to create the table if it does not exist.

    Args:
        schema: A pyarrow schema; by default the input's own. If the transform returns other columns
            than the input has, give the schema of what it returns.
        partition_by: Columns or transforms: `"country"`, `"day(ts)"`, `"bucket(16, id)"`,
            `"truncate(4, name)"`, `"hour(ts)"`, `"month(ts)"`, `"year(ts)"`.
        properties: Table properties.
    """

    schema: Any = None
    partition_by: Sequence[str] = ()
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class IcebergTable:
    """An Iceberg table, by name and catalog.

    Args:
        name: `catalog.namespace.table` when the catalog comes from the Spark session's
            `spark.sql.catalog.<catalog>.*`, `namespace.table` when `catalog` is given.
        catalog: PyIceberg catalog properties (`type`, `uri`, `warehouse`, `s3.endpoint`, ...), and
            the catalog's `name` if it is not "default": an SQL catalog stores the name in each row.
        branch: The branch to write; it must exist, unless it is `main`.
    """

    name: str
    # These properties hold credentials: never show them in a repr, a log or an error.
    catalog: Mapping[str, Any] | None = field(default=None, repr=False, kw_only=True)
    branch: str = field(default="main", kw_only=True)

    def __post_init__(self) -> None:
        """Refuse a catalog that is not its properties.

        Raises:
            SettingsError: It is a name, or something else.
        """
        if not (self.catalog is None or isinstance(self.catalog, Mapping)):
            raise SettingsError(  # The value is not shown: it may hold a credential.
                what=f"catalog= of {self.name!r} is a {type(self.catalog).__name__}",
                cure='give its properties as a dict ({"type": "rest", ...}), or leave it out '
                "and put the catalog's name first in the table's",
            )


# By kind of namespace: what must be known to reach it.
NAMESPACE_NEEDS = {"dir": "root", "rest": "uri"}


@dataclass(frozen=True)
class LanceTable:
    """A Lance dataset, by its location or by its name in a namespace.

    Args:
        uri: The dataset's location: `s3://bucket/folder/name.lance`, or an absolute path. With
            `namespace`, the table's name there: `texts`, or `ml.texts` in a namespace `ml`.
        namespace: The settings of a Lance Namespace: `{"impl": "dir", "root": "s3://bucket/lance"}`
            or `{"impl": "rest", "uri": "https://..."}`, and what else Lance takes for them.
        storage_options: Storage options in Lance's names (`aws_endpoint`, `aws_access_key_id`, ...)
            or in Iceberg's (`s3.endpoint`, ...). By default the session's `spark.holdfast.lance.*`,
            else the environment's credential chain.
        max_rows_per_file: The most rows in a fragment.
        max_bytes_per_file: The most bytes in a fragment, if they are reached first.

    Raises:
        SettingsError: A size is not a whole number of at least 1, or the namespace cannot be used.
    """

    uri: str
    # These options hold credentials: never show them in a repr, a log or an error.
    storage_options: Mapping[str, str] | None = field(default=None, repr=False, kw_only=True)
    namespace: Mapping[str, Any] | None = field(default=None, repr=False, kw_only=True)
    max_rows_per_file: int = field(default=1024 * 1024, kw_only=True)
    max_bytes_per_file: int = field(default=1024**3, kw_only=True)

    def __post_init__(self) -> None:
        """Reject invalid sizes, and a namespace that cannot be used.

        Raises:
            SettingsError: A size is not a whole number of at least 1, or the namespace is of no
                known kind or lacks its address, or the dataset is given by a location too.
        """
        refuse_below(
            1,
            "LanceTable",
            max_rows_per_file=self.max_rows_per_file,
            max_bytes_per_file=self.max_bytes_per_file,
        )
        if self.namespace is not None:
            _refuse_namespace(self.uri, self.namespace)

    def __repr__(self) -> str:
        """Show the URI without its password, which is refused only when the dataset is opened."""
        return f"LanceTable({without_passwords(self.uri)!r})"

    @property
    def branch(self) -> str:
        """The only branch that is written."""
        return "main"


def _refuse_namespace(name: str, settings: object) -> None:
    """Refuse a namespace that cannot be reached, and a location in place of a name.

    Raises:
        SettingsError: As above. Values are not shown: they may hold a credential.
    """
    kind = settings.get("impl") if isinstance(settings, Mapping) else None
    needed = NAMESPACE_NEEDS.get(kind) if isinstance(kind, str) else None
    if not isinstance(settings, Mapping) or needed is None or not settings.get(needed):
        raise SettingsError(
            what=f"namespace= of {without_passwords(name)!r} has no impl of "
            f"{' or '.join(NAMESPACE_NEEDS)}, or lacks its address",
            cure='give {"impl": "dir", "root": "s3://bucket/lance"} or '
            '{"impl": "rest", "uri": "https://..."}, and its other settings beside them',
        )
    if "/" in name or not all(name.split(".")):
        raise SettingsError(
            what=f"{without_passwords(name)!r} is no name in a namespace",
            cure='give the name alone ("texts", or "ml.texts"), or the location without namespace=',
        )


Target = IcebergTable | LanceTable


def target_of(table: object, branch: str = "main") -> Target:
    """Return the table that the user means; a URI or a path is a Lance dataset.

    Args:
        table: A target, which is returned as it is; a URI or an absolute path; or
            `catalog.namespace.table`. Any other value that a user passes arrives here too.
        branch: The branch, for an Iceberg table that is given by name.

    Raises:
        SettingsError: It is none of these, or is a relative path.
    """
    if isinstance(table, IcebergTable | LanceTable):
        return table
    if not isinstance(table, str):
        kind = type(table)
        raise SettingsError(
            what=f"to= is a {kind.__module__}.{kind.__qualname__}, not a table's name",
            cure='pass "catalog.namespace.table", an hf.IcebergTable(name, catalog={...}), '
            "a Lance dataset's URI or an hf.LanceTable",
        )
    if "://" in table or table.startswith("/"):
        return LanceTable(table)
    return IcebergTable(table, branch=branch)


def asked_target(to: object, branch: str = "main") -> Target:
    """Return the table that the user passes as `to=`; unlike a name in a ledger, it may be a slip.

    Args:
        to: As for `target_of`.
        branch: Of an Iceberg table that is given by its name.

    Raises:
        SettingsError: It is not a target, or is a relative path.
    """
    target = target_of(to, branch)
    # A table that is called `lance` has a catalog and a namespace in front.
    is_path = isinstance(to, str) and ("/" in to or (to.endswith(".lance") and to.count(".") == 1))
    if is_path and isinstance(target, IcebergTable):
        raise SettingsError(
            what=f"to={to!r} is a relative path",
            cure=f'pass the absolute path ("{Path(target.name).absolute()}") or a URI: executors '
            "may run in other folders. For an Iceberg table of that name, pass hf.IcebergTable",
        )
    return target
