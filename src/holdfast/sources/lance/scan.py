"""Scan Lance: which dataset, version, columns and rows. Lance is not needed to say so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow.compute as pc

from holdfast.errors import SettingsError
from holdfast.sources.arguments import checked_columns
from holdfast.sources.filters import as_expression
from holdfast.storage.locations import normalise


@dataclass(frozen=True, kw_only=True)
class LanceScan:
    """A version of a dataset that workers read themselves: what `hf.scan_lance` returns."""

    uri: str
    version: int | None = None
    columns: tuple[str, ...] | None = None
    where: pc.Expression | None = None
    # Storage options, with credentials: never shown, never stored.
    options: Mapping[str, str] | None = field(default=None, repr=False)


def scan_lance(
    uri: str,
    *,
    version: int | None = None,
    columns: Sequence[str] | None = None,
    where: pc.Expression | Sequence[object] | None = None,
    options: Mapping[str, str] | None = None,
) -> LanceScan:
    """Read a version of a Lance dataset on the workers, without a hop through the JVM.

    The version is pinned when the run begins; no key is needed. Deleted rows are left out. Blob
    columns come as their bytes, dictionaries as their values.

    Args:
        uri: Where the dataset stands: `s3://bucket/folder/name.lance`, or an absolute path.
        version: Which version; by default the newest when the run begins. If the dataset has
            moved on by a later start, that start is refused unless it names the version.
        columns: Which columns to read. By default all.
        where: Which rows: an expression (`pc.field("price") > 3`), or a list of such triples as
            `("price", ">", 3)`. Blobs of other rows are not read.
        options: Storage options in Lance's names (`aws_endpoint`, ...) or in Iceberg's
            (`s3.endpoint`, ...). By default the session's `spark.holdfast.scan.*`, else the
            environment's credential chain.

    Raises:
        SettingsError: An argument cannot be used.
    """
    if version is not None and (isinstance(version, bool) or not isinstance(version, int)):
        raise SettingsError(what=f"version={version!r}", cure="give the number of a version")
    return LanceScan(
        uri=normalise(uri),
        version=version,
        columns=checked_columns(columns),
        where=as_expression(where),
        options=options,
    )
