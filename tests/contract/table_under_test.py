"""The table under test: what an author provides, and what a case expects.

What other writers do to a table differs between formats; here it has names. Where a format cannot
do it, or a test cannot bring it about, `cannot` skips the case.

Cases do not use `assert`: pytest does not explain one in an installed package, and `python -O`
drops it.
"""

from __future__ import annotations

import json
import uuid
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn, TypeVar
from unittest import SkipTest

import pyarrow as pa

from holdfast.errors import CommitRefusedError
from holdfast.model.records import Intent, PartReference
from holdfast.model.work import StagedGroup, StagedTotals
from holdfast.sinks.base import (
    Change,
    MarkFound,
    Outcome,
    Removes,
    RunMark,
    Sink,
    TableView,
    WriterSpec,
)

# ---- The table under test: what an author provides, and one attempt at a commit
# With characters that a table property or a file name may have to escape.
RUN_ID = "scheduled/2026-01-31 00:00+00:00"
NONCE = "nonce-of-this-ledger"
# Rows of one attempt, and of another.
IDS = [0, 1, 2]
OTHER_IDS = [10, 11]


class TableUnderTest(ABC):
    """One table with the column `id` of 64-bit integers, and what others may do to it.

    Ids from 0 on are the contract's; other writers use negative ones. Everything but `sink` acts on
    the table as another writer would, not through the sink.
    """

    # Whether the format counts its versions: then a table always has one, a roll-back makes a new
    # one, and a post does not choose its own name.
    counts_versions = False

    @abstractmethod
    def sink(self) -> Sink:
        """Return a new handle on the table, as a driver of its own would open it."""

    @abstractmethod
    def rows(self) -> list[int]:
        """Return the ids that a reader sees, with repetitions."""

    @abstractmethod
    def foreign_append(self) -> None:
        """Let another writer add a snapshot; if it holds rows, their ids are negative."""

    @abstractmethod
    def change_schema(self) -> None:
        """Change the table so that files staged before no longer fit, but add no snapshot."""

    @abstractmethod
    def drop_and_create(self) -> None:
        """Drop the table, and create one with the same name and schema, as empty as possible."""

    @abstractmethod
    def remove_file(self, path: str) -> None:
        """Remove a staged file, or the file of a staged group."""

    @abstractmethod
    def path_outside(self) -> str:
        """Return a path outside the table, preferably one that looks like the table's."""

    def drop(self) -> None:
        """Drop the table for good.

        Raises:
            unittest.SkipTest: Always, unless a subclass overrides it.
        """
        self.cannot("drop a table")

    def roll_back(self, snapshot_id: int) -> None:
        """Make an older snapshot the newest one that readers see.

        Raises:
            unittest.SkipTest: Always, unless a subclass overrides it.
        """
        self.cannot(f"roll back to a snapshot ({snapshot_id})")

    def replace(self) -> None:
        """Replace the table's content, so that a new history starts; its UUID stays.

        Raises:
            unittest.SkipTest: Always, unless a subclass overrides it.
        """
        self.cannot("replace a table's content")

    def expire_history(self) -> None:
        """Forget every snapshot but the newest; rows stay.

        Raises:
            unittest.SkipTest: Always, unless a subclass overrides it.
        """
        self.cannot("expire snapshots")

    def forget_marks(self) -> None:
        """Drop all marks, as a table does after too many later runs.

        Raises:
            unittest.SkipTest: Always, unless a subclass overrides it.
        """
        self.cannot("forget marks")

    def lose_next_answer(self, *, landed: bool) -> None:
        """Lose the answer to the next post of any sink.

        Args:
            landed: Whether the post itself arrives.

        Raises:
            unittest.SkipTest: Always, unless a subclass overrides it.
        """
        self.cannot(f"lose the answer to a post that has {'' if landed else 'not '}arrived")

    def cannot(self, what: str) -> NoReturn:
        """Skip the case, and say why.

        Args:
            what: What cannot be done, as the words after "cannot".

        Raises:
            unittest.SkipTest: Always; pytest and unittest both report it as skipped.
        """
        raise SkipTest(f"{type(self).__name__} cannot {what}")

    def stage(self, ids: Sequence[int], spec: WriterSpec | None = None) -> list[StagedGroup]:
        """Write rows as a task does, and pass what is staged through JSON as the ledger does.

        Args:
            ids: The rows.
            spec: How to write; by default what a new sink returns.
        """
        if spec is None:
            sink = self.sink()
            spec = sink.writer_spec(sink.load())
        writer = spec.open(f"contract-{uuid.uuid4().hex}")
        batch = pa.RecordBatch.from_pydict({"id": pa.array(ids, pa.int64())})
        writer.write(writer.fit(batch))
        texts = [json.dumps(group.to_json()) for group in writer.cut()]
        return [StagedGroup.from_json(json.loads(text)) for text in texts]

    def attempt(  # noqa: PLR0913 - a case changes one of these at a time.
        self,
        ids: Sequence[int],
        *,
        number: int = 1,
        run_id: str = RUN_ID,
        nonce: str = NONCE,
        sink: Sink | None = None,
        view: TableView | None = None,
        removes: Removes = "nothing",
    ) -> Attempt:
        """Stage rows and record an intent, as the engine does; post nothing yet.

        Args:
            ids: The rows.
            number: The intent's number in the run's log.
            run_id: The run.
            nonce: Distinguishes the run from others with the same id.
            sink: The driver's handle on the table; by default a new one.
            view: The driver's last look; by default one is taken now.
            removes: Which rows of the table it removes.
        """
        sink = sink or self.sink()
        view = view or sink.load()
        groups = self.stage(ids, sink.writer_spec(view))
        totals = StagedTotals.of(groups)
        intent = Intent(
            table_uuid=view.uuid,
            branch="main",
            parent_snapshot_id=view.parent_snapshot_id or 0,
            snapshot_id=sink.new_snapshot_id(view),
            sequence_number=view.next_sequence_number,
            staged=PartReference(name="part", digest="digest", records=len(groups)),
            rows=totals.rows,
            files=totals.files,
            size_bytes=totals.size_bytes,
            nonce=f"of {nonce}",
        )
        mark = RunMark(
            run_nonce=nonce,
            intent_number=number,
            intent_nonce=intent.nonce,
            snapshot_id=intent.snapshot_id,
            sequence_number=intent.sequence_number,
        )
        return Attempt(
            sink=sink,
            view=view,
            run_id=run_id,
            mark=mark,
            intent=intent,
            groups=groups,
            removes=removes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One driver's attempt at a commit: all that it posts, and the view that it posts from."""

    sink: Sink
    view: TableView
    run_id: str
    mark: RunMark
    intent: Intent
    groups: list[StagedGroup]
    removes: Removes = "nothing"

    @property
    def change(self) -> Change:
        """What is posted, with what it removes from the table as in the view."""
        change = Change(adds=self.groups, removes=self.removes)
        name = f"{self.mark.run_nonce}-{uuid.uuid4().hex}"
        return replace(change, loss=self.sink.loss(self.view, change, name))

    @property
    def paths(self) -> list[str]:
        """Every object that is staged."""
        return [path for group in self.groups for path in group.paths]

    def post(self) -> Outcome:
        """Post it, once.

        Raises:
            CommitRefusedError: The catalog refused for good.
        """
        return self.sink.post(self.view, self.run_id, self.mark, self.change)

    def find(self, sink: Sink | None = None) -> MarkFound | None:
        """Load the table again, and look for the run's mark in it.

        Args:
            sink: The handle to look with; by default the driver's own.

        Raises:
            RunMismatchError: Another run of the same id has landed there.
            CommitUnknownError: A missing mark proves nothing.
            TableChangedError: The catalog was rewound.
        """
        looking = sink or self.sink
        intents = {self.mark.intent_number: self.intent}
        return looking.find_mark(looking.load(), self.run_id, self.mark.run_nonce, intents)


class Cases(ABC):
    """Cases, each on a table of its own."""

    @abstractmethod
    def table(self, *, empty: bool = False) -> TableUnderTest:
        """Return a new table.

        Args:
            empty: Without any snapshot, or without rows where that cannot be; otherwise with
                one, of another writer's.
        """

    def table_without_snapshot(self) -> TableUnderTest:
        """Return a new table without any snapshot.

        Raises:
            unittest.SkipTest: The format has no table without a version.
            AssertionError: The format counts versions, but this table has none.
        """
        table = self.table(empty=True)
        if table.counts_versions:
            if table.sink().load().parent_snapshot_id is None:
                raise AssertionError("a new table has no version, though its format counts them")
            table.cannot("be without a version")
        return table


# ---- What a case expects, and what a failure says
_Error = TypeVar("_Error", bound=Exception)


def expect(actual: object, wanted: object, why: str) -> None:
    """Compare a result with what the engine relies on.

    Raises:
        AssertionError: The values differ.
    """
    __tracebackhide__ = True
    if actual != wanted:
        raise AssertionError(f"{why}: expected {wanted!r}, got {actual!r}")


def expect_not(actual: object, unwanted: object, why: str) -> None:
    """Check that a result is not one that would mislead the engine.

    Raises:
        AssertionError: The values are equal.
    """
    __tracebackhide__ = True
    if actual == unwanted:
        raise AssertionError(f"{why}: must not be {unwanted!r}")


def expect_error(kind: type[_Error], action: Callable[[], object], why: str) -> _Error:
    """Return the error that an action must raise.

    Raises:
        AssertionError: The action raises no such error.
    """
    __tracebackhide__ = True
    try:
        returned = action()
    except kind as error:
        return error
    raise AssertionError(f"{why}: expected {kind.__name__}, got the answer {returned!r}")


def expect_used_up(view: TableView, attempt: Attempt, why: str) -> None:
    """Check that an attempt's sequence number is not given out again.

    Raises:
        AssertionError: The number is the next one, or will be.
    """
    __tracebackhide__ = True
    number, used = view.next_sequence_number, attempt.mark.sequence_number
    if number <= used:
        raise AssertionError(f"{why}: the next sequence number is {number}, but {used} was used")


def expect_landed(attempt: Attempt) -> None:
    """Post an attempt that nothing prevents from landing.

    Raises:
        AssertionError: The post does not land.
    """
    __tracebackhide__ = True
    expect(attempt.post(), Outcome.LANDED, "a post that nothing prevents from landing")


def expect_refused(outcome: Outcome, why: str) -> None:
    """Check that a post was refused: by the table, or before it was sent.

    Raises:
        AssertionError: The post has landed, or that is unknown.
    """
    __tracebackhide__ = True
    if outcome not in {Outcome.CONFLICT, Outcome.UNSENT}:
        raise AssertionError(f"{why}: expected a refusal, got {outcome!r}")


def expect_no_landing(table: TableUnderTest, post: Callable[[], Outcome], why: str) -> None:
    """Post, and check that the rows stay the same, however the refusal is worded.

    Raises:
        AssertionError: The post reports LANDED, or the rows have changed.
    """
    __tracebackhide__ = True
    before = table.rows()
    try:
        outcome = post()
    except CommitRefusedError:
        outcome = Outcome.CONFLICT
    if outcome is Outcome.LANDED:
        raise AssertionError(f"{why}: the post has landed")
    expect(Counter(table.rows()), Counter(before), f"{why}: rows")


def expect_found(found: MarkFound | None, why: str) -> MarkFound:
    """Return a mark that must be there.

    Raises:
        AssertionError: There is no mark.
    """
    __tracebackhide__ = True
    if found is None:
        raise AssertionError(f"{why}: no mark is found, so the engine would post the rows again")
    return found


def our_rows(table: TableUnderTest) -> list[int]:
    """Return the ids of the contract's own rows that a reader sees, sorted."""
    return sorted(number for number in table.rows() if number >= 0)
