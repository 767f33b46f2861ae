"""What Holdfast asks of a Spark session. Works on classic sessions and on Spark Connect."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from holdfast.errors import HiddenSettingError, MissingExtraError, SettingsError
from holdfast.sinks.targets import IcebergTable, Target
from holdfast.spark import SparkDataFrame, SparkSession

try:
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession as PySparkSession
    from pyspark.sql.pandas.types import to_arrow_type
    from pyspark.sql.types import DataType
except ImportError as error:
    raise MissingExtraError(what="a Spark job", package="pyspark", extra="spark") from error

# Spark's replacement for a value whose name looks secret.
_REDACTED = "(redacted)"
_FLOATS = ("float", "double")
# The share of a heap that one job's broadcasts may take. While one is built, about three times its
# size is in use, and tasks need the rest.
_BROADCAST_SHARE = 0.2
_DEFAULT_HEAP = "1g"  # Spark's own default, for drivers and executors.
_UNITS = {"": 20, "b": 0, "k": 10, "m": 20, "g": 30, "t": 40, "p": 50}


def session_of(df: SparkDataFrame) -> SparkSession:
    """Return the DataFrame's session.

    Raises:
        SettingsError: It is not a Spark DataFrame.
    """
    if not hasattr(df, "mapInArrow") or not hasattr(df, "sparkSession"):
        kind = type(df)
        cure = "pass a pyspark.sql.DataFrame, or a scan such as hf.scan_parquet(path)"
        if kind.__module__.partition(".")[0] == "pandas":
            cure = "pass spark.createDataFrame(df)"
        raise SettingsError(
            what=f"the source is a {kind.__module__}.{kind.__qualname__}, not a Spark DataFrame",
            cure=cure,
        )
    if df.isStreaming:
        raise SettingsError(
            what="the input is a streaming DataFrame",
            cure="read it as a batch; streams have checkpoints of their own",
        )
    return df.sparkSession


def active() -> SparkSession | None:
    """Return this thread's session, classic or Connect, if there is one."""
    return PySparkSession.getActiveSession()


def setting(session: SparkSession, name: str, default: str = "") -> str:
    """Return one setting of the session.

    Raises:
        HiddenSettingError: The session has the setting but does not reveal it.
    """
    try:
        value = session.conf.get(name, None)
    except PySparkException as error:
        raise HiddenSettingError(what=name) from error
    if value is None and (_is_classic(session) or name not in _listed(session)):
        return default
    # Connect reports a hidden setting as missing; the listing shows that it exists.
    if value is None or _REDACTED in value:
        raise HiddenSettingError(what=name)
    return str(value)


def settings_under(session: SparkSession, prefix: str) -> dict[str, str]:
    """Return all settings whose names begin with a prefix, without the prefix.

    Raises:
        HiddenSettingError: The session has one of them but does not reveal it.
    """
    names = [name for name in _listed(session) if name.startswith(prefix)]
    return {name.removeprefix(prefix): setting(session, name) for name in names}


def _listed(session: SparkSession) -> list[str]:
    """Return the names of all settings, including hidden ones, which every Spark version lists."""
    # Of the type: of the object it would list them all to see whether it can.
    if _is_classic(session) and hasattr(type(session.conf), "getAll"):
        return list(session.conf.getAll)  # Since Spark 4.0; a query takes four times as long.
    return [row["key"] for row in session.sql("SET").collect()]


def _is_classic(session: SparkSession) -> bool:
    """Whether the driver's JVM is available: then no setting is hidden from its own session."""
    return hasattr(session, "_jsparkSession")


def tasks_running(session: SparkSession) -> tuple[int, int] | None:
    """Return how many tasks of the session's active stages have ended, and how many there are.

    None under Connect, which does not show it, and while no stage is active.
    """
    if not _is_classic(session):
        return None
    tracker = session.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    known = [stage for stage in stages if stage is not None]
    if not known:
        return None
    return sum(stage.numCompletedTasks for stage in known), sum(stage.numTasks for stage in known)


def broadcast_bytes(session: SparkSession) -> int:
    """Return how many bytes one job may broadcast: a share of the smallest heap.

    The driver builds what is broadcast, and each executor holds it. A heap whose size the session
    does not reveal is taken to be Spark's default.
    """

    def known(name: str, default: str = "") -> str:
        with contextlib.suppress(HiddenSettingError):
            return setting(session, name) or default
        return default

    heaps = [memory_bytes(known("spark.driver.memory", _DEFAULT_HEAP))]
    if not known("spark.master").startswith("local"):
        heaps.append(memory_bytes(known("spark.executor.memory", _DEFAULT_HEAP)))
    return int(min(heaps) * _BROADCAST_SHARE)


def memory_bytes(text: str) -> int:
    """Return an amount of memory as Spark reads it; without a unit it is in MiB.

    Raises:
        ValueError: It is not an amount of memory.
    """
    found = re.fullmatch(r"\s*(\d+)\s*([bkmgtp]?)b?\s*", text.lower())
    if found is None:
        raise ValueError(f"{text!r} is not an amount of memory")
    return int(found[1]) << _UNITS[found[2]]


def forget_cached_table(session: SparkSession, target: Target) -> None:
    """Make the session reload the table: Iceberg's Spark catalogs cache it for 30 s.

    Without Iceberg's runtime in the session nothing is cached, and Spark may raise any error about
    an unknown catalog. The commit has landed, so these errors do not matter.
    """
    if isinstance(target, IcebergTable) and target.catalog is None:
        with contextlib.suppress(Exception):
            session.catalog.refreshTable(target.name)


def refuse_wap(session: SparkSession) -> None:
    """Stop if the session asks for write-audit-publish, which Holdfast would not honour.

    Raises:
        SettingsError: The session asks for it.
    """
    for name in ("spark.wap.id", "spark.wap.branch"):
        if setting(session, name):
            raise SettingsError(
                what=f"the session sets {name}, which Holdfast does not support",
                cure=f"unset {name}; to write a branch use hf.IcebergTable(name, branch=...)",
            )


def semantics(session: SparkSession) -> dict[str, str]:
    """Return the settings under which the same expression may give another value.

    Read without a default of ours: a setting that was never set still has a value, which may differ
    from machine to machine.
    """
    return {
        "session_time_zone": str(session.conf.get("spark.sql.session.timeZone")),
        "ansi_mode": str(session.conf.get("spark.sql.ansi.enabled")),
    }


def checked_key(df: SparkDataFrame, key: str | Sequence[str]) -> tuple[str, ...]:
    """Return the key's columns; refuse keys that cannot identify rows reliably.

    Raises:
        SettingsError: There is no key or no such column, or a column is a float, a collated string
            or nested.
    """
    key = (key,) if isinstance(key, str) else tuple(key)
    if not key:
        raise SettingsError(
            what="a DataFrame needs key=, the columns that identify its rows",
            cure='pass key="id", or several: key=["day", "id"]',
        )
    if len(set(key)) != len(key):
        raise SettingsError(
            what=f"key={key}: a column is named twice", cure="name each column once"
        )
    types = {field.name: field.dataType for field in df.schema.fields}
    for name in key:
        if name not in types:
            raise SettingsError(
                what=f"key={name!r}: the DataFrame has no such column",
                cure=f"choose from {', '.join(types)}",
            )
        kind = types[name].simpleString()
        if kind in _FLOATS:
            raise SettingsError(
                what=f"key={name!r} is a {kind}: 0.0 and -0.0 are equal in Spark, not in storage",
                cure="cast it to a decimal or a string",
            )
        if "collate" in kind.lower():
            raise SettingsError(
                what=f"key={name!r} has a collation, under which different values are equal",
                cure="cast it to a plain string",
            )
        if kind.startswith(("array", "map", "struct", "variant")):
            raise SettingsError(what=f"key={name!r} is a {kind}", cure="use plain columns")
    return key


def arrow_schema(df: SparkDataFrame) -> pa.Schema:
    """Return the DataFrame's Arrow schema, with timestamps in UTC.

    Raises:
        SettingsError: It has a type that Arrow lacks, or a duplicate column.
    """
    fields = []
    for field in df.schema.fields:
        try:
            kind = _arrow_type(field.dataType)
        except PySparkException as error:
            raise SettingsError(
                what=f"column {field.name!r} is a {field.dataType.simpleString()}, "
                "which cannot be passed to Python",
                cure="cast or drop it",
            ) from error
        fields.append(pa.field(field.name, kind, field.nullable))
    return pa.schema(fields)


def _arrow_type(kind: DataType) -> pa.DataType:
    """Return a type as PySpark has it in Arrow, with timestamps of any depth in UTC.

    PySpark 4.3 wants to be given the zone, and otherwise fails an assertion without a text; older
    versions take UTC, and no such argument.
    """
    wants_zone = "timezone" in inspect.signature(to_arrow_type).parameters
    zone: dict[str, Any] = {"timezone": "UTC"} if wants_zone else {}
    return to_arrow_type(kind, **zone)
