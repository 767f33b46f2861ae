"""WriteOptions: a user's options are checked before anything is touched."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, cast

import pytest

import holdfast as hf
from holdfast.engine.options import WriteOptions
from holdfast.errors import SettingsError
from tests.fakes.rig import Rig, two_partitions


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batch_rows", 0),
        ("batch_rows", True),
        ("limits", None),
        ("limits", {"open_files": 4}),
        ("retries", -1),
        ("retries", None),
        ("retries", 1.0),
        ("one_to_one", "any"),
        ("batch_format", "numpy"),
        ("takeover", "later"),
        ("takeover", None),
        ("if_committed", "ignore"),
        ("if_committed", True),
        ("verify_input", True),
        ("verify_input", 0),
        ("verify_input", None),
        ("verify_input", "values"),
        ("checkpoint_every", "soon"),
        ("checkpoint_every", 0),
        ("checkpoint_every", -1.0),
        ("checkpoint_every", float("nan")),
        ("checkpoint_every", timedelta(0)),
    ],
)
def test_an_invalid_option_is_refused_by_name(name: str, value: object) -> None:
    """A typing error must not switch a check off, and the message says what is accepted."""
    options: dict[str, Any] = {name: value}
    with pytest.raises(SettingsError, match=name) as caught:
        WriteOptions(**options)
    assert repr(value) in caught.value.what
    assert "give" in caught.value.cure


@pytest.mark.parametrize(
    ("every", "seconds"),
    [("30s", 30.0), ("5 min", 300.0), (2.5, 2.5), (timedelta(hours=1), 3600.0), (None, None)],
)
def test_a_checkpoint_is_a_duration_in_any_form(every: Any, seconds: float | None) -> None:  # noqa: ANN401
    """None switches checkpoints off; it is not a duration of zero."""
    assert WriteOptions(checkpoint_every=every).checkpoint_every_s == seconds


def test_by_default_every_check_is_on() -> None:
    """The input is checked and compared, checkpoints are made, and no driver is overrun."""
    options = WriteOptions()
    assert (options.verify_input, options.if_committed, options.one_to_one) == (
        "keys",
        "compare",
        True,
    )
    assert (options.checkpoint_every_s, options.takeover, options.retries) == (30.0, "wait", 2)


# ---- Batch sizes, and the one-to-one rule
@pytest.mark.parametrize("batch_rows", [True, False, 0, -1, "10", 1.5, 10.0])
def test_a_batch_size_that_is_not_a_positive_integer_is_refused(batch_rows: Any) -> None:  # noqa: ANN401
    """Before anything is written, and the error repeats the value."""
    rig, submitter = Rig(), two_partitions()
    with pytest.raises(SettingsError, match=f"batch_rows={batch_rows!r}"):
        rig.start(submitter, batch_rows=batch_rows)
    assert (rig.storage.objects, submitter.plans) == ({}, [])


@pytest.mark.parametrize("batch_rows", [1, 10_000, None])
def test_a_batch_size_of_at_least_one_is_accepted(batch_rows: int | None) -> None:
    """None leaves the batches as Spark sends them."""
    submitter = two_partitions()
    Rig().start(submitter, batch_rows=batch_rows)
    assert [plan.batch_rows for plan in submitter.plans] == [batch_rows]


@pytest.mark.parametrize("name", ["one_to_one", "strict_code"])
@pytest.mark.parametrize("value", ["same", "", None, 1])
def test_a_switch_is_true_or_false(name: str, value: object) -> None:
    """A value that only looks like False must not switch a check off."""
    with pytest.raises(SettingsError, match=f"{name}={value!r}"):
        WriteOptions(**cast("Any", {name: value}))


def test_a_batch_format_must_be_a_known_one() -> None:
    """A function of one row gets a dict whatever the format."""
    with pytest.raises(SettingsError, match='give "arrow", "pandas" or "polars"'):
        WriteOptions(batch_format=cast("Any", "numpy"))
    with pytest.raises(SettingsError, match="batch_format cannot be used with per_row"):
        WriteOptions(transform=hf.per_row(dict), batch_format="pandas")


def test_the_one_to_one_rule_reaches_the_tasks() -> None:
    """By default a transform keeps the number of rows."""
    default, changed = two_partitions(), two_partitions()
    Rig().start(default)
    Rig().start(changed, one_to_one=False)
    assert [plan.one_to_one for plan in (*default.plans, *changed.plans)] == [True, False]
