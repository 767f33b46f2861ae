"""Rows of every type that a Spark DataFrame and an Iceberg v2 table have in common."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

# Column, Iceberg type as Spark spells it, and an expression over `id` (which goes from 0 up).
# Every fifth row is NULL in every nullable column.
COLUMNS: dict[str, tuple[str, str]] = {
    "flag": ("boolean", "id % 2 = 0"),
    "small": ("int", "cast(id - 5 as int)"),
    "big": ("bigint", "id * 100000000000"),
    "f32": ("float", "cast(case when id % 7 = 0 then 'NaN' else id / 3 end as float)"),
    "f64": ("double", "cast(case when id % 7 = 0 then 'NaN' else -id / 3 end as double)"),
    "dec9": ("decimal(9,2)", "cast(id - 3.25 as decimal(9,2))"),
    "dec18": ("decimal(18,6)", "cast(id * -1.5 as decimal(18,6))"),
    "dec38": ("decimal(38,10)", "cast(id as decimal(38,10)) * 1000000000000.5"),
    "day": ("date", "date_add(date'1969-12-25', cast(id as int))"),
    "at": ("timestamp", "timestamp_micros(id * 3600000000 * 7 - 90061000001)"),
    "local_at": (
        "timestamp_ntz",
        "timestamp_ntz'1999-12-31 22:59:59.999999' + id * interval 1 hour",
    ),
    "text": ("string", "case id % 4 when 0 then '' when 1 then 'ä/ö ü%' else concat('t', id) end"),
    "raw": ("binary", "cast(concat('b', id) as binary)"),
    "numbers": ("array<int>", "array(cast(id as int), null, 7)"),
    "tags": ("map<string,bigint>", "map('a', id, 'b', null)"),
    "place": (
        "struct<x:double,y:struct<name:string,codes:array<string>>>",
        "struct(id / 2 as x, struct(concat('n', id) as name, array('p', null) as codes) as y)",
    ),
    "points": ("array<struct<u:int,v:string>>", "array(struct(cast(id as int) as u, 'v' as v))"),
    "by_name": ("map<string,array<int>>", "map('k', array(cast(id as int)))"),
}


def table_ddl() -> str:
    """Return the columns of the table, as Spark's DDL."""
    return ", ".join(
        ["id bigint NOT NULL"] + [f"{name} {kind}" for name, (kind, _) in COLUMNS.items()]
    )


def wide_rows(session: SparkSession, rows: int = 40) -> DataFrame:
    """Return rows with every type, NULLs and NaNs among them."""
    return session.range(0, rows, 1, 3).selectExpr(
        "id",
        *(
            f"cast(if(id % 5 = 4, null, {value}) as {kind}) as {name}"
            for name, (kind, value) in COLUMNS.items()
        ),
    )


def comparable(df: DataFrame) -> DataFrame:
    """Return the rows in a form that EXCEPT ALL accepts: maps as sorted entries."""
    return df.selectExpr(
        *(
            f"sort_array(map_entries({name})) as {name}" if kind.startswith("map<") else f"`{name}`"
            for name, kind in df.dtypes
        )
    )


def differences(ours: DataFrame, theirs: DataFrame) -> int:
    """Count the rows that are in only one of the two, including doubled rows."""
    left, right = comparable(ours), comparable(theirs)
    return left.exceptAll(right).count() + right.exceptAll(left).count()
