"""Search: run many histories on several processes, and show the first bad one."""

from __future__ import annotations

import logging
import multiprocessing
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pyarrow as pa

from tests.simulation.guards import without
from tests.simulation.judge import Verdict, judged, shrunk

_PORTION = 100


def _portion(job: tuple[int, int, str | None]) -> tuple[Counter[str], Verdict | None]:
    """Run some histories; stop at the first bad one."""
    first, histories, guard = job
    logging.disable(logging.WARNING)
    pa.set_cpu_count(1)  # Files of a few rows are read faster without a pool of threads.
    counts: Counter[str] = Counter()
    bad: list[Verdict] = []

    def run() -> None:
        with without(guard):
            for seed in range(first, first + histories):
                verdict = judged(seed)
                counts.update(verdict.counts)
                if verdict.wrong:
                    bad.append(verdict)
                    return

    apart(run)
    return counts, bad[0] if bad else None


def apart(run: Callable[[], None]) -> None:
    """Run in a thread of its own: signals reach the main thread only, and are not simulated.

    Raises:
        RuntimeError: It broke off, so the rest of its histories were not judged.
    """
    ended: list[bool] = []

    def run_all() -> None:
        run()
        ended.append(True)

    thread = threading.Thread(target=run_all)
    thread.start()
    thread.join()
    if not ended:
        raise RuntimeError("the histories broke off")


def _portions(
    first: int, histories: int, guard: str | None
) -> Iterator[tuple[int, int, str | None]]:
    for start in range(first, first + histories, _PORTION):
        yield start, min(_PORTION, first + histories - start), guard


# A long run that is cut off has said how far it was.
_TOLD_EVERY = 10_000


def search(first: int, histories: int, guard: str | None, jobs: int) -> Verdict | None:
    """Run histories on several processes, print their figures, and return the first bad one."""
    began, total = time.monotonic(), Counter[str]()
    bad: Verdict | None = None
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        for counts, verdict in pool.imap(_portion, _portions(first, histories, guard)):
            before = total["histories"]
            total.update(counts)
            if total["histories"] // _TOLD_EVERY > before // _TOLD_EVERY:
                print(f"{total['histories']:,} histories", flush=True)
            if verdict is not None:
                bad = verdict
                break
    figures = ", ".join(f"{number:,} {name}" for name, number in sorted(total.items()))
    print(f"{figures}; {time.monotonic() - began:.0f} s, from seed {first}", flush=True)
    return bad


def show(seed: int, guard: str | None, *, is_shrunk: bool) -> None:
    """Print a shrunk history step by step."""

    def run() -> None:
        with without(guard):
            verdict = judged(seed, is_traced=True)
            if is_shrunk and verdict.wrong:
                verdict = judged(seed, shrunk(seed, verdict.decisions), is_traced=True)
        print("\n".join(line for line in verdict.trace if not line.endswith(" -")))
        print(f"seed {seed}: {'; '.join(verdict.wrong) or 'nothing wrong'}", flush=True)

    apart(run)
