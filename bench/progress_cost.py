"""What watching a job costs: that of `append-dataframe` with a display, with events, and without.

The display is that of a terminal, which looks and draws most often: stderr is a pseudo terminal
while it is on, and a thread reads it as a terminal would. Events go to a function that keeps them.
Rounds differ by more than either costs, so the time that its thread was on a core is counted too.
"""

from __future__ import annotations

import contextlib
import os
import pty
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any
from unittest import mock

import holdfast as hf
from bench.bare_spark import BareSpark, same_batch
from bench.data import ROWS, events
from bench.rounds import alternate
from bench.session import open_session, open_stack
from holdfast.progress.events import Telling
from holdfast.progress.watching import Watching


@contextlib.contextmanager
def terminal(drawn: list[int]) -> Iterator[None]:
    """Let stderr be a terminal; note how many bytes were drawn on it."""
    ours, theirs = pty.openpty()
    before, size = sys.stderr, 0

    def read() -> None:
        nonlocal size
        with contextlib.suppress(OSError):  # How Linux says that no writer is left.
            while data := os.read(ours, 65536):
                size += len(data)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    os.environ["TERM"] = "xterm-256color"
    sys.stderr = os.fdopen(theirs, "w", encoding="utf-8")
    try:
        yield
    finally:
        sys.stderr.close()
        sys.stderr = before
        reader.join()
        os.close(ours)
        drawn.append(size)


@contextlib.contextmanager
def counted_ticks(of: type, on_core_s: list[float]) -> Iterator[None]:
    """Note how long the thread of a display or of events was on a core."""
    tick, total_s = of.tick, 0.0  # type: ignore[attr-defined]

    def counted(self: Any) -> Any:  # noqa: ANN401 - whatever a tick returns.
        nonlocal total_s
        began_s = time.thread_time()
        try:
            return tick(self)
        finally:
            total_s += time.thread_time() - began_s

    with mock.patch.object(of, "tick", counted):
        yield
    on_core_s.append(total_s)


def run() -> dict[str, Any]:
    """Measure and return the figures.

    Raises:
        SystemExit: Rows are missing, or nothing was drawn.
    """
    stack = open_stack()
    session = open_session(stack.spark_catalog_conf("lake"))
    df = events(session)
    bare = BareSpark(session, df)
    options = stack.rest_catalog_properties()
    drawn: list[int] = []
    on_core_s: list[float] = []
    events_on_core_s: list[float] = []
    heard: list[hf.Event] = []

    def append(name: str, *, progress: bool = False, has_listener: bool = False) -> None:
        run = hf.Run(
            f"bench-{name}",
            store="s3://lake/_holdfast",
            store_options=options,
            progress=progress,
            on_event=heard.append if has_listener else None,
        )
        target = hf.IcebergTable(name, catalog=options)
        with contextlib.ExitStack() as shown:
            if progress:
                shown.enter_context(terminal(drawn))
                shown.enter_context(counted_ticks(Watching, on_core_s))
            if has_listener:
                shown.enter_context(counted_ticks(Telling, events_on_core_s))
            report = run.append(df, to=target, key="id", transform=same_batch)
        if report.rows != ROWS:
            raise SystemExit(f"{report.rows} rows arrived of {ROWS}")

    times = alternate(
        {
            "on": partial(append, progress=True),
            "off": append,
            "events": partial(append, has_listener=True),
        },
        bare.table,
        bare.drop,
    )
    if not all(drawn):
        raise SystemExit("nothing was drawn: the display was not on")
    if sum(event.kind == "ended" for event in heard) != len(events_on_core_s):
        raise SystemExit("events were not heard to the end")
    return {
        "ratio": times.ratio("on", "off"),
        "ratio_events": times.ratio("events", "off"),
        "rows": ROWS,
        "drawn_bytes": drawn,
        "on_core_s": [round(seconds, 3) for seconds in on_core_s],
        "events_on_core_s": [round(seconds, 3) for seconds in events_on_core_s],
        "events_heard": len(heard),
        **times.figures(),
    }
