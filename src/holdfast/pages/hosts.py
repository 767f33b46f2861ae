"""Hosts: what the workers of each machine have done and used."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.model.work import TaskRecord

_HOSTS_MAX = 10


@dataclass(slots=True, kw_only=True)
class Host:
    """One machine's workers, added up."""

    host: str
    rows: int = 0
    seconds: float = 0.0
    waited_s: float = 0.0
    bytes_read: int = 0
    bytes_written: int = 0
    memory_bytes: int = 0


def hosts_of(records: Iterable[TaskRecord]) -> list[Host]:
    """Return the machines that have worked most, the busiest first.

    Records of versions that did not say where they were written are left out.
    """
    found: dict[str, Host] = {}
    for record in records:
        used = record.usage
        if not used.at:
            continue
        host = found.setdefault(used.host, Host(host=used.host))
        host.rows += record.coverage.rows
        host.seconds += record.seconds
        host.waited_s += used.waited_s
        host.bytes_read += used.bytes_read
        host.bytes_written += used.bytes_written
        host.memory_bytes = max(host.memory_bytes, used.memory_bytes)
    busiest = sorted(found.values(), key=lambda one: (-(one.seconds + one.waited_s), one.host))
    return busiest[:_HOSTS_MAX]
