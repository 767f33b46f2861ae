"""Run ids: whatever a scheduler makes becomes one safe, readable and unique path segment."""

from __future__ import annotations

import re

import pytest

from holdfast.errors import SettingsError
from holdfast.ledger.layout import RunLayout, probe_uri
from holdfast.model.records import encode_run_id


@pytest.mark.parametrize(
    ("run_id", "segment"),
    [
        ("embed-products_2026.11", "embed-products_2026.11"),
        (
            "scheduled__2026-11-14T00:00:00+00:00",
            "scheduled__2026-11-14T00=3A00=3A00=2B00=3A00",
        ),
        ("größe", "gr=C3=B6=C3=9Fe"),
        ("a/b", "a=2Fb"),
        ("a b", "a=20b"),
        ("a=3Ab", "a=3D3Ab"),
        (".", "=2E"),
        ("..", "=2E."),
        (".hidden", "=2Ehidden"),
        ("nul\0", "nul=00"),
    ],
)
def test_an_id_becomes_one_readable_segment(run_id: str, segment: str) -> None:
    """Plain characters stay as they are; all others are spelled out byte by byte."""
    assert encode_run_id(run_id) == segment


@pytest.mark.parametrize(
    "run_id", ["../../etc", "%2e%2e", "a\\b", "café", "日本", "a\nb", "x" * 240, "-rf"]
)
def test_no_id_leaves_its_folder(run_id: str) -> None:
    """The segment holds no separator and is never a name that means another folder."""
    segment = encode_run_id(run_id)
    assert re.fullmatch(r"[A-Za-z0-9._=-]+", segment)
    assert not segment.startswith(".")
    assert RunLayout.of("file:///store", run_id).record(1) == (
        f"file:///store/{segment}/log/00000001.json"
    )


@pytest.mark.parametrize("run_id", ["", " ", " a", "a ", "\ta", "a\n", "\u00a0a", None, 7, b"a"])
def test_what_is_no_id_is_refused(run_id: object) -> None:
    """Blanks around an id come and go between retries, so they are an error, as is no string."""
    with pytest.raises(SettingsError, match="is no run id"):
        encode_run_id(run_id)  # type: ignore[arg-type]


@pytest.mark.parametrize("run_id", ["x" * 241, "é" * 41, "/" * 81])
def test_an_id_too_long_for_a_file_system_is_refused(run_id: str) -> None:
    """It is refused by its encoded length, before anything is written."""
    with pytest.raises(SettingsError, match="too long"):
        encode_run_id(run_id)


def test_an_id_that_is_no_text_is_refused() -> None:
    """Half a surrogate pair has no UTF-8 form; the error is ours and says so."""
    with pytest.raises(SettingsError):
        encode_run_id("broken-\ud800")


@pytest.mark.parametrize("run_id", ["=probe", "probe", "=probe/x"])
def test_no_run_shares_a_name_with_the_store_probe(run_id: str) -> None:
    """The probe deletes what it wrote; that must never be part of a run."""
    folder = RunLayout.of("file:///store", run_id).folder
    assert not probe_uri("file:///store", "n").startswith(f"{folder}/")
