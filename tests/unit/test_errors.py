"""Errors: each says what happened, whether a retry is safe, and what to do."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import re

import pytest

from holdfast import errors
from holdfast.errors import HoldfastError

CLASSES = [
    member
    for _, member in inspect.getmembers(errors, inspect.isclass)
    if issubclass(member, HoldfastError)
]
# Braces in a fact must not be taken for a place to fill in.
ODD = "{odd} {0} %s \n second line"


def made(cls: type[HoldfastError], text: str = "fact") -> HoldfastError:
    """Return an error of the class with a recognisable fact in each attribute."""
    facts = {
        field.name: f"{text}-{field.name}" if field.type == "str" else 41 + position
        for position, field in enumerate(dataclasses.fields(cls))
    }
    return cls(**facts)


def parametrised() -> pytest.MarkDecorator:
    """Run a test for every error."""
    return pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)


def test_there_are_errors_to_test() -> None:
    """The tests below do not pass for want of classes."""
    assert len(CLASSES) > 20


@parametrised()
def test_the_message_holds_every_fact(cls: type[HoldfastError]) -> None:
    """Spark hands an executor's error on as text, so the text alone must be enough."""
    error = made(cls)
    # A cure with a default is one that the class itself gives.
    shown = [f for f in dataclasses.fields(cls) if f.default is dataclasses.MISSING]
    own_message = "happened" in vars(cls) or cls.happened != HoldfastError.happened
    missing = [f.name for f in shown if str(getattr(error, f.name)) not in str(error)]
    assert not own_message or missing == []


@parametrised()
def test_the_message_has_three_parts(cls: type[HoldfastError]) -> None:
    """What happened; safe to run again, yes or no; what to do."""
    lines = str(made(cls)).splitlines()
    assert len(lines) == 3
    assert lines[0].strip()
    assert lines[1].startswith(f"  Safe to run again: {'yes' if cls.retry_safe else 'no'}")
    assert re.fullmatch(r"  What to do: .{5,}\.", lines[2])
    assert "{" not in lines[2].replace("{...}", "")


@parametrised()
def test_retry_is_a_plain_yes_or_no(cls: type[HoldfastError]) -> None:
    """A program can ask, and every leaf has decided for itself or by its parent."""
    assert isinstance(cls.retry_safe, bool)
    assert cls.advice.strip()


@parametrised()
def test_an_error_survives_pickle_and_copy(cls: type[HoldfastError]) -> None:
    """The facts arrive with it."""
    error = made(cls)
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):  # noqa: S301 - ours.
        assert type(again) is cls
        assert str(again) == str(error)
        for field in dataclasses.fields(cls):
            assert getattr(again, field.name) == getattr(error, field.name)


@parametrised()
def test_facts_are_shown_as_they_are(cls: type[HoldfastError]) -> None:
    """A fact with braces or line breaks neither breaks nor fills in the message."""
    assert str(made(cls, ODD))


@parametrised()
def test_facts_are_given_by_name(cls: type[HoldfastError]) -> None:
    """Two strings in the wrong order would be a message that misleads."""
    with pytest.raises(TypeError):
        cls("one", "two")


def test_the_tree_at_the_top_of_the_file_is_the_tree() -> None:
    """What is drawn there is what is defined below, in the same places."""
    drawn = re.findall(r"^    ([│├└─ ]*)(\w+Error)\b", errors.__doc__ or "", re.MULTILINE)
    parents: list[str] = []
    found = {}
    for branch, name in drawn:
        depth = len(branch) // 4
        parents[depth:] = [name]
        found[name] = parents[depth - 1] if depth else "Exception"
    assert found == {cls.__name__: cls.__base__.__name__ for cls in CLASSES if cls.__base__}
