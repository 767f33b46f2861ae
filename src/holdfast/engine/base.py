"""The base: the rows that a run replaces, as they were when it began.

A run may depend on them: its input was computed from them, or its user says so. Then it must not
replace what has changed since. And with snapshot isolation only they go: rows that others have
added since stay.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from holdfast.engine.options import REMOVES, WriteOptions
from holdfast.errors import RunMismatchError, TableChangedError
from holdfast.ledger.ledger import Ledger
from holdfast.ledger.parts import read_pins, read_states, write_states
from holdfast.model.records import Base, Identity
from holdfast.model.work import StagedGroup
from holdfast.sinks.base import Change, Sink, TableView


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
        removes = REMOVES[self.identity.mode]
        if removes == "nothing":
            return
        if removes == "partitions":  # Not every table has some; for "all", `states` refuses.
            self.sink.loss(view, Change(adds=staged, removes=removes), "none")
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
            self.sink.loss(view, Change(adds=staged, removes=removes, base=base), "none")

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


def _digest(states: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(sorted(states)).encode()).hexdigest()
