"""Two drivers of one run at the same time: the rows land once; the other driver gets an error.

Method: 45 rounds between two clients of one Spark Connect server, and 5 between two whole driver
processes with a Spark of their own. The second driver starts after a random pause, so that they
meet at different steps; neither waits (`takeover="now"`).
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.integration.process_jobs import QUIET, end_of, started_job
from tests.stack_access import Stack

pytestmark = [
    pytest.mark.spark,
    pytest.mark.stack,
    pytest.mark.rest,
    pytest.mark.slow,
    pytest.mark.timeout(1500),
]

SEED_VARIABLE = "HOLDFAST_TEST_SEED"
SEED = int(os.environ.get(SEED_VARIABLE) or random.randrange(2**32))
ROWS = 20
DRIVERS = ("a", "b")
# How each of the two may end, while the rows have landed once.
ENDS = {
    ("already_committed", "committed"),
    ("RunFencedError", "committed"),
    # The first was fenced between its post and its receipt: the second found the post.
    ("RunFencedError", "already_committed"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Arena:
    """The session, store and namespace that the rounds run on."""

    stack: Stack
    lake: SparkSession
    namespace: str
    ledger: dict[str, Any]
    folder: Path

    def settings(self, rounds: int, pause_max_s: float) -> dict[str, Any]:
        """Return the settings of all drivers; every second round starts without a table."""
        rng = random.Random(SEED)
        found = []
        for number in range(rounds):
            if number % 2:
                name = f"lake.{self.namespace}.t{number}"
                self.lake.sql(f"CREATE TABLE {name} (n bigint) USING iceberg")
            found.append(
                {
                    "run_id": f"round {number}",
                    "to": f"{self.namespace}.t{number}",
                    "delays": {"a": 0.0, "b": rng.uniform(0.0, pause_max_s)},
                    "checkpoint_every": rng.choice(["0.2s", "30s"]),
                }
            )
        return {
            **self.ledger,
            "rounds": found,
            "catalog": self.stack.rest_catalog_properties(),
            "rows": ROWS,
            "tasks": 2,
            "meeting": str(self.folder),
            "rivals": len(DRIVERS),
        }

    def fight(self, settings: dict[str, Any], teams: list[tuple[str, ...]]) -> list[dict[str, Any]]:
        """Start a process for each team of drivers, and return how all rounds ended."""
        ends: list[dict[str, Any]] = []
        with ExitStack() as stack:
            jobs = [
                stack.enter_context(
                    started_job(
                        {**settings, "drivers": team},
                        folder=self.folder,
                        script="rival_drivers.py",
                    )
                )
                for team in teams
            ]
            for job in jobs:
                ended = end_of(job, timeout_s=1200.0)
                assert ended.code == 0, ended.errors
                ends += [json.loads(line) for line in ended.output.splitlines()]
        return ends

    def check(self, number: int, ends: list[dict[str, Any]]) -> tuple[str, ...]:
        """Check one round against the table, and return how the two drivers ended."""
        assert len(ends) == len(DRIVERS)
        name = f"lake.{self.namespace}.t{number}"
        rows = self.lake.table(name).collect()
        assert sorted(row["n"] for row in rows) == list(range(ROWS)), ends
        snapshots = self.lake.table(f"{name}.snapshots").collect()
        data = [
            snapshot
            for snapshot in snapshots
            if snapshot["summary"].get("added-records", "0") != "0"
        ]
        assert [snapshot["summary"].get("holdfast.run") for snapshot in data] == [
            f"round {number}"
        ], ends
        named = {end["snapshot_id"] for end in ends if end["outcome"]}
        assert named == {data[0]["snapshot_id"]}, ends
        return tuple(sorted(end["outcome"] or end["error"] for end in ends))


@pytest.fixture
def arena(
    stack: Stack, lake: SparkSession, namespace: str, ledger: dict[str, Any], tmp_path: Path
) -> Arena:
    """Return an arena where nothing has happened."""
    return Arena(stack=stack, lake=lake, namespace=namespace, ledger=ledger, folder=tmp_path)


def tally_of(arena: Arena, rounds: int, ends: list[dict[str, Any]]) -> Counter[tuple[str, ...]]:
    """Check all rounds, and count and print how they ended."""
    tally = Counter(
        arena.check(number, [end for end in ends if end["round"] == number])
        for number in range(rounds)
    )
    print(f"to run again: {SEED_VARIABLE}={SEED}")
    for pair, count in tally.most_common():
        print(f"{count:3} x {' and '.join(pair)}")
    for end in ends:
        if end["error"] not in {"", "RunFencedError"}:
            print(end)
    return tally


@pytest.mark.connect
def test_two_connect_clients_of_one_run_land_it_once(arena: Arena) -> None:
    """In 45 rounds there is never a second data snapshot, and no other error."""
    spark = {
        "spark.remote": arena.stack.connect_remote,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
    }
    settings = {**arena.settings(45, pause_max_s=1.6), "spark": spark}
    tally = tally_of(arena, 45, arena.fight(settings, [DRIVERS]))
    assert set(tally) <= ENDS
    # They did overlap: in some rounds one driver was fenced.
    assert sum(count for pair, count in tally.items() if "RunFencedError" in pair) > 0


def test_two_driver_processes_of_one_run_land_it_once(arena: Arena) -> None:
    """In 5 rounds the same holds for drivers that share nothing but the store and the catalog."""
    spark = {**QUIET, "spark.master": "local[1]", "spark.sql.shuffle.partitions": "2"}
    settings = {**arena.settings(5, pause_max_s=1.0), "spark": spark}
    tally = tally_of(arena, 5, arena.fight(settings, [(driver,) for driver in DRIVERS]))
    assert set(tally) <= ENDS
