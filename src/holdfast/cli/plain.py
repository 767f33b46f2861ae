"""What the command line prints without rich: lines, JSON, errors, warnings, and wrong usage.

No other module of the command line calls `print` or writes to a stream; tables and colours go
through `console`. Run ids, reasons and names come from other people and programs: nothing in them
may act on the terminal that shows them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import warnings
from collections.abc import Iterator
from typing import Any, NoReturn, TextIO

from holdfast.errors import HoldfastError
from holdfast.text import printable, without_passwords


def print_line(text: str) -> None:
    """Print one line, however long."""
    print(printable(text), flush=True)


def print_script(text: str) -> None:
    """Print one of our scripts unchanged, for a shell to read."""
    print(text)


def print_json(document: Any, *, indent: int | None = 2) -> None:  # noqa: ANN401 - whatever JSON holds.
    """Print one JSON document, the same on a terminal and in a pipe.

    In ASCII: a program reads the exact id from it, and no control character reaches a terminal.
    """
    print(json.dumps(document, indent=indent), flush=True)


def print_error(error: HoldfastError) -> None:
    """Print an error on standard error, in its three parts; its text is safe to show."""
    print(f"holdfast: {error}", file=sys.stderr)


class Parser(argparse.ArgumentParser):
    """A parser whose error messages repeat nothing that acts on a terminal.

    Options are not abbreviated: a mistyped one must not pass for another.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:  # noqa: ANN401 - argparse's own.
        """Take what argparse takes."""
        super().__init__(*arguments, **{"allow_abbrev": False, **options})

    def error(self, message: str) -> NoReturn:
        """Print the usage and the problem, and exit."""
        super().error(printable(without_passwords(message)))


@contextlib.contextmanager
def warnings_on_one_line() -> Iterator[None]:
    """Print warnings on one line, without the place in Holdfast that they come from."""

    def show(  # noqa: PLR0913, PLR0917 - as Python calls it.
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        del category, filename, lineno, line
        said = printable(without_passwords(str(message)))
        print(f"holdfast: warning: {said}", file=file or sys.stderr)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield
