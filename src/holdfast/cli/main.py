"""`holdfast`: one command line, one module for each command.

A command's module is imported only when that command is used, so that help appears at once.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Protocol

from holdfast import __version__
from holdfast.cli import plain
from holdfast.errors import HoldfastError, MissingExtraError

# Each in a module of the same name.
COMMANDS = {
    "runs": "list the runs of a store",
    "status": "show the state of a run",
    "watch": "show a run's progress, live",
    "inspect": "show a run's log, its tasks, and what a start would do next",
    "report": "write a page about a run, to open in a browser",
    "abort": "abort a run for good",
    "sweep": "delete what an ended run no longer needs",
    "drill": "start a job and kill it halfway, to see that it resumes",
    "doctor": "check store, catalog, versions and executors, and say what to fix",
    "completion": "print a completion script for a shell",
}
# These need no store.
_WITHOUT_STORE = ("completion",)
# These print nothing that a program would read.
_WITHOUT_JSON = ("drill",)
_FAILED, _INTERRUPTED = 1, 130


class Command(Protocol):
    """The interface of a command's module."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's arguments, apart from `--store`, `--option` and `--json`."""

    def run(self, given: argparse.Namespace) -> int:
        """Run the command, and return the exit code."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the given command; return the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        # Only for the one command: its module may take long to import.
        given = make_parser([word for word in words if word in COMMANDS][:1]).parse_args(words)
        with plain.warnings_on_one_line():
            code = command_of(given.command).run(given)
        sys.stdout.flush()  # Here, where an error can still be reported.
    except HoldfastError as error:
        plain.print_error(error)
        return _FAILED
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader is gone, as with `| head`. Python would complain again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code


def command_of(name: str) -> Command:
    """Return a command's module.

    Raises:
        MissingExtraError: The command needs a package that is not installed.
        ImportError: The module cannot be imported for another reason.
    """
    try:
        found: Command = import_module(f"holdfast.cli.{name}")
    except ImportError as error:
        if error.name is None or error.name.startswith("holdfast"):
            raise
        raise MissingExtraError(
            what=f"holdfast {name}", package=error.name.split(".")[0], extra="cli"
        ) from error
    return found


def make_parser(whole: Sequence[str] = tuple(COMMANDS)) -> argparse.ArgumentParser:
    """Return the command-line parser.

    Args:
        whole: The commands whose own arguments are added; the others get only their names.

    Raises:
        MissingExtraError: A command needs a package that is not installed.
    """
    parser = plain.Parser(
        prog="holdfast", description="Resumable, exactly-once batch jobs on Spark."
    )
    parser.add_argument("--version", action="version", version=f"holdfast {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text in COMMANDS.items():
        subparser = commands.add_parser(
            name, help=text, description=f"{text[0].upper()}{text[1:]}."
        )
        if name not in whole:
            continue
        if name not in _WITHOUT_STORE:
            _add_common(subparser, with_json=name not in _WITHOUT_JSON)
        command_of(name).add_arguments(subparser)
    return parser


def _add_common(parser: argparse.ArgumentParser, *, with_json: bool) -> None:
    parser.add_argument(
        "--store", help="the store's URI; by default the value of HOLDFAST_STORE", metavar="URI"
    )
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a storage option (s3.endpoint=...); may be repeated; VALUE may be @env:NAME or "
        "@file:PATH, so that a secret does not appear in the process list",
    )
    if with_json:
        parser.add_argument("--json", action="store_true", help="print JSON, for programs")
