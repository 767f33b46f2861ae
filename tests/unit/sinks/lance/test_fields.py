"""Whether the installed pylance does what a post relies on: known before a row is paid for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lance
import pytest
from lance import LanceOperation

import holdfast as hf
from holdfast.errors import SettingsError
from holdfast.opening import open_columns, open_table
from holdfast.sinks.lance import fields
from holdfast.sinks.lance.fields import refuse_other_pylance


@pytest.fixture(autouse=True)
def _untried() -> Iterator[None]:
    """Try pylance anew in each test."""
    refuse_other_pylance.cache_clear()
    yield
    refuse_other_pylance.cache_clear()


def without_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take away an argument that pylance 9 does not have."""

    def merge(fragments: Any, schema: Any) -> None:  # noqa: ANN401
        """Be as it was there."""

    monkeypatch.setattr(LanceOperation, "Merge", merge)


class _Other:
    """A schema in another form, as private names may have from one version to the next."""

    @classmethod
    def from_pyarrow(cls, _schema: Any) -> _Other:  # noqa: ANN401
        """Return a schema."""
        return cls()

    def __reduce__(self) -> Any:  # noqa: ANN401 - any form.
        """Return what makes it anew."""
        return _Other, ()


def with_other_payload(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep schemas in another form."""
    monkeypatch.setattr(fields, "LanceSchema", _Other)


def with_other_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give fields other numbers than they were stored with."""
    monkeypatch.setattr(fields, "_renumbered", lambda message, _first: message)


OTHERS: list[Callable[[pytest.MonkeyPatch], None]] = [
    without_argument,
    with_other_payload,
    with_other_numbers,
]


def test_the_installed_version_is_not_refused() -> None:
    """It has all that is relied on."""
    refuse_other_pylance()


@pytest.mark.parametrize("other", OTHERS)
def test_another_version_is_refused_when_a_dataset_is_opened(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, other: Callable[[pytest.MonkeyPatch], None]
) -> None:
    """Both to append and to compute columns; the error says which version and what to install."""
    other(monkeypatch)
    table = hf.LanceTable(f"{tmp_path}/t.lance")
    cure = rf'pylance {lance.__version__} cannot.*\n.*\n.*pip install "holdfast\[lance\]"'
    with pytest.raises(SettingsError, match=cure):
        open_table(table, None)
    with pytest.raises(SettingsError, match=cure):
        open_columns(table, None, ["id"], None)
