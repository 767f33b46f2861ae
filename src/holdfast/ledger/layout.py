"""Where the objects of one run are in the store.

<store>/<run id>/
  run.json            identity; created once
  log/00000001.json   claim, plan, seal, renewal, stop, intent, receipt, abort
  parts/...           large bodies that those records point to
  beats/00000001      heartbeat, rewritten while the driver of that claim runs; advisory
  input/<nonce>/...   the rows of a materialized input, as Parquet
  accounts/<claim>-<nonce>/<chain>/<hundred>/00000001
                      what a job's tasks have taken of what is left of the run's budget
  tasks/<claim>-<nonce>/<job>/hopeless
                      exists if the job cannot succeed, or its budget is spent: tasks that have not
                      begun do no work
  tasks/<claim>-<nonce>/<job>/<place>/<attempt>/
    0000.json         one durable step of that task attempt
    0000.keys         the keys of the input rows that it covers, as Parquet
    0000.chunk        finished output rows that are not in a table file yet, as Arrow IPC
    0000.failed       input rows for which the transform gave no output, as Arrow IPC
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.model.stored import encode_run_id
from holdfast.storage.locations import normalise

RECORD_SUFFIX = ".json"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLayout:
    """The names of one run's objects, and the nonce that its records carry."""

    folder: str
    # The run's own nonce, once run.json was read: every record carries it. A ledger begun in
    # format 1 has records without one.
    nonce: str = ""
    has_unnamed: bool = False

    @classmethod
    def of(cls, store: str, run_id: str) -> RunLayout:
        """Return the layout of a run in a store."""
        return cls(folder=f"{normalise(store)}/{encode_run_id(run_id)}")

    def owns(self, run: str) -> bool:
        """Whether a record that carries this nonce is the run's; True if run.json is unread."""
        if not self.nonce:
            return True
        return run == self.nonce if run else self.has_unnamed

    @property
    def files_nonce(self) -> str:
        """The prefix of the run's table file names; empty if they do not carry its nonce."""
        return "" if self.has_unnamed else self.nonce

    def file_names(self, nonce: str) -> str:
        """Return the prefix of a job's table file names.

        Args:
            nonce: The job's nonce.
        """
        return f"{self.files_nonce}-{nonce[:12]}" if self.files_nonce else nonce

    @property
    def identity(self) -> str:
        """The object that holds the run's identity."""
        return f"{self.folder}/run.json"

    @property
    def log(self) -> str:
        """The folder of the run log."""
        return f"{self.folder}/log"

    def record(self, number: int) -> str:
        """The object of one record of the run log."""
        return f"{self.log}/{number:08d}.json"

    @property
    def beats(self) -> str:
        """The folder of the drivers' heartbeats."""
        return f"{self.folder}/beats"

    def beat(self, claim: int) -> str:
        """The heartbeat object of a claim's driver."""
        return f"{self.beats}/{claim:08d}"

    @property
    def parts(self) -> str:
        """The folder of the large bodies."""
        return f"{self.folder}/parts"

    def part(self, name: str) -> str:
        """A large body that a record points to."""
        return f"{self.parts}/{name}"

    @property
    def inputs(self) -> str:
        """The folder of all materialized input rows, from every start."""
        return f"{self.folder}/input"

    def input_files(self, nonce: str) -> str:
        """The folder of the input rows that one start has written."""
        return f"{self.inputs}/{nonce}"

    @property
    def tasks(self) -> str:
        """The folder of all task logs."""
        return f"{self.folder}/tasks"

    def job_tasks(self, tasks: str) -> str:
        """The folder of one job's task logs, by the name that its plan gives it."""
        return f"{self.tasks}/{tasks}"

    def place(self, tasks: str, job: str, place: int) -> str:
        """The folder of all attempts at one place of a job."""
        return f"{self.job_tasks(tasks)}/{job}/{place:06d}"

    def hopeless(self, tasks: str, job: str) -> str:
        """The object that marks a job as unable to succeed."""
        return f"{self.job_tasks(tasks)}/{job}/hopeless"

    @property
    def accounts(self) -> str:
        """The folder of all accounts."""
        return f"{self.folder}/accounts"

    def account(self, tasks: str) -> str:
        """The folder of the account from which a job's tasks take money."""
        return f"{self.accounts}/{tasks}"

    def task_record(self, name: str) -> str:
        """The object of one record of a task log."""
        return f"{self.tasks}/{name}{RECORD_SUFFIX}"

    def keys(self, name: str) -> str:
        """The object with the keys that a task record covers."""
        return f"{self.tasks}/{name}.keys"

    def chunk(self, name: str) -> str:
        """The object with the output rows of a task record."""
        return f"{self.tasks}/{name}.chunk"

    def quarantine(self, name: str) -> str:
        """The object with the failed input rows of a task record."""
        return f"{self.tasks}/{name}.failed"

    def task_record_name(self, uri: str) -> str | None:
        """Return the name of the task record at a URI, or None if it is not a task record."""
        inside = uri.removeprefix(f"{self.tasks}/")
        if inside == uri or not inside.endswith(RECORD_SUFFIX):
            return None
        return inside.removesuffix(RECORD_SUFFIX)


def tasks_name(claim: int, nonce: str = "") -> str:
    """Return the name of a job's folder of task logs; without a nonce, as in format 1."""
    return f"{claim:08d}-{nonce[:12]}" if nonce else f"{claim:08d}"


def task_log_name(tasks: str, job: str, place: int, attempt: int) -> str:
    """Return the name of one attempt's log; names sort by the age of the claim."""
    return f"{tasks}/{job}/{place:06d}/{attempt:012d}"


def probe_uri(store: str, nonce: str) -> str:
    """Return a name for the store probe; no encoded run id can look like it."""
    return f"{normalise(store)}/=probe/{nonce}"
