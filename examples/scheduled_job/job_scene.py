"""What the scenarios share: start processes, kill a job half way, check the table.

Only processes that a scenario has started, and their descendants, are ended.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from product_job import ROWS, TABLE, catalog_of
from pyiceberg.catalog import load_catalog

import holdfast as hf

HERE = Path(__file__).resolve().parent
POLL_S = 0.5
GRACE_S = 15.0
T = TypeVar("T")


class Process(NamedTuple):
    """A process, distinguished from a later one with the same id."""

    process_id: int
    started_at: int


@contextlib.contextmanager
def scene_folder() -> Iterator[Path]:
    """Give the folder that the command line names, or one that is removed afterwards."""
    if sys.argv[1:]:
        folder = Path(sys.argv[1]).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
    else:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
            yield Path(name)


@contextlib.contextmanager
def started(
    command: Sequence[str], *, environment: Mapping[str, str], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a program, and end it afterwards with all its descendants."""
    print("start:", *command, flush=True)
    paths = [str(HERE), os.environ.get("PYTHONPATH", "")]  # Schedulers import the job.
    environment = {
        **os.environ,
        **environment,
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
    }
    with log.open("ab") as output:
        program = subprocess.Popen(  # noqa: S603 - our own commands.
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C goes to this script, which ends the program.
        )
    try:
        yield program
    finally:
        _end(program)


def wait_for(
    find: Callable[[], T | None], *, what: str, timeout_s: float, program: subprocess.Popen[bytes]
) -> T:
    """Wait until something is found, and return it.

    Raises:
        SystemExit: The program has ended, or time is up.
    """
    until = time.monotonic() + timeout_s
    while (found := find()) is None:
        if program.poll() is not None:
            sys.exit(f"{what}: the program ended with {program.returncode}")
        if time.monotonic() > until:
            sys.exit(f"{what}: not seen in {timeout_s:.0f} s")
        time.sleep(POLL_S)
    return found


def kill_at(
    run: hf.Run,
    share: float,
    *,
    timeout_s: float,
    program: subprocess.Popen[bytes],
    levels: int = 0,
) -> int:
    """Kill a run's driver with all its descendants, once so much of its input is done.

    Args:
        run: The run.
        share: How much of the input, from 0 to 1.
        timeout_s: How long to wait for that.
        program: The scheduler, which has started the driver.
        levels: Kill the driver's parent (1) instead, or the parent of that (2).

    Raises:
        SystemExit: That share was not reached, or the driver is not the scheduler's.
    """

    def far_enough() -> hf.RunStatus | None:
        status = run.status()
        return status if status.done_rows >= share * ROWS else None

    status = wait_for(far_enough, what="rows in checkpoints", timeout_s=timeout_s, program=program)
    victim = status.process_id
    for _ in range(levels):
        victim = _parents().get(victim, (0, 0))[0]
    if victim == program.pid or victim not in {
        process.process_id for process in _tree_of(program.pid)
    }:
        sys.exit(f"process {victim} is not the scheduler's: nothing is killed")
    tree = _tree_of(victim)
    for process in tree:
        _send(process, signal.SIGKILL)
    print(f"killed: {len(tree)} processes, {status.done_rows:,} of {ROWS:,} rows were done")
    sys.stdout.flush()
    return status.done_rows


def check_table(lake: Path) -> None:
    """Read the table, and check that each row is there once.

    Raises:
        SystemExit: Rows are missing or doubled.
    """
    ids = load_catalog(**catalog_of(lake)).load_table(TABLE).scan().to_arrow()["id"].to_pylist()
    print(f"{len(ids):,} rows in the table, {len(set(ids)):,} different ids")
    if sorted(ids) != list(range(ROWS)):
        sys.exit("the table is not what it should be")


def _end(program: subprocess.Popen[bytes]) -> None:
    """Ask a program to end, then kill what is left."""
    tree = _tree_of(program.pid)
    if program.poll() is None:
        program.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        program.wait(GRACE_S)
    for process in {*tree, *_tree_of(program.pid)}:
        _send(process, signal.SIGKILL)
    program.wait()


def _send(process: Process, number: signal.Signals) -> None:
    if _parents().get(process.process_id, (0, 0))[1] == process.started_at:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.process_id, number)


def _tree_of(process_id: int) -> list[Process]:
    """Return a process and all its descendants."""
    parents = _parents()
    found = [process_id] if process_id in parents else []
    for parent in found:  # The list grows during the loop.
        found += [child for child, (its_parent, _) in parents.items() if its_parent == parent]
    return [Process(found_id, parents[found_id][1]) for found_id in found]


def _parents() -> dict[int, tuple[int, int]]:
    """Return the parent and the start time of each process of this machine."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # It has ended since.
                # Its name, in brackets, may hold blanks: what follows the last bracket does not.
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                found[int(entry.name)] = (int(fields[1]), int(fields[19]))
    return found
