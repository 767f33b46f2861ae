"""Memory: does a scan need more of it for more data?

Each size is a job in a process of its own with a fresh session. The peak of each Python worker
and of the driver's Python is the kernel's own (VmHWM). A size of 1 fills every bounded buffer: a
task reads several row groups, whose next one is fetched while the current one is at work, and
writes several. Larger sizes read copies of the same files. The largest is, as decoded rows, twenty
times a worker's memory limit, which is watched, not enforced.
"""

from __future__ import annotations

import uuid
from typing import Any

from bench.process_tree import answer, start, watched
from bench.s3_input import S3Input, upload_events
from bench.scan_child import ScanJob
from bench.session import open_stack

# Large row groups, as Spark writes them: here one is about 50 MB when stored.
GROUP_ROWS = 3 * 1024 * 1024
_DECODED_BYTES_OF_A_ROW = 52
_PARTITIONS = 1_000
_LARGE = 10
_LARGEST = 20


def measure(
    name: str, data: S3Input, warm_up: S3Input, *, partitions: int = 0, old_files: int = 0
) -> dict[str, Any]:
    """Run one job, and return its peaks.

    Args:
        name: What to call it.
        data: What it reads.
        warm_up: What a job before it reads, in the same session.
        partitions: How many partitions its table has; 0: it is not partitioned.
        old_files: How many files each partition has, for the job to replace.

    Raises:
        SystemExit: Not all rows arrived, or not all old files are gone.
    """
    job = ScanJob(
        name=f"memory_{name}_{uuid.uuid4().hex[:8]}",
        paths=data.paths,
        warm_up=warm_up.paths,
        partitions=partitions,
        old_files=old_files,
        is_looked_through=False,
    )
    child = start("bench.scan_child", job.arguments())
    with watched(child) as peaks:
        found = answer(child)
    if found["rows"] != data.rows:
        raise SystemExit(f"{found['rows']} rows arrived of {data.rows}")
    if found["replaced_files"] != old_files * partitions:
        raise SystemExit(f"{found['replaced_files']} files of {old_files * partitions} are gone")
    figures = {
        "worker_mb": round(peaks.worker_mb, 1),
        "workers_mb": sorted(round(peak_mb, 1) for peak_mb in peaks.workers_mb.values()),
        "driver_mb": round(peaks.driver_mb, 1),
        "seconds": round(found["seconds"], 1),
        "tasks": found["tasks"],
        "files": found["files"],
        "stored_mb": round(data.size_bytes / 1e6),
    }
    print(f"  {name:<16} {figures}", flush=True)
    return figures


def run() -> dict[str, Any]:
    """Measure and return the figures."""
    stack = open_stack()
    warm_up = upload_events(stack, rows=1_000, group_rows=GROUP_ROWS)
    sizes = {
        number: upload_events(stack, group_rows=GROUP_ROWS, copies=number)
        for number in (1, _LARGE, _LARGEST)
    }
    found = {number: measure(f"plain_{number}x", data, warm_up) for number, data in sizes.items()}
    parted = {
        number: measure(f"parted_{number}x", sizes[number], warm_up, partitions=_PARTITIONS)
        for number in (1, _LARGE)
    }
    limit_mb = sizes[_LARGEST].rows * _DECODED_BYTES_OF_A_ROW / _LARGEST / 1e6
    return {
        "ratio": round(found[_LARGE]["worker_mb"] / found[1]["worker_mb"], 3),
        "ratio_driver": round(found[_LARGE]["driver_mb"] / found[1]["driver_mb"], 3),
        "ratio_partitioned": round(parted[_LARGE]["worker_mb"] / parted[1]["worker_mb"], 3),
        "ratio_driver_partitioned": round(parted[_LARGE]["driver_mb"] / parted[1]["driver_mb"], 3),
        "limit_mb": round(limit_mb),
        "largest_over_limit": round(found[_LARGEST]["worker_mb"] / limit_mb, 3),
        "partitions": _PARTITIONS,
        **{f"plain_{number}x": figures for number, figures in found.items()},
        **{f"partitioned_{number}x": figures for number, figures in parted.items()},
    }
