"""The event loop of this worker process, on a thread of its own.

One for the whole process, not one for each task: clients that a worker builds once keep their
connections in the loop that they were made in.
"""

from __future__ import annotations

import asyncio
import os
import threading

_LOOPS: dict[int, asyncio.AbstractEventLoop] = {}
_LOCK = threading.Lock()


def event_loop() -> asyncio.AbstractEventLoop:
    """Return this process's loop; start it at the first call.

    By process id, because PySpark forks its workers, and a thread does not outlive a fork.
    """
    with _LOCK:
        loop = _LOOPS.get(os.getpid())
        if loop is None:
            loop = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="holdfast-calls", daemon=True).start()
            _LOOPS.clear()
            _LOOPS[os.getpid()] = loop
        return loop
