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
# Braces in a fact must not be taken for a place to fill in.
ODD = "{odd} {0} %s \n second line"


def has_own_word(cls: type[HoldfastError]) -> bool:
    """Whether each error of the class says for itself if a retry may succeed."""
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
    """What happened; worth a retry, yes or no; what to do."""
    lines = str(made(cls)).splitlines()
    assert len(lines) == 3
    assert lines[0].strip()
    assert lines[1].startswith(f"  Worth a retry: {'yes' if cls.retry_safe else 'no'}")
    assert re.fullmatch(r"  What to do: .{5,}\.", lines[2])
    assert "{" not in lines[2].replace("{...}", "")


@parametrised()
def test_retry_is_a_plain_yes_or_no(cls: type[HoldfastError]) -> None:
    """A program can ask, and every leaf has decided for itself or by its parent."""
    assert isinstance(cls.retry_safe, bool)
    assert cls.advice.strip()


@pytest.mark.parametrize(
    "cls", [one for one in CLASSES if has_own_word(one)], ids=lambda cls: cls.__name__
)
def test_where_it_depends_each_error_says_it_of_itself(cls: type[HoldfastError]) -> None:
    """The attribute, the message and a copy that has travelled agree."""
    for word in (True, False):
        error = made(cls, retry_safe=word)
        again = pickle.loads(pickle.dumps(error))  # noqa: S301 - ours.
        assert error.retry_safe is again.retry_safe is word
        assert f"\n  Worth a retry: {'yes' if word else 'no'}" in str(error)


def test_the_table_of_the_reference_is_what_the_classes_say() -> None:
    """A scheduler is set up by what the page says."""
    page = (Path(__file__).parents[2] / "docs/reference/errors.md").read_text(encoding="utf-8")
    told = dict(re.findall(r"^\| `(\w+Error)` \| (True|False|depends) \|", page, re.MULTILINE))
    bases = {cls.__base__ for cls in CLASSES} - {errors.SettingsError}
    leaves = [one for one in CLASSES if one not in bases]
    assert told == {
        one.__name__: "depends" if has_own_word(one) else str(one.retry_safe) for one in leaves
    }


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
