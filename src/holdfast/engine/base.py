"""The base: the rows that a run replaces, as they were when it began.

A run may depend on them: its input was computed from them, or its user says so. Then it must not
replace what has changed since. And with snapshot isolation only they go: rows that others have
added since stay.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from holdfast.engine.large_index import LargeIndex
from holdfast.engine.options import WriteOptions, removes_of
from holdfast.engine.passes import raise_problems
from holdfast.engine.ports import Submitter, interruptible
from holdfast.engine.workbook import Tally
from holdfast.errors import (
    DuplicateOutputError,
    JobFailedError,
    RunMismatchError,
    TableChangedError,
)
from holdfast.ledger.ledger import Ledger, log_step
from holdfast.ledger.parts import (
    IndexFile,
    read_list,
    read_pins,
    read_states,
    write_list,
    write_states,
)
from holdfast.model.identity import Identity
from holdfast.model.records import Base, Indexed, PartReference, Rewritten
from holdfast.model.work import Rewrite, StagedGroup
from holdfast.sinks.base import Change, Sink, TableView
from holdfast.worker.key_index import (
    SMALL_ROWS,
    Built,
    FindPlan,
    IndexPlan,
    KeyIndex,
    file_item,
)
from holdfast.worker.replay import RewritePlan


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplacedRows:
    """The rows that one run replaces: what is recorded of them, and what is there now."""

    ledger: Ledger
    sink: Sink
    identity: Identity

    def settle(self, view: TableView, options: WriteOptions, staged: Sequence[StagedGroup]) -> None:
        """Record which rows the run replaces, and refuse before a row is paid for.

        Args:
            view: A fresh look at the table.
            options: The user's options.
            staged: What earlier starts have staged.

        Raises:
            UnsupportedTableError: The rows of this table cannot be replaced.
            TableChangedError: They have changed since the run began, and it depends on them.
            RunMismatchError: An earlier start depended on other rows.
        """
        change = Change(
            adds=staged,
            removes=removes_of(self.identity),
            where=options.where,
            on=self.identity.on,
            write_mode=options.write_mode,
        )
        if not change.takes_rows:
            return  # What columns are computed from is pinned with the input.
        if change.removes != "all":  # Not every table has partitions, nor fits every filter.
            self.sink.loss(view, change, "none")
        asked = options.based_on or self.snapshot_read()
        depends = asked is not None or options.if_table_changed == "raise"
        known = self.ledger.log.base
        if known is None:
            self._record(view, asked, options, is_binding=depends)
        else:
            self._refuse_other_base(known, asked, options, depends=depends)
        if (base := self.only(options)) is None:
            self.refuse_changed(view)
        else:
            self.sink.loss(view, replace(change, base=base), "none")

    def snapshot_read(self) -> int | None:
        """Return the snapshot of the table itself that the input was read from, if it was."""
        pinned = self.ledger.log.pinned
        if pinned is None:
            return None
        origin = read_pins(self.ledger.storage, self.ledger.layout, pinned.pins).origin
        branches = {"", self.identity.branch}
        is_own = origin.table_uuid == self.identity.table_uuid and origin.branch in branches
        return (origin.snapshot_id or origin.version) if is_own else None

    def only(self, options: WriteOptions) -> frozenset[str] | None:
        """Return the states of the files whose rows may go; None if those of all may.

        Raises:
            StoreError: The ledger does not answer, or is damaged.
        """
        base = self.ledger.log.base
        if options.isolation_level != "snapshot" or base is None or base.states is None:
            return None
        return read_states(self.ledger.storage, self.ledger.layout, base.states)

    def refuse_changed(self, view: TableView) -> None:
        """Stop if the rows have changed, and the run depends on them.

        Raises:
            TableChangedError: They have changed since the run began.
        """
        base = self.ledger.log.base
        if base is None or not base.is_binding:
            return
        if _digest(self.sink.states(view, view.parent_snapshot_id)) != base.state:
            raise TableChangedError(
                table=self.sink.name,
                change=f"its rows are no longer those of snapshot {base.snapshot_id}, which this "
                "run is based on",
            )

    def _record(
        self, view: TableView, asked: int | None, options: WriteOptions, *, is_binding: bool
    ) -> None:
        ledger, snapshot_id = self.ledger, asked or view.parent_snapshot_id
        states, reference = self.sink.states(view, snapshot_id), None
        if options.isolation_level == "snapshot":
            name = f"base-{ledger.ports.new_nonce()}.parquet"
            reference = write_states(ledger.storage, ledger.layout, name, states)
        ledger.log.append(
            Base(
                snapshot_id=snapshot_id or 0,
                state=_digest(states),
                is_binding=is_binding,
                states=reference,
            )
        )

    def _refuse_other_base(
        self, known: Base, asked: int | None, options: WriteOptions, *, depends: bool
    ) -> None:
        """Refuse a start that depends on other rows than the first one did.

        What came since the first start may be in the table, and would go or stay wrongly.

        Raises:
            RunMismatchError: It does.
        """
        if depends and not known.is_binding:
            differences = "it did not depend on the rows that it replaces, and now it does"
        elif asked is not None and asked != known.snapshot_id:
            differences = f"it was based on snapshot {known.snapshot_id}, and is now on {asked}"
        elif options.isolation_level == "snapshot" and known.states is None:
            differences = (
                'its isolation_level was "serializable", so that it replaces rows that others '
                'added, and is now "snapshot"'
            )
        else:
            return
        raise RunMismatchError(run_id=self.ledger.run_id, differences=differences)


# ---- Files that were all there when they were last asked for

FILES_KNOWN_S = 300.0
_TIMES_AS_LONG = 10.0


@dataclass(slots=True)
class Known:
    """Until when files that were all there are taken to be there still.

    Asking for many takes longer than other writers leave a table unchanged. So the answer holds ten
    times as long as it took, but for some minutes at most: no orphan removal deletes young files.
    """

    until: float = 0.0

    def answered(self, began: float, ended: float) -> None:
        """Note that files were asked for."""
        self.until = ended + min(FILES_KNOWN_S, _TIMES_AS_LONG * (ended - began))


# ---- Files of which only some rows go: searched on executors, and rewritten or given deletes

# Rewritten files that are older may have been deleted as orphans any moment: see `renew`.
_OLD_AFTER_S = 48 * 3600.0
# How many files one job rewrites: what it has done is recorded when it ends.
_FILES_OF_A_JOB = 256


@dataclass(slots=True, kw_only=True)
class Rewrites:
    """The files of a table that were searched for rows that go, and what was written for them."""

    ledger: Ledger
    sink: Sink
    submitter: Submitter
    options: WriteOptions
    tally: Tally
    _known: dict[str, Rewrite] | None = field(default=None, init=False)
    _known_there: Known = field(default_factory=Known, init=False)

    def known(self, view: TableView) -> dict[str, Rewrite]:
        """Return what became of files, by state, as far as the new files are there.

        Raises:
            StoreError: The ledger or the table's storage does not answer, or is damaged.
        """
        now = self.ledger.ports.now
        if self._known is None:
            self._known = self._of_earlier_starts(view)
        elif now() < self._known_there.until:
            return self._known
        began = now()
        groups = {state: rewrite.group for state, rewrite in self._known.items() if rewrite.group}
        gone = set(self.sink.missing_files(view, list(groups.values())))
        self._known_there.answered(began, now())
        for state, group in groups.items():
            if gone.intersection(group.paths):
                del self._known[state]
        return self._known

    def _of_earlier_starts(self, view: TableView) -> dict[str, Rewrite]:
        """Return what the ledger lists, without files that an orphan removal may delete soon."""
        ledger = self.ledger
        parts = [
            read_list(ledger.storage, ledger.layout, part, Rewrite) for part in ledger.log.rewritten
        ]
        found = {rewrite.state: rewrite for part in parts for rewrite in part}
        groups = [rewrite.group for rewrite in found.values() if rewrite.group]
        gone = set(self.sink.missing_files(view, groups))
        here = [group for group in groups if not gone.intersection(group.paths)]
        old = self.sink.old_groups(view, here, ledger.ports.now() - _OLD_AFTER_S)
        usable = {group.path for group in here} - {group.path for group in old}
        return {
            state: rewrite
            for state, rewrite in found.items()
            if rewrite.group is None or rewrite.group.path in usable
        }

    def run(
        self, view: TableView, change: Change, targets: Mapping[str, str], *, is_again: bool
    ) -> set[str]:
        """Rewrite files, record what became of them, and return the states of those that are gone.

        Others may have replaced and deleted them meanwhile.

        Args:
            view: A look at the table.
            change: The change that removes rows of the files.
            targets: The files, as its loss names them.
            is_again: Whether a post of this start was refused before.

        Raises:
            UnsupportedTableError: A file cannot be read, or not be written as it was.
            JobError: The job could not be run at all.
            RunFencedError: Another driver has claimed the run.
        """
        ledger, items = self.ledger, list(targets.values())
        known = self.known(view)
        for first in range(0, len(items), _FILES_OF_A_JOB):
            some = items[first : first + _FILES_OF_A_JOB]
            does = "searches" if change.takes_rows else "writes columns of"
            log_step(ledger.run_id, f"{does} {len(some):,} of {len(items):,} files of the table")
            nonce = ledger.ports.new_nonce()
            plan = RewritePlan(
                rewriter=self.sink.rewriter(view, change),
                job_nonce=ledger.layout.file_names(nonce),
                limits=self.options.limits,
            )
            with interruptible(lambda _reason: None):
                reports = self.submitter.items(plan, some)
            done = [Rewrite.from_json(text) for report in reports for text in report.results]
            name = f"rewritten-{nonce}.parquet"
            part = write_list(ledger.storage, ledger.layout, name, done)
            removed = sum(rewrite.removed_rows for rewrite in done)
            ledger.log.append(Rewritten(rewrites=part, removed_rows=removed))
            known.update({rewrite.state: rewrite for rewrite in done})
            self._known_there = Known()  # The new ones have not been asked for.
            if change.takes_rows:
                self.tally.searched_files += len(done)
                self.tally.searched_again += len(done) if is_again else 0
            raise_problems(reports)
        return targets.keys() - known.keys()


# ---- The keys of the rows that an upsert writes, sorted: the rows that go have one of them

# How many doubled keys an error shows.
_EXAMPLES = 3


# How many files with keys of rows to delete one task looks up.
_FILES_OF_AN_ITEM = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexes:
    """Builds the index of a run's keys, or finds the one that was built."""

    ledger: Ledger
    sink: Sink
    submitter: Submitter
    options: WriteOptions

    def of(self, view: TableView, groups: Sequence[StagedGroup], work: PartReference) -> KeyIndex:
        """Return the index of the keys of staged rows.

        Args:
            view: A fresh look at the table.
            groups: All staged groups.
            work: The part that lists them.

        Raises:
            DuplicateOutputError: Several rows have the same key.
            StagedFileMissingError: A staged file is gone.
            StoreError: The ledger does not answer, or is damaged.
            JobError: The job could not be run.
        """
        ledger, on = self.ledger, self.options.on_columns
        meaning = self.sink.key_meaning(view, on)
        for known in reversed(ledger.log.indexed):
            if known.is_in_pieces:
                continue
            if (known.work, known.meaning) == (work.name, meaning):
                files = read_list(ledger.storage, ledger.layout, known.index, IndexFile)
                return self._made(known.index.name, files, known.deleting)
        name = f"index-{ledger.ports.new_nonce()}"
        files = self._build(view, groups, name, work.name)
        part = write_list(ledger.storage, ledger.layout, f"{name}.parquet", files)
        made = self._made(part.name, files, None)
        deleting = self._deleting(view, groups, made, name)
        ledger.log.append(
            Indexed(index=part, work=work.name, meaning=meaning, rows=made.rows, deleting=deleting)
        )
        return self._made(part.name, files, deleting)

    def _deleting(
        self, view: TableView, groups: Sequence[StagedGroup], index: KeyIndex, name: str
    ) -> PartReference | None:
        """Find out which keys are those of rows to delete, to count what becomes of them.

        Raises:
            JobError: The job could not be run.
        """
        files = [file for group in groups if group.deleted_keys for file in group.with_keys]
        if not files:
            return None
        plan = FindPlan(
            reader=self.sink.staged_reader(view, self.options.on_columns),
            index=index,
            limits=self.options.limits,
        )
        items = [
            file_item((file.path, file.size_bytes) for file in files[at : at + _FILES_OF_AN_ITEM])
            for at in range(0, len(files), _FILES_OF_AN_ITEM)
        ]
        with interruptible(lambda _reason: None):
            reports = self.submitter.items(plan, items)
        raise_problems(reports)
        texts = {text for report in reports for text in report.results}
        ledger = self.ledger
        return write_states(ledger.storage, ledger.layout, f"{name}-deleting.parquet", texts)

    def _made(
        self, name: str, files: Sequence[IndexFile], deleting: PartReference | None
    ) -> KeyIndex:
        ledger = self.ledger
        texts: Iterable[str] = ()
        if deleting is not None:
            texts = read_states(ledger.storage, ledger.layout, deleting)
        return KeyIndex(
            deleting=tuple(sorted(texts)),
            on=self.options.on_columns,
            name=name,
            files=tuple(files),
            storage=ledger.storage,
            layout=ledger.layout,
        )

    def _build(
        self, view: TableView, groups: Sequence[StagedGroup], name: str, work: str
    ) -> list[IndexFile]:
        """Run the job that sorts the keys, or those for more than one task can hold.

        Raises:
            DuplicateOutputError: Several rows have the same key.
            StagedFileMissingError: A staged file is gone.
            UnsupportedTableError: There are too many keys.
            LedgerDamagedError: What tasks had written is gone.
            JobFailedError: Keys are missing.
            JobError: The job could not be run.
        """
        with_keys = [file for group in groups for file in group.with_keys]
        rows = sum(file.rows for file in with_keys)
        if not rows:
            return []
        self.sink.refuse_missing_files(view, groups)
        log_step(self.ledger.run_id, f"sorts the keys of {rows:,} rows")
        files = [(file.path, file.size_bytes, file.rows) for file in with_keys]
        reader = self.sink.staged_reader(view, self.options.on_columns)
        built = [Built(is_too_large=True)] if rows > SMALL_ROWS else []
        if not built:
            plan = IndexPlan(
                reader=reader,
                storage=self.ledger.storage,
                layout=self.ledger.layout,
                name=name,
                limits=self.options.limits,
            )
            item = file_item((path, size) for path, size, _ in files)
            with interruptible(lambda _reason: None):
                reports = self.submitter.items(plan, [item])
            raise_problems(reports)
            built = [Built.from_json(text) for report in reports for text in report.results]
        if any(some.is_too_large for some in built):
            large = LargeIndex(
                ledger=self.ledger,
                table=self.sink.name,
                submitter=self.submitter,
                reader=reader,
                limits=self.options.limits,
                work=work,
                meaning=self.sink.key_meaning(view, self.options.on_columns),
            )
            built = large.built(name, files, rows)
        if doubles := sum(some.doubles for some in built):
            examples = [example for some in built for example in some.examples]
            raise DuplicateOutputError(
                table=self.sink.name,
                keys=doubles,
                columns=", ".join(self.options.on_columns),
                examples="; ".join(examples[:_EXAMPLES]),
            )
        found = [some.file for some in built if some.file is not None]
        if sum(file.rows for file in found) != rows:
            raise JobFailedError(reason="the index does not hold the keys of all staged rows")
        return found


def _digest(states: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(sorted(states)).encode()).hexdigest()
