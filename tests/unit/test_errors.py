"""Errors: each says what happened, whether a retry may succeed, and what to do."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import re
from pathlib import Path

import pytest

from holdfast import errors
from holdfast.errors import HoldfastError

CLASSES = [
    member
    for _, member in inspect.getmembers(errors, inspect.isclass)
    if issubclass(member, HoldfastError)
]
# Braces in a fact must not be taken for placeholders.
ODD = "{odd} {0} %s \n second line"


def has_own_word(cls: type[HoldfastError]) -> bool:
    """Whether each instance of the class decides for itself if a retry may succeed."""
    return "retry_safe" in {field.name for field in dataclasses.fields(cls)}


def made(cls: type[HoldfastError], text: str = "fact", **given: bool) -> HoldfastError:
    """Return an error of the class with a recognisable fact in each attribute."""
    facts = {
        field.name: f"{text}-{field.name}" if field.type == "str" else 41 + position
        for position, field in enumerate(dataclasses.fields(cls))
        if field.name != "retry_safe"
    }
    return cls(**facts, **given)


def parametrised() -> pytest.MarkDecorator:
    """Run a test for every error."""
    return pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)


def test_there_are_errors_to_test() -> None:
    """The tests below would pass trivially if there were no classes."""
    assert len(CLASSES) > 20


@parametrised()
def test_the_message_holds_every_fact(cls: type[HoldfastError]) -> None:
    """Spark passes an executor's error on as text, so the text alone must be enough."""
    error = made(cls)
    # A field with a default is advice that the class itself gives.
    shown = [f for f in dataclasses.fields(cls) if f.default is dataclasses.MISSING]
    own_message = "happened" in vars(cls) or cls.happened != HoldfastError.happened
    missing = [f.name for f in shown if str(getattr(error, f.name)) not in str(error)]
    assert not own_message or missing == []


@parametrised()
def test_the_message_has_three_parts(cls: type[HoldfastError]) -> None:
    """What happened; worth a retry, yes or no; what to do."""
    lines = str(made(cls)).splitlines()
    assert len(lines) == 3
    assert lines[0].strip()
    assert lines[1].startswith(f"  Worth a retry: {'yes' if cls.retry_safe else 'no'}")
    assert re.fullmatch(r"  What to do: .{5,}\.", lines[2])
    assert "{" not in lines[2].replace("{...}", "")


@parametrised()
def test_retry_is_a_plain_yes_or_no(cls: type[HoldfastError]) -> None:
    """A program can read the attribute; every leaf class sets it or inherits it."""
    assert isinstance(cls.retry_safe, bool)
    assert cls.advice.strip()


@pytest.mark.parametrize(
    "cls", [cls for cls in CLASSES if has_own_word(cls)], ids=lambda cls: cls.__name__
)
def test_where_it_depends_each_error_decides_for_itself(cls: type[HoldfastError]) -> None:
    """The attribute, the message and a pickled copy agree."""
    for retry_safe in (True, False):
        error = made(cls, retry_safe=retry_safe)
        again = pickle.loads(pickle.dumps(error))  # noqa: S301 - ours.
        assert error.retry_safe is again.retry_safe is retry_safe
        assert f"\n  Worth a retry: {'yes' if retry_safe else 'no'}" in str(error)


def test_the_table_in_the_reference_matches_the_classes() -> None:
    """Users configure their schedulers by this page."""
    page = (Path(__file__).parents[2] / "docs/reference/errors.md").read_text(encoding="utf-8")
    documented = dict(
        re.findall(r"^\| `(\w+Error)` \| (True|False|depends) \|", page, re.MULTILINE)
    )
    raised: set[type[HoldfastError]] = {errors.SettingsError, errors.LedgerDamagedError}
    bases = {cls.__base__ for cls in CLASSES} - raised
    leaves = [cls for cls in CLASSES if cls not in bases]
    assert documented == {
        cls.__name__: "depends" if has_own_word(cls) else str(cls.retry_safe) for cls in leaves
    }


@parametrised()
def test_an_error_survives_pickle_and_copy(cls: type[HoldfastError]) -> None:
    """It keeps all its facts."""
    error = made(cls)
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):  # noqa: S301 - ours.
        assert type(again) is cls
        assert str(again) == str(error)
        for field in dataclasses.fields(cls):
            assert getattr(again, field.name) == getattr(error, field.name)


@parametrised()
def test_facts_are_shown_as_they_are(cls: type[HoldfastError]) -> None:
    """Braces or line breaks in a fact do not break the message and are not filled in."""
    assert str(made(cls, ODD))


@parametrised()
def test_facts_are_given_by_name(cls: type[HoldfastError]) -> None:
    """Two strings passed in the wrong order would make a misleading message."""
    with pytest.raises(TypeError):
        cls("one", "two")


def test_the_tree_at_the_top_of_the_file_matches_the_classes() -> None:
    """The tree drawn in the module's docstring matches the classes defined below it."""
    drawn = re.findall(r"^    ([│├└─ ]*)(\w+Error)\b", errors.__doc__ or "", re.MULTILINE)
    parents: list[str] = []
    found = {}
    for branch, name in drawn:
        depth = len(branch) // 4
        parents[depth:] = [name]
        found[name] = parents[depth - 1] if depth else "Exception"
    assert found == {cls.__name__: cls.__base__.__name__ for cls in CLASSES if cls.__base__}
