"""A scan as the engine sees it: its files are pinned once, and its rows are ranges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from holdfast.engine.ports import Jobs
from holdfast.errors import RunMismatchError
from holdfast.failpoints import failpoint
from holdfast.ledger.ledger import Ledger
from holdfast.ledger.parts import read_pins, write_pins
from holdfast.ledger.row_files import KeyFiles
from holdfast.model.coverage import InputSums, KeyExamples, Pins, Ranges
from holdfast.model.records import Pinned
from holdfast.sources.base import PinnedScan
from holdfast.worker.reports import TaskReport
from holdfast.worker.task import ItemPlan, ScanTask, TaskPlan


# ---- Pin: fix which files a scan reads, once for the whole run
def pin(ledger: Ledger, scan: PinnedScan, *, compare: bool, found: Pins | None = None) -> Pins:
    """Return the files that the run reads: those of its first start, whatever was added since.

    Args:
        ledger: The run's ledger; already claimed, if nothing is pinned yet.
        scan: The scan of this start.
        compare: Whether it must name the same files.
        found: The files that the scan has already found; None to look now.

    Raises:
        RunMismatchError: It names other files, whose rows would be left out silently.
        InputChangedError: A pinned file was changed or deleted.
        SettingsError: There are no files, or they do not fit together.
        StoreError: The ledger is damaged or does not answer.
    """
    known = ledger.log.pinned
    if known is not None:
        pins = read_pins(ledger.storage, ledger.layout, known.pins)
        if compare and (difference := scan.compare(pins)):
            raise RunMismatchError(run_id=ledger.run_id, differences=difference)
        return pins
    pins = scan.pin() if found is None else found
    name = f"pins-{ledger.ports.new_nonce()}.parquet"
    failpoint("before-pins")
    reference = write_pins(ledger.storage, ledger.layout, name, pins)
    failpoint("after-pins")
    ledger.log.append(Pinned(pins=reference, rows=pins.whole.rows))
    return pins


# ---- The rows of a scan for the engine: everything except the jobs is arithmetic on ranges

# Stored bytes that one task reads at most. A task begins without rows to encode and ends without
# any to read, so many small tasks leave cores idle; a large one loses no more when it is killed.
_ITEM_BYTES = 1024 * 1024 * 1024
_EXAMPLES = 3


class ScanRows:
    """Runs task plans over the pinned files of one scan."""

    def __init__(self, scan: PinnedScan, pins: Pins, jobs: Jobs) -> None:
        """Keep the parts; nothing runs yet."""
        self._scan = scan
        # They may get more rows behind those that they have: see `engine.columns`.
        self.pins = pins
        self._jobs = jobs

    @property
    def slots(self) -> int:
        """How many tasks run at a time."""
        return self._jobs.slots

    def measure(self, finished: KeyFiles, *, whole_rows: bool = False) -> InputSums:  # noqa: ARG002
        """Return how many rows are unfinished, from the pins, which fix the values too."""
        return InputSums(rows=self.left(finished).rows, null_keys=0, low=0, high=0)

    def look(self, *, whole_rows: bool = False) -> tuple[InputSums, int]:  # noqa: ARG002
        """Return how many rows there are, and no duplicates: row numbers are unique."""
        return InputSums(rows=self.pins.whole.rows, null_keys=0, low=0, high=0), 0

    def submit(self, plan: TaskPlan, finished: KeyFiles) -> list[TaskReport]:
        """Run the plan over the unfinished rows, split anew among tasks; wait for all.

        Raises:
            JobError: The job could not be run at all.
        """
        items = self.pins.items(self.left(finished), self.slots, _ITEM_BYTES)
        scan = ScanTask(reader=self._scan.reader(self.pins), items=items)
        return self._jobs.run(replace(plan, scan=scan), len(items))

    def items(self, plan: ItemPlan, items: Sequence[str]) -> list[TaskReport]:
        """Run a plan over work items that are texts, each in a task of its own.

        Raises:
            JobError: The job could not be run at all.
        """
        return self._jobs.items(plan, items)

    def duplicates(self, *, beside: bool = False) -> KeyExamples:  # noqa: ARG002
        """Return none: the row numbers of pinned files are unique."""
        return KeyExamples(keys=0, examples="")

    def cancel_beside(self) -> None:
        """Do nothing: no check runs during the job."""

    def gone(self, finished: KeyFiles) -> KeyExamples:
        """Return the finished rows that are not in the pinned files."""
        strange = _finished(finished).minus(self.pins.whole)
        return KeyExamples(keys=strange.rows, examples=str(strange.spans[:_EXAMPLES]))

    def overlaps(self, finished: KeyFiles) -> dict[tuple[str, ...], int]:
        """Return which records share rows, and how many."""
        shared: dict[tuple[str, ...], int] = {}
        covered = finished.ranges.items()
        spans = sorted((start, stop, name) for name, found in covered for start, stop in found)
        reach, holder = 0, ""
        for start, stop, name in spans:
            if start < reach:
                pair = tuple(sorted({name, holder}))
                shared[pair] = shared.get(pair, 0) + min(stop, reach) - start
            if stop > reach:
                reach, holder = stop, name
        return shared

    def left(self, finished: KeyFiles) -> Ranges:
        """Return the unfinished rows."""
        return self.pins.whole.minus(_finished(finished))


def _finished(finished: KeyFiles) -> Ranges:
    return Ranges.of(span for ranges in finished.ranges.values() for span in ranges)
