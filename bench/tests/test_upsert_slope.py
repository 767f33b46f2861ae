"""What the benchmark of upserts into larger tables compares."""

from __future__ import annotations

import json

from bench.upsert_child import MergeJob
from bench.upsert_slope import ratios


def test_the_largest_size_is_compared_with_the_smallest() -> None:
    """In seconds, bytes read, and both peaks of memory."""
    names = ("median_s", "read_mb", "worker_mb", "driver_mb")
    found = {
        size: dict(zip(names, values, strict=True))
        for size, values in {16: (3.0, 110.0, 310.0, 90.0), 1: (2.0, 100.0, 300.0, 90.0)}.items()
    }
    assert ratios({**found, 4: found[1]}) == {
        "ratio_seconds": 1.5,
        "ratio_bytes_read": 1.1,
        "ratio_worker_memory": 1.033,
        "ratio_driver_memory": 1.0,
    }


def test_a_job_arrives_in_its_process_as_it_was_given() -> None:
    """By JSON, which knows no tuples."""
    job = MergeJob(name="n", table="t", tag="x1", paths=("a", "b"), merged=2, first_rows=3, rows=4)
    given = json.loads(json.dumps(job.arguments()))
    assert MergeJob(**{**given, "paths": tuple(given["paths"])}) == job
