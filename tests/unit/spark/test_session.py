"""Session settings: each lookup costs a round trip to the JVM."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from holdfast.errors import SettingsError
from holdfast.spark.session import session_of, settings_under

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
