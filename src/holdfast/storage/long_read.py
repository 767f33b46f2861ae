"""A long read: several requests at once, because a store gives each connection only so much.

A row group of 128 MB over one connection keeps a worker waiting for seconds, while the machine's
network has nothing to do; and a request must end before the client gives it up.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise

from holdfast.storage.runtime import io_runtime

# What AWS advises for parallel reads, at the least: smaller ones are more requests to pay for.
REQUEST_BYTES = 8 << 20

Fetch = Callable[[int, int], bytes | memoryview]
Answer = Callable[[], bytes | memoryview]


def long_read(fetch: Fetch, start: int, stop: int) -> Answer:
    """Begin to read bytes of an object; return what waits for them, and returns or raises.

    One read uses half of what may be on its way, so that asking for the next one does not block
    while the current one is at work, however long both are.

    Args:
        fetch: Returns the bytes from one place up to another. Runs on IO threads.
        start: The first byte.
        stop: The one after the last.
    """
    runtime = io_runtime()
    if stop - start <= REQUEST_BYTES:
        return runtime.read(partial(fetch, start, stop), stop - start).result
    edges = [*range(start, stop, REQUEST_BYTES), stop]
    pieces = iter(list(pairwise(edges)))
    # In one piece as they come: whoever reads may want bytes of several requests at once.
    whole = memoryview(bytearray(stop - start))

    def one_after_the_other() -> None:
        for at, end in pieces:
            whole[at - start : end - start] = fetch(at, end)

    # Each lane has one request on its way.
    at_once = max(1, runtime.reads.limit_bytes // REQUEST_BYTES // 2)
    lanes = [
        runtime.read(one_after_the_other, REQUEST_BYTES)
        for _ in range(min(at_once, len(edges) - 1))
    ]

    def arrived() -> memoryview:
        for lane in lanes:
            lane.result()
        return whole

    return arrived
