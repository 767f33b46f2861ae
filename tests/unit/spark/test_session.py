"""Session settings: each lookup costs a round trip to the JVM."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, MapType, StringType, StructType, TimestampType

from holdfast.errors import SettingsError
from holdfast.spark import session as module
from holdfast.spark.session import (
    arrow_schema,
    broadcast_bytes,
    memory_bytes,
    session_of,
    settings_under,
)

SETTINGS = {"spark.holdfast.store.a": "1", "spark.holdfast.store.b": "2", "spark.other": "3"}


class Conf:
    """Counts how often all settings are listed."""

    def __init__(self) -> None:
        """Start without settings."""
        self.listings = 0

    @property
    def getAll(self) -> dict[str, str]:  # noqa: N802 - as in PySpark.
        """Return all settings."""
        self.listings += 1
        return SETTINGS

    def get(self, name: str, default: str | None) -> str | None:
        """Return one setting."""
        return SETTINGS.get(name, default)


class Session:
    """Stands in for a classic session."""

    _jsparkSession = object()  # noqa: N815 - as in PySpark.

    def __init__(self) -> None:
        """Create its settings."""
        self.conf = Conf()


def test_all_settings_are_listed_once() -> None:
    """Listing them takes tens of milliseconds at each start of a run."""
    session: Any = Session()
    assert settings_under(session, "spark.holdfast.store.") == {"a": "1", "b": "2"}
    assert session.conf.listings == 1


def test_a_pandas_frame_is_refused_with_how_to_convert_it() -> None:
    """It has rows and columns, and notebooks often have one at hand."""
    with pytest.raises(SettingsError, match=r"pandas\..*DataFrame, not a Spark") as caught:
        session_of(pd.DataFrame({"id": [1]}))
    assert "spark.createDataFrame(df)" in str(caught.value)
    with pytest.raises(SettingsError, match=r"builtins\.list") as caught:
        session_of([1])
    assert "hf.scan_parquet(path)" in str(caught.value)


@pytest.mark.parametrize("has", ["mapInArrow", "sparkSession"])
def test_a_frame_that_has_only_half_of_what_is_needed_is_refused(has: str) -> None:
    """One of an old PySpark, or of another library: the error names it, and not an attribute."""
    half: Any = SimpleNamespace(**{has: None})
    with pytest.raises(SettingsError, match=r"SimpleNamespace, not a Spark DataFrame"):
        session_of(half)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("1g", 2**30),
        ("512m", 2**29),
        ("512MB", 2**29),
        ("2048", 2**31),
        ("3 kb", 3 * 2**10),
        ("7b", 7),
        ("1T", 2**40),
    ],
)
def test_memory_is_read_as_spark_reads_it(text: str, size_bytes: int) -> None:
    """Units in either case; without one it is in MiB."""
    assert memory_bytes(text) == size_bytes


@pytest.mark.parametrize("text", ["", "much", "1.5g", "-1g"])
def test_what_is_not_an_amount_of_memory_is_refused(text: str) -> None:
    """A guess could let a broadcast fill the heap."""
    with pytest.raises(ValueError, match="not an amount of memory"):
        memory_bytes(text)


@pytest.mark.parametrize(
    ("settings", "share_of"),
    [
        ({}, 2**30),
        ({"spark.master": "local[2]", "spark.driver.memory": "4g"}, 2**32),
        ({"spark.master": "yarn", "spark.driver.memory": "4g"}, 2**30),
        (
            {
                "spark.master": "yarn",
                "spark.driver.memory": "2g",
                "spark.executor.memory": "8g",
            },
            2**31,
        ),
        ({"spark.driver.memory": "(redacted)", "spark.executor.memory": "8g"}, 2**30),
    ],
)
def test_broadcasts_take_a_share_of_the_smallest_heap(
    settings: dict[str, str], share_of: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver builds them and executors hold them; a local session has only the driver."""
    monkeypatch.setattr(f"{__name__}.SETTINGS", settings)
    session: Any = Session()
    assert broadcast_bytes(session) == int(share_of * 0.2)


def test_timestamps_are_in_utc_at_any_depth() -> None:
    """Also where PySpark wants to be given a zone, as 4.3 does."""
    at = TimestampType()
    inside = StructType().add("at", at)
    columns = {"at": at, "listed": ArrayType(at), "mapped": MapType(StringType(), inside)}
    schema = StructType()
    for name, kind in columns.items():
        schema.add(name, kind)
    utc = pa.timestamp("us", "UTC")
    assert arrow_schema(SimpleNamespace(schema=schema)) == pa.schema(
        [
            ("at", utc),
            ("listed", pa.list_(pa.field("element", utc))),
            ("mapped", pa.map_(pa.string(), pa.struct([("at", utc)]))),
        ]
    )


def test_a_zone_is_given_if_pyspark_wants_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """4.3 ends with an empty AssertionError without it; older ones do not take it.

    Method: a stand-in for the conversion of 4.3, on whatever version the tests run.
    """

    def of_4_3(kind: object, *, timezone: str | None = None) -> pa.DataType:
        assert isinstance(kind, TimestampType)
        assert timezone is not None
        return pa.timestamp("us", timezone)

    monkeypatch.setattr(module, "to_arrow_type", of_4_3)
    schema = arrow_schema(SimpleNamespace(schema=StructType().add("at", TimestampType())))
    assert schema.field("at").type == pa.timestamp("us", "UTC")
