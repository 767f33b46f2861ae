"""What a user may pass as `to=`, and what is refused before anything is opened."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.errors import SettingsError
from holdfast.sinks.targets import IcebergTable, LanceTable, Target, asked_target, target_of


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("lake.sales.orders", IcebergTable("lake.sales.orders", branch="b")),
        ("lake.ml.lance", IcebergTable("lake.ml.lance", branch="b")),
        ("s3://bucket/texts.lance", LanceTable("s3://bucket/texts.lance")),
        ("/data/texts.lance", LanceTable("/data/texts.lance")),
        (IcebergTable("a.b.c"), IcebergTable("a.b.c")),
        (LanceTable("/data/texts.lance"), LanceTable("/data/texts.lance")),
    ],
)
def test_a_name_or_a_location_is_a_table(given: str | Target, meant: Target) -> None:
    """A branch is added to a name; a target has its own."""
    assert target_of(given, "b") == asked_target(given, "b") == meant


def test_a_name_from_a_ledger_is_never_mistaken_for_a_path() -> None:
    """A run on such a table could not be aborted or swept."""
    assert target_of("default.sales.a/b") == IcebergTable("default.sales.a/b")


@pytest.mark.parametrize("path", ["texts.lance", "data/texts", "./texts.lance"])
def test_a_relative_path_is_refused_and_the_absolute_one_named(path: str) -> None:
    """It would be mistaken for an Iceberg table, or be another folder on each executor."""
    with pytest.raises(SettingsError, match="relative path") as caught:
        asked_target(path)
    assert str(Path(path).absolute()) in str(caught.value)


def test_another_librarys_table_is_refused_by_its_type() -> None:
    """A PyIceberg table has a name, a catalog and a schema, so it looks like a target."""

    class Table:
        name = ("sales", "orders")

    with pytest.raises(SettingsError, match=r"to= is a .*Table, not a table's name"):
        target_of(Table())


def test_a_catalog_is_its_properties_and_not_its_name() -> None:
    """The error does not show the value: a URI may hold a credential."""
    with pytest.raises(SettingsError, match=r"catalog= of 'db\.t' is a str") as caught:
        IcebergTable("db.t", catalog="sk-canary")  # type: ignore[arg-type]
    assert "sk-canary" not in str(caught.value)
