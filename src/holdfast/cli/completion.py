"""`holdfast completion`: what a shell needs to complete this command line."""

from __future__ import annotations

import argparse

import shtab

from holdfast.cli import plain
from holdfast.cli.main import COMMANDS, command_of, make_parser
from holdfast.errors import MissingExtraError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("shell", choices=("bash", "zsh"))


def run(given: argparse.Namespace) -> int:
    """Print the completion script for the shell to evaluate."""
    parser = make_parser([name for name in COMMANDS if _is_there(name)])
    plain.print_script(shtab.complete(parser, shell=given.shell))
    return 0


def _is_there(name: str) -> bool:
    """Whether a command can be used here; others are completed only by name."""
    try:
        command_of(name)
    except (MissingExtraError, ImportError):
        return False
    return True
