"""Task logs: the create-once records of one task attempt, and how those of a claim are read.

A record counts only with everything it names: keys, chunk and files are whole before the record
is created. So a task that is killed at any point leaves a valid prefix.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from holdfast.errors import LedgerDamagedError
from holdfast.failpoints import failpoint
from holdfast.ledger.layout import RunLayout, task_log_name
from holdfast.ledger.ports import TaskPorts
from holdfast.ledger.store import answers, create_once
from holdfast.model.records import Stop, decode_record, open_json, seal_json
from holdfast.model.stored import RecordDamagedError, must_be_readable
from holdfast.model.work import TaskRecord
from holdfast.storage.port import Storage

# "stopped": the job's own driver has stopped, and its tasks' work still counts. "fenced": the run
# has moved on without the job, and nothing it does counts any more.
JobEnd = Literal["", "stopped", "fenced"]

_NUMBERS_MAX = 1_000_000
# How many records are held as bytes while they are decoded.
_READ_AT_ONCE = 4096
# A job younger than this cannot have been found hopeless yet: one batch takes time.
_HOPEFUL_S = 2.0
_PORTS = TaskPorts()


@dataclass(frozen=True, kw_only=True)
class JobLedger:
    """How the tasks of one job reach the run's ledger. Pickled with the task, never stored."""

    storage: Storage
    layout: RunLayout
    claim: int
    # The folder of the job's logs: see `Plan.tasks`.
    tasks: str
    job: str
    # The run log's next number when the job began: any record there ends the job's tasks.
    next_number: int
    # When that was, in Unix seconds.
    planned_at: float
    ports: TaskPorts = _PORTS

    def is_stale(self, after_s: float) -> bool:
        """Whether the job began so long ago that another driver may have taken the run over.

        Asking the store costs a request, and a task that starts with its job need not ask.
        """
        return self.ports.now() - self.planned_at > after_s

    def end(self) -> JobEnd:
        """Return whether the job's tasks must end, and how.

        Raises:
            StoreUnavailableError: The store did not answer.
        """
        uri = self.layout.record(self.next_number)
        try:
            with answers(uri):
                # It is usually absent, and asking for the size shows that more cheaply.
                self.storage.size(uri)
                body = decode_record(self.storage.get(uri)).body
        except FileNotFoundError:
            return ""
        except RecordDamagedError:
            return "fenced"  # Whatever the record is, the driver no longer waits for this job.
        return "stopped" if isinstance(body, Stop) else "fenced"

    def say_hopeless(self) -> None:
        """Mark the job as unable to succeed, so that tasks that have not begun do no work.

        Raises:
            StoreUnavailableError: The store did not take it.
        """
        uri = self.layout.hopeless(self.tasks, self.job)
        with answers(uri):
            self.storage.put(uri, b"hopeless")

    def is_hopeless(self) -> bool:
        """Whether a task has marked the job hopeless; early tasks skip the request.

        Raises:
            StoreUnavailableError: The store did not answer.
        """
        if not self.is_stale(_HOPEFUL_S):
            return False
        uri = self.layout.hopeless(self.tasks, self.job)
        try:
            with answers(uri):
                self.storage.size(uri)
        except FileNotFoundError:
            return False
        return True

    def log_name(self, place: int, attempt: int) -> str:
        """Return the name of one attempt's log."""
        return task_log_name(self.tasks, self.job, place, attempt)

    def log(self, place: int, attempt: int) -> TaskLog:
        """Start the log of one attempt; nothing is written yet."""
        name = self.log_name(place, attempt)
        return TaskLog(self.storage, self.layout, name, ports=self.ports)


class TaskLog:
    """The log of one task attempt, written by that attempt alone."""

    def __init__(
        self,
        storage: Storage,
        layout: RunLayout,
        name: str,
        *,
        ports: TaskPorts = _PORTS,
    ) -> None:
        """Start an empty log; nothing is written yet."""
        self._storage = storage
        self._layout = layout
        self._name = name
        self._sleep = ports.sleep
        self._nonce = ports.new_nonce()
        self._next = 0
        self._usage = ports.usage
        self._used = ports.usage()

    @property
    def next_name(self) -> str:
        """The name of the next record, which its keys and its chunk share."""
        return f"{self._name}/{self._next:04d}"

    def append(self, record: TaskRecord) -> None:
        """Write the next record.

        Raises:
            LedgerDamagedError: Another attempt writes under the same name, or there are too many
                records.
            SettingsError: A number or text in the record cannot be stored.
            StoreUnavailableError: The store did not take it.
        """
        uri = self._layout.task_record(record.name)
        if record.name != self.next_name or self._next >= _NUMBERS_MAX:
            raise LedgerDamagedError(uri=uri, reason=f"{self.next_name} should come next")
        used = self._usage()
        record = replace(record, usage=used.since(self._used))
        named = {"run": self._layout.nonce, "nonce": self._nonce}
        data = seal_json({**record.to_json(), **named})
        with must_be_readable():
            TaskRecord.from_json(open_json(data))
        kind = _kind(record)
        failpoint(f"before-{kind}-record")
        if create_once(self._storage, uri, data, sleep=self._sleep) != data:
            raise LedgerDamagedError(uri=uri, reason="another task attempt has written it")
        failpoint(f"after-{kind}-record")
        self._next += 1
        self._used = used


def read_task_records(storage: Storage, layout: RunLayout, uris: Iterable[str]) -> list[TaskRecord]:
    """Read the task records among the objects, many at once.

    Raises:
        LedgerDamagedError: A record is not as it was written.
        StoreUnavailableError: The store did not answer.
    """
    named = [(name, uri) for uri in uris if (name := layout.task_record_name(uri)) is not None]
    records: list[TaskRecord] = []
    for start in range(0, len(named), _READ_AT_ONCE):
        some = named[start : start + _READ_AT_ONCE]
        with answers(layout.tasks):
            found = storage.get_many([uri for _, uri in some])
        records += [
            _decoded(layout, name, uri, data) for (name, uri), data in zip(some, found, strict=True)
        ]
    return records


def whole_prefixes(records: Sequence[TaskRecord]) -> dict[str, list[TaskRecord]]:
    """Return each log's records, in order, up to the first missing number."""
    by_log: dict[str, list[TaskRecord]] = {}
    for record in sorted(records, key=lambda record: (record.log, record.number)):
        log = by_log.setdefault(record.log, [])
        if record.number == len(log):
            log.append(record)
    return {name: log for name, log in by_log.items() if log}


def _kind(record: TaskRecord) -> str:
    """Return a short name for the record's kind."""
    if record.chunk is not None:
        return "chunk"
    if record.quarantine is not None:
        return "failed-rows"
    if record.groups:
        return "replay" if record.name.split("/")[1] == "replay" else "files"
    return "last" if record.end else "first"


def _decoded(layout: RunLayout, name: str, uri: str, data: bytes | None) -> TaskRecord:
    if data is None:
        raise LedgerDamagedError(uri=uri, reason="listed, but gone when read")
    try:
        content = open_json(data)
        record, run = TaskRecord.from_json(content), content.get("run", "")
    except RecordDamagedError as error:
        raise LedgerDamagedError(uri=uri, reason=str(error)) from error
    if record.name != name:
        raise LedgerDamagedError(uri=uri, reason=f"it is named {record.name}")
    if not layout.owns(run):
        raise LedgerDamagedError(uri=uri, reason="it belongs to another run")
    return record
