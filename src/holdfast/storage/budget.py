"""How many bytes may be on their way at once: a slow store slows the producer down."""

from __future__ import annotations

import os
import threading


class Budget:
    """Bytes on their way, bounded over everything in this process that shares it.

    What is on its way ends by itself, so whoever waits here is let in at last. Bytes that cannot
    be sent yet, because they do not make a part, leave less room but never none.
    """

    def __init__(self, limit_bytes: int) -> None:
        """Start with nothing on its way."""
        self._limit = limit_bytes
        # Its lock can be taken twice: the collector may free a part while this thread holds it.
        self._changed = threading.Condition()
        self._process_id = os.getpid()
        self._in_flight = 0
        self._kept = 0
        self._most = 0

    def bound(self, limit_bytes: int) -> None:
        """Say how much may be on its way from now on."""
        with self._changed:
            self._limit = limit_bytes
            self._changed.notify_all()

    @property
    def in_flight_bytes(self) -> int:
        """How much is on its way now."""
        return self._in_flight

    @property
    def most_bytes(self) -> int:
        """The most that was ever held at once: on its way, and kept for a part."""
        return self._most

    def take(self, size_bytes: int, *, kept_bytes: int = 0) -> None:
        """Wait until there is room. What is larger than the whole budget goes alone.

        Args:
            size_bytes: How much is about to go.
            kept_bytes: How much of it was kept until now.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._has_room(size_bytes - kept_bytes))
            self._kept -= kept_bytes
            self._in_flight += size_bytes
            self._most = max(self._most, self._in_flight + self._kept)

    def give_back(self, size_bytes: int) -> None:
        """Say that bytes have arrived, or are given up."""
        # A forked child frees its copy of the parent's parts, whose lock may be held for ever.
        if os.getpid() != self._process_id:
            return
        with self._changed:
            self._in_flight -= size_bytes
            self._changed.notify_all()

    def keep(self, change_bytes: int) -> None:
        """Say how many more bytes, or fewer, wait to make a part."""
        if os.getpid() != self._process_id:
            return
        with self._changed:
            self._kept += change_bytes
            self._most = max(self._most, self._in_flight + self._kept)
            if change_bytes < 0:
                self._changed.notify_all()

    def _has_room(self, more_bytes: int) -> bool:
        # The kept bytes do not end by themselves: alone they must not stop anybody.
        return not self._in_flight or self._in_flight + self._kept + more_bytes <= self._limit
