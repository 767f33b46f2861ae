"""What a second start costs: kill a scan when a part of its rows is computed, and start it again.

Both starts are processes with a session of their own. The transform burns CPU, so that the whole
takes about a minute. The first start is killed with all its processes; the second one's `append` is
timed in a warm session. A proxy counts the bytes of the input that it reads.
"""

from __future__ import annotations

import statistics
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

from bench.burn import noted_rows, repeats_for
from bench.counting_proxy import CountingProxy, count_requests
from bench.data import ROWS
from bench.process_tree import answer, kill_whole, start
from bench.s3_input import S3Input, upload_events
from bench.scan_child import ScanJob
from bench.session import open_stack

_GROUP_ROWS = 128 * 1024
_SECONDS = 60.0
_TASKS = 2
_CHECKPOINT_EVERY = "2s"
_WHOLE_ROUNDS = 2
_PARTS = (0.25, 0.50, 0.75, 0.99)
_POLL_S = 0.02
_GOAL_SHARE = 1.10
_GOAL_MORE_S = 3.0
_GOAL_READ_SHARE_AT_99 = 0.05


class _Bench:
    """What all starts share."""

    def __init__(self) -> None:
        stack = open_stack()
        self._upstream = stack.s3.endpoint
        self.input = upload_events(stack, group_rows=_GROUP_ROWS)
        self._warm_up: S3Input = upload_events(stack, rows=1_000, group_rows=_GROUP_ROWS)
        self._repeats = repeats_for(_SECONDS * _TASKS / ROWS)
        self._mark = uuid.uuid4().hex[:8]

    def whole(self, number: int) -> float:
        """Return how long the job takes if nothing happens to it."""
        with count_requests(self._upstream) as proxy, tempfile.TemporaryDirectory() as notes:
            job = self._job(f"whole_{number}", proxy, notes)
            found = answer(start("bench.scan_child", job.arguments()))
            _check(found)
            seconds, read = found["seconds"], self._read_share(proxy)
        print(f"  whole        {seconds:6.2f} s, read {read:.3f} of the input", flush=True)
        return float(seconds)

    def killed(self, part: float) -> dict[str, Any]:
        """Kill the job when a part of its rows is computed; return what its second start cost.

        Raises:
            SystemExit: The first start ended before it could be killed.
        """
        with tempfile.TemporaryDirectory() as folder:
            notes = [Path(folder) / start_name for start_name in ("first", "second")]
            for note in notes:
                note.mkdir()
            name = f"killed_{round(part * 100)}"
            with count_requests(self._upstream) as proxy:
                child = start("bench.scan_child", self._job(name, proxy, str(notes[0])).arguments())
                while noted_rows(notes[0]) < part * ROWS:
                    if child.poll() is not None:
                        raise SystemExit("the first start ended before it was killed")
                    time.sleep(_POLL_S)
                kill_whole(child)
            computed = noted_rows(notes[0])
            with count_requests(self._upstream) as proxy:
                job = self._job(name, proxy, str(notes[1]))
                found = answer(start("bench.scan_child", job.arguments()))
                read = self._read_share(proxy)
            _check(found)
            again = computed + noted_rows(notes[1]) - ROWS
        print(
            f"  killed at {computed / ROWS:.3f} second start {found['seconds']:6.2f} s, "
            f"{again} rows again, read {read:.3f} of the input",
            flush=True,
        )
        return {
            "killed_at": round(computed / ROWS, 4),
            "second_life_s": round(found["seconds"], 2),
            "rows_again": again,
            "read_share": round(read, 4),
            "passes": found["passes"],
            "tasks": found["tasks"],
        }

    def _job(self, name: str, proxy: CountingProxy, notes: str) -> ScanJob:
        return ScanJob(
            name=f"{name}_{self._mark}",
            paths=self.input.paths,
            warm_up=self._warm_up.paths,
            endpoint=proxy.url,
            repeats=self._repeats,
            notes=notes,
            checkpoint_every=_CHECKPOINT_EVERY,
        )

    def _read_share(self, proxy: CountingProxy) -> float:
        return proxy.answer_bytes("GET", "/lake/bench-input/") / self.input.size_bytes


def _check(found: dict[str, Any]) -> None:
    """Check that each row is in the table once.

    Raises:
        SystemExit: Rows are missing or doubled.
    """
    if {found["rows"], found["rows_there"], found["ids_there"]} != {ROWS}:
        raise SystemExit(f"not every row is there once: {found}")


def run() -> dict[str, Any]:
    """Measure and return the figures."""
    bench = _Bench()
    whole = [bench.whole(number) for number in range(_WHOLE_ROUNDS)]
    killed = {part: bench.killed(part) for part in _PARTS}
    # Again at the end, so that a machine that has become slower or faster shows.
    whole.append(bench.whole(_WHOLE_ROUNDS))
    whole_s = statistics.median(whole)
    goals = {part: (1 - part) * whole_s * _GOAL_SHARE + _GOAL_MORE_S for part in _PARTS}
    ratios = {part: killed[part]["second_life_s"] / goals[part] for part in _PARTS}
    return {
        "ratio": round(max(ratios.values()), 3),
        "reads_little_at_99": killed[0.99]["read_share"] <= _GOAL_READ_SHARE_AT_99,
        "whole_s": [round(seconds, 2) for seconds in whole],
        "checkpoint_every": _CHECKPOINT_EVERY,
        "rows": ROWS,
        "input_mb": round(bench.input.size_bytes / 1e6, 1),
        **{
            f"killed_at_{round(part * 100)}": {
                "ratio": round(ratios[part], 3),
                "goal_s": round(goals[part], 2),
                **killed[part],
            }
            for part in _PARTS
        },
    }
