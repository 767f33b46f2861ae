"""The root of all errors: how an error is put into words, and how it survives pickle."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar

from holdfast.plain_text import printable, without_passwords

_SUMMARY_LENGTH_MAX = 500


def _rebuild(cls: type[HoldfastError], facts: dict[str, Any]) -> HoldfastError:
    return cls(**facts)


def _shown(text: str) -> str:
    """Return a sentence for people: facts come from stores, catalogs and other programs.

    A line break inside a fact is followed by blanks: the facts of an error cannot pass for its
    second or third part.
    """
    return "\n    ".join(printable(line) for line in without_passwords(text).splitlines())


@dataclass(eq=False, repr=False, kw_only=True)
class HoldfastError(Exception):
    """The root of all errors that Holdfast raises.

    Subclasses are keyword-only dataclasses: what is known about the failure is in their
    attributes, and `happened` and `advice` are templates over them.
    """

    happened: ClassVar[str] = "something went wrong"
    # Whether the same script, unchanged, may succeed if it is run again later. Some subclasses
    # have it as a field, because it depends on what happened.
    retry_safe = True
    advice: ClassVar[str] = "run the same script again"

    @property
    def summary(self) -> str:
        """What happened, on one line that is not too long: for records and lists."""
        line = " ".join(_shown(self.happened.format(**self._facts())).split())
        cut = len(line) > _SUMMARY_LENGTH_MAX
        return f"{line[: _SUMMARY_LENGTH_MAX - 1]}…" if cut else line

    def __str__(self) -> str:
        """Return what happened, whether a retry may succeed, and what to do."""
        facts = self._facts()
        retry = "yes" if self.retry_safe else "no, it would fail the same way"
        return (
            f"{_shown(self.happened.format(**facts))}\n"
            f"  Worth a retry: {retry}.\n"
            f"  What to do: {_shown(self.advice.format(**facts))}."
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Survive pickle, which rebuilds exceptions from positional arguments by default."""
        return _rebuild, (type(self), self._facts())

    def _facts(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}
