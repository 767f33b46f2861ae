"""A soak: runs one after another for an hour, while the processes that they need are killed.

Every 20 to 40 seconds a driver, an executor, the S3 server, the REST catalog or its database is
killed, by a seed; servers come back at once. A driver that ends without a commit is started again.
After each run the table is read, and every violation is printed.

    make soak MINUTES=60 [SEED=1]
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pyiceberg.catalog import Catalog, load_catalog

from tests.crash.drivers import Driver, Nursery
from tests.crash.jobs.nursery import POISON
from tests.crash.own_cluster import executors_of
from tests.crash.own_connect import connect_server
from tests.crash.started_jobs import ROOT, kill_process, read_proc, session_of
from tests.stack_access import Stack, load_stack

ROWS, PLACES, ROW_S = 600, 6, 0.15
_KILL_EVERY_S = (20.0, 40.0)
_STARTS_MAX = 30
_LANDED = {"committed", "already_committed"}
_SERVERS = ("s3", "rest", "postgres")
_ASKED_MAX = 20

_Answer = TypeVar("_Answer")


@dataclass
class Soak:
    """The state and the counts of a soak."""

    stack: Stack
    catalog: Catalog
    nursery: Nursery
    remote: str
    until: float
    chance: random.Random
    counts: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    kill_at: float = 0.0

    def run(self) -> None:
        """Bring one run to its end, however often it has to be started."""
        name = uuid.uuid4().hex[:10]
        order = {
            "act": "append",
            "run_id": f"soak {name}",
            "to": f"soak.t{name}",
            "store": f"s3://{self.stack.s3.bucket}/soak-{name}",
            "store_options": self.stack.s3.store_options(),
            "catalog": self.stack.rest_catalog_properties(),
            "remote": self.remote,
            "rows": ROWS,
            "places": PLACES,
            "row_s": ROW_S,
            "fails": False,
        }
        self.counts["runs"] += 1
        for _ in range(_STARTS_MAX):
            self.counts["starts"] += 1
            ended = self._live(self.nursery.start(order))
            self.counts[f"ended: {ended['error'] or ended['outcome']}"] += 1
            if ended["outcome"] in _LANDED:
                self._check(order, ended)
                return
        self.violations.append(f"{order['run_id']} was not done after {_STARTS_MAX} starts")

    def _live(self, driver: Driver) -> dict[str, Any]:
        """Run a driver, and kill something whenever it is time."""
        while not driver.has_ended:
            if time.monotonic() >= self.kill_at:
                self._kill(driver)
                self.kill_at = time.monotonic() + self.chance.uniform(*_KILL_EVERY_S)
            time.sleep(0.1)
        return driver.wait()

    def _kill(self, driver: Driver) -> None:
        kind = self.chance.choice(("driver", "executor", "server"))
        if kind == "server":
            kind = self.chance.choice(_SERVERS)
            command = [sys.executable, str(ROOT / "dev" / "stack" / "stack.py"), "restart", kind]
            subprocess.run(command, check=True, capture_output=True, timeout=120)
        elif kind == "executor":
            executors = executors_of(self._server)
            if not executors:
                return  # The last server that was killed is not back yet.
            kill_process(self.chance.choice(executors))
        else:
            kill_process(driver.process_id)
        self.counts[f"killed: {kind}"] += 1
        _say(f"killed {kind}")

    @property
    def _server(self) -> int:
        """The leader of the Connect server's session."""
        port = self.remote.rsplit(":", 1)[1]
        for folder in Path("/proc").glob("[0-9]*"):
            process_id = int(folder.name)
            command, session_id = read_proc(process_id, "cmdline"), session_of(process_id)
            is_ours = "SparkConnectServer" in command and f"binding.port={port}" in command
            if is_ours and session_id is not None:
                return session_id
        raise RuntimeError("the Connect server is gone")

    def _check(self, order: dict[str, Any], ended: dict[str, Any]) -> None:
        table = _patiently(lambda: self.catalog.load_table(order["to"]))
        rows = _patiently(lambda: table.scan().to_arrow())
        ids = sorted(rows["id"].to_pylist())
        if ids != [id_ for id_ in range(ROWS) if id_ != POISON]:
            self.violations.append(f"{order['run_id']}: {len(ids)} rows, {len(set(ids))} ids")
        wrong = [row for row in rows.to_pylist() if row["y"] != 2 * row["id"] + 1]
        added = {snapshot.snapshot_id: snapshot.summary for snapshot in table.snapshots()}
        data = [
            snapshot_id
            for snapshot_id, facts in added.items()
            if facts and int(facts["added-records"] or 0)
        ]
        if wrong or data != [ended["snapshot_id"]]:
            self.violations.append(f"{order['run_id']}: {wrong[:3]}, {len(data)} data snapshots")
        self.counts["rows"] += len(ids)
        _say(f"run {self.counts['runs']}: {ended['outcome']}, {len(ids)} rows")


def _patiently(ask: Callable[[], _Answer]) -> _Answer:
    """Ask a server that may just have been killed, until it answers."""
    for _ in range(_ASKED_MAX):
        with suppress(Exception):
            return ask()
        time.sleep(1.0)
    return ask()


def _say(what: str) -> None:
    sys.stdout.write(f"{time.strftime('%H:%M:%S')}  {what}\n")
    sys.stdout.flush()


def main() -> int:
    """Soak, and print one line of JSON at the end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    given = parser.parse_args()
    stack = load_stack()
    if stack is None:
        sys.stderr.write("the stack is not running: make stack\n")
        return 1
    catalog = load_catalog("soak", **stack.rest_catalog_properties())
    _patiently(lambda: catalog.create_namespace_if_not_exists("soak"))
    folder = Path(tempfile.mkdtemp(prefix="holdfast-soak-"))
    cluster = {"spark.master": "local-cluster[2,3,1024]", "spark.executor.memory": "768m"}
    with (
        connect_server(folder / "server", cluster) as remote,
        Nursery.opened(folder, {}) as nursery,
    ):
        soak = Soak(
            stack=stack,
            catalog=catalog,
            nursery=nursery,
            remote=remote,
            until=time.monotonic() + given.minutes * 60,
            chance=random.Random(given.seed),
            kill_at=time.monotonic() + _KILL_EVERY_S[0],
        )
        _say(f"seed {given.seed}, {given.minutes:g} minutes")
        while time.monotonic() < soak.until:
            soak.run()
    figures = {"seed": given.seed, "minutes": given.minutes, **dict(sorted(soak.counts.items()))}
    sys.stdout.write(json.dumps({**figures, "violations": soak.violations}) + "\n")
    return 1 if soak.violations else 0


if __name__ == "__main__":
    sys.exit(main())
