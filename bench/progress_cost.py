"""What the progress display costs: `append-dataframe`'s job with it and without, in turns.

The display is the one of a terminal, which looks and draws most often: stderr is a pseudo terminal
while it is on, and a thread reads it as a terminal would.
"""

from __future__ import annotations

import contextlib
import os
import pty
import sys
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import holdfast as hf
from bench.bare_spark import BareSpark, same_batch
from bench.data import ROWS, events
from bench.rounds import alternate
from bench.session import open_session, open_stack


@contextlib.contextmanager
def terminal(drawn: list[int]) -> Iterator[None]:
    """Let stderr be a terminal; note how many bytes were drawn on it."""
    ours, theirs = pty.openpty()
    before, size = sys.stderr, 0

    def read() -> None:
        nonlocal size
        with contextlib.suppress(OSError):  # How Linux says that nobody writes any more.
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

    def append(name: str, *, progress: bool) -> None:
        run = hf.Run(f"bench-{name}", store="s3://lake/_holdfast", store_options=options)
        target = hf.IcebergTable(name, catalog=options)
        with terminal(drawn) if progress else contextlib.nullcontext():
            report = run.append(df, to=target, key="id", transform=same_batch, progress=progress)
        if report.rows != ROWS:
            raise SystemExit(f"{report.rows} rows arrived of {ROWS}")

    times = alternate(
        {"on": partial(append, progress=True), "off": partial(append, progress=False)},
        bare.table,
        bare.drop,
    )
    if not all(drawn):
        raise SystemExit("nothing was drawn: the display was not on")
    return {
        "ratio": times.ratio("on", "off"),
        "rows": ROWS,
        "drawn_bytes": drawn,
        **times.figures(),
    }
