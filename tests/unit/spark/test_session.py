"""Settings of a session: each costs a round trip to the JVM."""

from __future__ import annotations

from typing import Any

from holdfast.spark.session import settings_under

SETTINGS = {"spark.holdfast.store.a": "1", "spark.holdfast.store.b": "2", "spark.other": "3"}


class Conf:
    """Counts how often all settings are listed."""

    def __init__(self) -> None:
        """Start with none."""
        self.listings = 0

    @property
    def getAll(self) -> dict[str, str]:  # noqa: N802 - as in PySpark.
        """Return all settings."""
        self.listings += 1
        return SETTINGS

    def get(self, name: str, default: str | None) -> str | None:
        """Return one."""
        return SETTINGS.get(name, default)


class Session:
    """Stands in for a classic session."""

    _jsparkSession = object()  # noqa: N815 - as in PySpark.

    def __init__(self) -> None:
        """Have settings."""
        self.conf = Conf()


def test_all_settings_are_listed_once() -> None:
    """To list them takes tens of milliseconds, at each start of a run."""
    session: Any = Session()
    assert settings_under(session, "spark.holdfast.store.") == {"a": "1", "b": "2"}
    assert session.conf.listings == 1
