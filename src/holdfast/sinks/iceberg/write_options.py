"""A table's properties, as far as they say how its files are written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyiceberg.io import PY_IO_IMPL
from pyiceberg.table import TableProperties

from holdfast.errors import UnsupportedTableError

# Properties that name classes, which PyIceberg would import.
CODE_PROPERTIES = (PY_IO_IMPL, TableProperties.WRITE_PY_LOCATION_PROVIDER_IMPL)

# Iceberg's own defaults, from its table properties.
_TARGET_FILE_BYTES = 512 * 1024 * 1024
_ROW_GROUP_BYTES = 128 * 1024 * 1024
_ROW_GROUP_ROWS = 1_048_576
_PAGE_BYTES = 1024 * 1024
_PAGE_ROWS = 20_000
_DICTIONARY_BYTES = 2 * 1024 * 1024


def without_code(properties: Mapping[str, str]) -> dict[str, str]:
    """Return a table's properties without the names of code: a table gets nothing imported."""
    return {name: value for name, value in properties.items() if name not in CODE_PROPERTIES}


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """How files are sized and encoded."""

    target_file_bytes: int
    row_group_bytes: int
    row_group_rows: int
    # Arguments of pyarrow's ParquetWriter.
    parquet: Mapping[str, Any]

    @classmethod
    def of(cls, table: str, properties: Mapping[str, str]) -> WriteOptions:
        """Read the table's properties.

        Args:
            table: The table's name, for errors.
            properties: All its properties.

        Raises:
            UnsupportedTableError: Another file format than Parquet, or a size that is no number.
        """
        file_format = properties.get("write.format.default", "parquet").lower()
        if file_format != "parquet":
            raise UnsupportedTableError(
                table=table,
                what=f"its files are written as {file_format}",
                cure="set the table property write.format.default to parquet",
            )
        codec = properties.get("write.parquet.compression-codec", "zstd").lower()
        level = properties.get("write.parquet.compression-level")
        parquet: dict[str, Any] = {
            "compression": "none" if codec == "uncompressed" else codec,
            "data_page_size": _number(
                table, properties, "write.parquet.page-size-bytes", _PAGE_BYTES
            ),
            "dictionary_pagesize_limit": _number(
                table, properties, "write.parquet.dict-size-bytes", _DICTIONARY_BYTES
            ),
            # Pages end on a batch of rows; smaller batches let page statistics prune.
            "write_batch_size": _number(
                table, properties, "write.parquet.page-row-limit", _PAGE_ROWS
            ),
            "store_decimal_as_integer": True,
        }
        if level is not None and codec in ("zstd", "gzip", "brotli"):
            parquet["compression_level"] = _number(
                table, properties, "write.parquet.compression-level", 1, least=None
            )
        return cls(
            target_file_bytes=_number(
                table, properties, "write.target-file-size-bytes", _TARGET_FILE_BYTES
            ),
            row_group_bytes=_number(
                table, properties, "write.parquet.row-group-size-bytes", _ROW_GROUP_BYTES
            ),
            row_group_rows=_number(
                table, properties, "write.parquet.row-group-limit", _ROW_GROUP_ROWS
            ),
            parquet=parquet,
        )


def _number(
    table: str, properties: Mapping[str, str], name: str, default: int, least: int | None = 1
) -> int:
    text = properties.get(name, str(default))
    try:
        number = int(text)
    except ValueError as error:
        raise UnsupportedTableError(
            table=table, what=f"its property {name} is no number: {text!r}", cure="set a number"
        ) from error
    return number if least is None else max(least, number)
