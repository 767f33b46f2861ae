"""`hf.per_worker`: what is slow to make is made once in each worker process, not once a task.

Method: each build leaves a file named by its process, so builds are counted from outside. On
other clusters `test_where_it_runs.py` counts them by a mark in the rows.
"""

from __future__ import annotations

import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from tests.integration.process_desk import Desk
from tests.integration.process_transforms import Counted

pytestmark = [pytest.mark.spark, pytest.mark.stack, pytest.mark.rest]

TASKS = 20


@pytest.fixture
def desk(
    lake: SparkSession,
    namespace: str,
    ledger: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Desk:
    """Return a table whose writers are new: Spark keeps a pool of workers per environment."""
    monkeypatch.setitem(lake.sparkContext.environment, "HOLDFAST_POOL", uuid.uuid4().hex)
    desk = Desk(lake=lake, namespace=namespace, ledger=ledger, folder=tmp_path)
    desk.create_table()
    return desk


def builds_by_mark(folder: Path) -> Counter[str]:
    """Return how often each process has built the transform, by label and process."""
    return Counter(file.name.rpartition(" ")[0] for file in folder.iterdir())


def test_twenty_tasks_on_two_workers_build_twice_and_a_second_run_not_at_all(desk: Desk) -> None:
    """Each process builds once, with the arguments given, and keeps it for the next run."""
    transform = hf.per_worker(Counted, desk.folder, label="model-a")
    first = desk.append(desk.ids(rows=40, tasks=TASKS), transform=transform)
    assert first.tasks == TASKS
    builds = builds_by_mark(desk.folder)
    assert sorted(builds.values()) == [1, 1]
    # The rows carry label and process: both objects were used, and no other.
    rows = desk.rows()
    assert [number for number, _ in rows] == list(range(40))
    assert {mark for _, mark in rows} == set(builds)

    again = desk.ids(rows=40, tasks=TASKS)
    assert desk.append(again, transform=transform, run_id="next").outcome == "committed"
    assert builds_by_mark(desk.folder) == builds
    assert len(desk.rows()) == 80


def test_what_was_built_for_one_object_never_serves_another(desk: Desk) -> None:
    """Class and workers are the same, the arguments are not."""
    for label in ("model-a", "model-b"):
        transform = hf.per_worker(Counted, desk.folder, label=label)
        desk.append(desk.ids(tasks=4), transform=transform, run_id=label)
    builds = builds_by_mark(desk.folder)
    assert set(builds.values()) == {1}
    rows = desk.rows()
    assert {mark for _, mark in rows} == set(builds)
    labels = Counter(mark.split()[0] for _, mark in rows)
    assert labels == {"model-a": 6, "model-b": 6}
