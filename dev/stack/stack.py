#!/usr/bin/env python3
"""Start, stop and show the real servers that the tests use. See README.md in this folder."""

from __future__ import annotations

import argparse
import fcntl
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import locate
import processes
from launch import Launcher, ServerFailedError, all_servers, is_ready, leaders
from plan import EXTRAS, Plan, describe, load_plan, new_plan, save, save_plan
from servers import remove_postgres_data

_PATIENCE_S = 8.0
_OWNED_FILE = ".holdfast-stack"


@contextmanager
def _locked() -> Iterator[None]:
    """Lock the state folder, so that two commands do not start or stop at the same time.

    Raises:
        SystemExit: The folder is not empty and not the stack's.
    """
    folder = locate.state_dir()
    if folder.is_dir() and any(folder.iterdir()) and not (folder / _OWNED_FILE).exists():
        # A start wipes data/ and logs/ inside: never inside a folder that is not the stack's.
        message = f"{folder} is not empty and not the stack's: set HOLDFAST_STACK_DIR"
        raise SystemExit(message)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _OWNED_FILE).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _dead(plan: Plan) -> list[str]:
    """Return the names of the servers that do not run or do not answer."""
    identities = {name: (pid, ticks) for name, pid, ticks, _ in plan.processes}
    dead: list[str] = []
    for server in all_servers(plan):
        identity = identities.get(server.name)
        if not (identity and processes.alive(processes.Identity(*identity)) and is_ready(server)):
            dead.append(server.name)
    return dead


def _stop(plan: Plan) -> None:
    """End every process of a plan and forget it; logs stay."""
    (locate.state_dir() / "stack.json").unlink(missing_ok=True)
    ended, forced = processes.end(leaders(plan), plan.mark, patience_s=_PATIENCE_S)
    remove_postgres_data(plan)
    (locate.state_dir() / "plan.json").unlink(missing_ok=True)
    print(f"stopped {ended} processes ({forced} by force)", flush=True)


def start(extras: list[str]) -> int:
    """Start all servers with fresh data, unless they are up and well."""
    started = time.monotonic()
    with _locked():
        plan = load_plan()
        if plan:
            dead = _dead(plan)
            ready = (locate.state_dir() / "stack.json").exists()
            if ready and not dead and set(extras) <= set(plan.extras):
                print(f"the stack is up and well: {locate.state_dir() / 'stack.json'}")
                return 0
            why = f"not well: {', '.join(dead)}" if dead else "other servers are wanted"
            print(f"starting again ({why})", flush=True)
            _stop(plan)
        for name in ("data", "logs"):
            folder = locate.state_dir() / name
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        plan = new_plan(extras)
        save_plan(plan)
        try:
            Launcher(plan).run()
        except BaseException:
            _stop(plan)
            raise
        save(locate.state_dir() / "stack.json", describe(plan))
    took_s = time.monotonic() - started
    print(f"the stack is up after {took_s:.1f} s: {locate.state_dir() / 'stack.json'}")
    return 0


def restart(name: str) -> int:
    """Kill one server and start it again on the data that it has left.

    Raises:
        ServerFailedError: There is no such server, or it did not come back.
    """
    with _locked():
        plan = load_plan()
        if plan is None:
            message = "the stack is not running"
            raise ServerFailedError(message)
        Launcher(plan).restart(name)
    return 0


def stop() -> int:
    """Stop all servers; safe to call again."""
    with _locked():
        plan = load_plan()
        if plan is None:
            print("the stack is not running")
        else:
            _stop(plan)
    return 0


def status() -> int:
    """Print one line for each server; return 1 unless all are well."""
    plan = load_plan()
    if plan is None:
        print("the stack is not running")
        return 1
    dead = _dead(plan)
    pids = {name: pid for name, pid, _, _ in plan.processes}
    for server in all_servers(plan):
        state = "DEAD " if server.name in dead else "ready"
        print(f"{server.name:<11} {state}  {server.url:<36} pid {pids.get(server.name)}")
    return 1 if dead else 0


def main(arguments: list[str]) -> int:
    """Run one command of the command line."""
    parser = argparse.ArgumentParser(prog=Path(__file__).name, description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    start_parser = commands.add_parser("start", help="start all servers, with fresh data")
    start_parser.add_argument("--with", dest="extras", action="append", choices=EXTRAS, default=[])
    restart_parser = commands.add_parser("restart", help="kill one server, and start it again")
    restart_parser.add_argument("name")
    commands.add_parser("stop", help="end every process of the stack")
    commands.add_parser("status", help="show whether each server is well")
    chosen = parser.parse_args(arguments)
    try:
        if chosen.command == "start":
            return start(chosen.extras)
        if chosen.command == "restart":
            return restart(chosen.name)
        return stop() if chosen.command == "stop" else status()
    except (ServerFailedError, locate.NotInstalledError, RuntimeError) as error:
        print(f"stack: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
