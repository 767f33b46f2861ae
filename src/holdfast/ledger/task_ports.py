"""Time, chance and usage as a task sees them, passed in so that a simulation can drive it."""

from __future__ import annotations

import resource
import socket
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from holdfast.model.usage import Usage
from holdfast.storage.runtime import io_runtime

# Linux counts in kilobytes, macOS in bytes.
_MEMORY_UNIT = 1 if sys.platform == "darwin" else 1024


def _new_nonce() -> str:
    return uuid.uuid4().hex


def _usage() -> Usage:
    """Return what this process has used since it began."""
    counters = io_runtime().counters
    return Usage(
        at=time.time(),
        host=socket.gethostname(),
        waited_s=counters.waited_s,
        bytes_read=counters.bytes_read,
        bytes_written=counters.bytes_written,
        memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MEMORY_UNIT,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPorts:
    """Pickled with the task, never stored."""

    # Unix seconds; seconds that only grow.
    now: Callable[[], float] = field(default=time.time)
    monotonic: Callable[[], float] = field(default=time.monotonic)
    sleep: Callable[[float], None] = field(default=time.sleep)
    new_nonce: Callable[[], str] = field(default=_new_nonce)
    usage: Callable[[], Usage] = field(default=_usage)
