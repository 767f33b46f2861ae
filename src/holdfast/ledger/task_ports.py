"""Time and chance as a task sees them, passed in so that a simulation can drive it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field


def _new_nonce() -> str:
    return uuid.uuid4().hex


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPorts:
    """Pickled with the task, never stored."""

    # Unix seconds; seconds that only grow.
    now: Callable[[], float] = field(default=time.time)
    monotonic: Callable[[], float] = field(default=time.monotonic)
    sleep: Callable[[float], None] = field(default=time.sleep)
    new_nonce: Callable[[], str] = field(default=_new_nonce)
