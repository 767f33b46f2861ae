"""A checkup: what one executor reports about itself. Runs there, and changes nothing."""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from holdfast._version import __version__
from holdfast.storage.port import Storage, StorageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkup:
    """What one task found."""

    host: str
    python: str
    holdfast: str
    pyarrow: str
    # Unix seconds, by the executor's clock.
    at: float
    # Why the store cannot be reached from there; empty if it can, or if it was not checked.
    store_error: str = ""

    def to_json(self) -> str:
        """Return the checkup as JSON for the driver."""
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckupPlan:
    """What each task checks. Sent to executors, never stored."""

    # None if no store is named.
    store: str | None
    storage: Storage | None

    def run(self, batches: Iterator[Any], *, place: int, attempt: int) -> Checkup:  # noqa: ARG002
        """Run the checks on an executor."""
        for _ in batches:  # So that Spark sees its rows read.
            pass
        return Checkup(
            host=socket.gethostname(),
            python=f"{'.'.join(map(str, sys.version_info[:3]))} ({sys.executable})",
            holdfast=__version__,
            pyarrow=pa.__version__,
            at=time.time(),
            store_error=self._store_error(),
        )

    def _store_error(self) -> str:
        if self.store is None or self.storage is None:
            return ""
        try:
            self.storage.folders(self.store)
        except StorageError as error:
            return str(error)
        return ""
