"""Task logs: the create-once records of one task attempt, and how those of a claim are read.

A record counts only with everything it names: keys, chunk and files are whole before the record
is created. So a task that is killed at any point leaves a valid prefix.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from types import MappingProxyType
from typing import Any, Literal

from holdfast.errors import LedgerDamagedError
from holdfast.failpoints import failpoint
from holdfast.ledger.layout import RunLayout, task_log_name
from holdfast.ledger.ledger import TaskPorts
from holdfast.ledger.store import answers, create_once
from holdfast.model.records import Stop, decode_record, open_json, seal_json
from holdfast.model.stored import RecordDamagedError, damaged, must_be_readable
from holdfast.model.usage import Usage
from holdfast.model.work import StagedGroup, TaskRecord
from holdfast.storage.port import Storage

# "stopped": the job's own driver has stopped, and its tasks' work still counts. "fenced": the run
# has moved on without the job, and nothing it does counts any more.
JobEnd = Literal["", "stopped", "fenced"]

_NUMBERS_MAX = 1_000_000
# How many records are held as bytes while they are decoded.
_READ_AT_ONCE = 4096
_NONE: Mapping[str, TaskRecord] = MappingProxyType({})
# Versions that read only earlier formats would count the rows of replaced records twice.
_REPLACING_FORMAT = 3
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
        # The records that count, with what each has used.
        self._counts: dict[int, Usage] = {}

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
        replaced = [self._counts[number] for number in record.replaces]
        usage = reduce(Usage.after, replaced, used.since(self._used))
        beside = tuple(number for number in self._counts if number not in record.replaces)
        record = replace(record, usage=usage, beside=beside)
        named: dict[str, Any] = {"run": self._layout.nonce, "nonce": self._nonce}
        if record.replaces:
            named["format"] = _REPLACING_FORMAT
        data = seal_json({**record.to_json(), **named})
        with must_be_readable():
            TaskRecord.from_json(open_json(data))
        kind = _kind(record)
        failpoint(f"before-{kind}-record")
        if create_once(self._storage, uri, data, sleep=self._sleep) != data:
            raise LedgerDamagedError(uri=uri, reason="another task attempt has written it")
        failpoint(f"after-{kind}-record")
        kept = {number: self._counts[number] for number in beside}
        self._counts = {**kept, self._next: usage}
        self._next += 1
        self._used = used


def read_logs(
    storage: Storage,
    layout: RunLayout,
    uris: Iterable[str],
    known: Mapping[str, TaskRecord] = _NONE,
) -> dict[str, list[TaskRecord]]:
    """Read the task logs among the objects; return each log's records that count, in order.

    A log counts up to its first missing number. Its last record says which of the others count, so
    only these are read: a log that was written for hours is as quick to read as a short one.

    Args:
        storage: How the store is reached.
        layout: Where the run's objects are.
        uris: The objects.
        known: Records that need not be read again, by name.

    Raises:
        LedgerDamagedError: A record is not as it was written.
        StoreUnavailableError: The store did not answer.
    """
    lengths = {log: _gapless(numbers) for log, numbers in _numbers(layout, uris).items()}
    last = [_name(log, length - 1) for log, length in lengths.items() if length]
    logs = {record.log: [record] for record in _read(storage, layout, last, known)}
    others = [name for (record,) in logs.values() for name in _beside(record)]
    for record in _read(storage, layout, others, known):
        logs[record.log].insert(-1, record)
    return logs


def read_groups(storage: Storage, layout: RunLayout, uris: Iterable[str]) -> Iterator[StagedGroup]:
    """Yield the groups that the task records among the objects list, whether these count or not.

    A record that another one replaces lists none. Of a log with a gap, all records are read.

    Raises:
        LedgerDamagedError: A record is not as it was written.
        StoreUnavailableError: The store did not answer.
    """
    last: list[str] = []
    others: list[str] = []
    for log, numbers in _numbers(layout, uris).items():
        if _gapless(numbers) == len(numbers):
            last.append(_name(log, numbers[-1]))
        else:
            others += [_name(log, number) for number in numbers]
    for record in _read(storage, layout, last):
        yield from record.groups
        others += _beside(record)
    for record in _read(storage, layout, others):
        yield from record.groups


def read_task_records(storage: Storage, layout: RunLayout, uris: Iterable[str]) -> list[TaskRecord]:
    """Read all task records among the objects, whether they count or not.

    Raises:
        LedgerDamagedError: A record is not as it was written.
        StoreUnavailableError: The store did not answer.
    """
    names = [name for uri in uris if (name := layout.task_record_name(uri)) is not None]
    return list(_read(storage, layout, names))


def read_records(storage: Storage, layout: RunLayout, names: Sequence[str]) -> list[TaskRecord]:
    """Read the records with these names, as far as they still exist.

    Raises:
        LedgerDamagedError: A record is not as it was written.
        StoreUnavailableError: The store did not answer.
    """
    uris = [layout.task_record(name) for name in names]
    with answers(layout.tasks):
        found = zip(names, uris, storage.get_many(uris), strict=True)
    return [_decoded(layout, name, uri, data) for name, uri, data in found if data is not None]


def _read(
    storage: Storage,
    layout: RunLayout,
    names: Sequence[str],
    known: Mapping[str, TaskRecord] = _NONE,
) -> Iterator[TaskRecord]:
    """Yield the records with these names, of which many are read at once."""
    for start in range(0, len(names), _READ_AT_ONCE):
        some = names[start : start + _READ_AT_ONCE]
        uris = {name: layout.task_record(name) for name in some if name not in known}
        with answers(layout.tasks):
            found = dict(zip(uris, storage.get_many(list(uris.values())), strict=True))
        for name in some:
            if name in known:
                yield known[name]
            else:
                yield _decoded(layout, name, uris[name], found[name])


def _numbers(layout: RunLayout, uris: Iterable[str]) -> dict[str, list[int]]:
    """Return the numbers of the records in each log.

    Raises:
        LedgerDamagedError: An object has no name of a task record.
    """
    found: dict[str, list[int]] = {}
    for uri in uris:
        if (name := layout.task_record_name(uri)) is None:
            continue
        log, _, number = name.rpartition("/")
        if not number.isdecimal() or name != _name(log, int(number)):
            raise LedgerDamagedError(uri=uri, reason="it has no name of a task record")
        found.setdefault(log, []).append(int(number))
    return found


def _gapless(numbers: list[int]) -> int:
    """Return how many numbers there are up to the first missing one."""
    numbers.sort()
    return next((at for at, number in enumerate(numbers) if number != at), len(numbers))


def _name(log: str, number: int) -> str:
    return f"{log}/{number:04d}"


def _beside(last: TaskRecord) -> list[str]:
    """Return the names of the records that count beside the last one of a log."""
    numbers = range(last.number) if last.beside is None else sorted(set(last.beside))
    return [_name(last.log, number) for number in numbers]


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
        raise damaged(uri, error) from error
    if record.name != name:
        raise LedgerDamagedError(uri=uri, reason=f"it is named {record.name}")
    if not layout.owns(run):
        raise LedgerDamagedError(uri=uri, reason="it belongs to another run")
    return record
