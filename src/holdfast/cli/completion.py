"""`holdfast completion`: what a shell needs to complete this command line."""

from __future__ import annotations

import argparse

import shtab

from holdfast.cli import plain
from holdfast.cli.main import COMMANDS, command_of, make_parser
from holdfast.errors import MissingExtraError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    parser.add_argument("shell", choices=("bash", "zsh"))


def run(given: argparse.Namespace) -> int:
    """Print the completion; the shell is to evaluate it."""
    parser = make_parser([name for name in COMMANDS if _is_there(name)])
    plain.print_script(shtab.complete(parser, shell=given.shell))
    return 0


def _is_there(name: str) -> bool:
    """Whether a command can be used here: the others are completed by name alone."""
    try:
        command_of(name)
    except (MissingExtraError, ImportError):
        return False
    return True
