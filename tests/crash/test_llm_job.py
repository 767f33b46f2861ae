"""The LLM job of the examples, killed on the way: no answer is paid for twice, no row is lost.

The server's own count is the evidence: it knows which rows it had answered before.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from examples.llm_enrich.model_server import is_poison
from tests.crash.crash_table import CrashTable
from tests.crash.llm_example import Example, model_server
from tests.crash.own_cluster import OwnCluster
from tests.crash.started_jobs import kill_process

pytestmark = [pytest.mark.crash, pytest.mark.spark, pytest.mark.stack, pytest.mark.rest]

ROWS, WORKERS, CONCURRENCY, EVERY_S = 20_000, 2, 64, 5.0
ERRORS, POISON, RATE, SEED = 0.05, 0.005, 220, 11


@pytest.mark.timeout(1200)  # 20,000 calls of half a second, and four starts of Spark.
def test_twenty_thousand_answers_survive_three_kills(
    table: CrashTable,
    cluster: OwnCluster,
    lake: SparkSession,
    tmp_path: Path,
    chance: random.Random,
) -> None:
    """Good rows land once, poison rows are set aside once, and little is asked for again.

    Method: SIGKILL the driver twice and an executor once, at random moments between answers; read
    with Spark SQL; compare with the server's own count.
    """
    store = table.ledger["store"]
    kills = [chance.randint(low, low + 3_000) for low in (2_000, 7_000, 12_000)]
    with model_server(rate=RATE, errors=ERRORS, poison=POISON, seed=SEED) as server:
        example = Example(
            stack=table.stack,
            store=store,
            arguments=(
                *("--stack", f"--server={server.url}", f"--rows={ROWS}", "--run=enrich"),
                *(f"--concurrency={CONCURRENCY}", f"--checkpoint-every={EVERY_S:.0f}s"),
                f"--table={table.name}",
            ),
            spark=cluster.session_conf(),
            folder=tmp_path,
        )
        for number, answers in enumerate(kills[:2]):
            with example.start(f"start-{number}") as started:
                started.wait_for_answers(server, answers)
                assert started.kill() > 1  # Its JVM too.
        with example.start("start-2") as started:
            rate = started.wait_for_answers(server, kills[2]) / WORKERS
            kill_process(chance.choice(cluster.executors()))
            assert started.process.wait(timeout=600.0) == 0, started.output
        counts = server.counts()
    print(started.output[started.output.find("  run ") :])
    print(f"  kills at {kills} answers; server: { {**counts, 'poison_ids': '...'} }")

    poison = {row for row in range(ROWS) if is_poison(SEED, POISON, row)}
    rows = lake.table(f"lake.{table.name}")
    landed = {row["id"] for row in rows.select("id").collect()}
    run = hf.Run("enrich", store=store, store_options=table.ledger["store_options"])
    aside = [row["id"] for row in run.quarantined().select("key.id").collect()]
    assert rows.count() == len(landed) == ROWS - len(poison)
    assert sorted(aside) == sorted(poison)
    assert landed.isdisjoint(poison)
    assert table.snapshots_with_rows() == 1

    allowed = (2 + 1) * WORKERS * (EVERY_S * rate + CONCURRENCY)
    print(f"  {rate:.0f} answers a second and worker")
    print(f"  {counts['answered_again']} calls for answered rows of {allowed:.0f} allowed")
    assert counts["answered_again"] <= allowed
