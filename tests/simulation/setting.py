"""The setting: what is drawn once for a history, and does not change within it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import pyarrow as pa

from tests.simulation.chance import Chance

# What may be wrong with an input: a key appears in two rows, a row has none, or later starts of the
# script find a row more or less than the first.
Input = Literal["steady", "duplicate", "null", "grows", "shrinks"]
# Whose semantics the table has.
TableFormat = Literal["iceberg", "lance"]
# More rows than a history has.
_ALL = frozenset(range(100))
_INPUTS: tuple[Input, ...] = ("steady", "duplicate", "null", "grows", "shrinks")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What does not change within a history."""

    format: TableFormat
    rows: int
    places: int
    batch_rows: int
    checkpoint_every: float | None
    file_rows: int | None
    empty_table: bool
    unstable: bool
    # Rows whose transform fails; how many of them may; whether the code is fixed in the end.
    poison: frozenset[int]
    max_errors: float
    is_mended: bool
    # A row whose transform fails the first time.
    flaky: int | None
    verify_input: bool
    # Whether the job works on what `run.remaining` gives, and loses a row of that.
    is_derived: bool
    loses_a_row: bool
    rival: bool
    # What others do, by its name.
    others: tuple[str, ...]
    decimal_keys: bool
    input: Input
    # Whether the transform returns a column that the table lacks, until it is fixed.
    misfit: bool
    strict_code: bool
    same_machine: bool
    # Whether the store overwrites where it should create.
    unsafe_store: bool
    # How many bytes of chunks one task puts into files.
    replay_bytes: int
    # When staged files count as old, and are copied before they are published.
    old_after_s: float
    # Whether workers read the input themselves, and which of its rows are left out.
    is_scan: bool
    left_out: frozenset[int]
    # Whether what the product does only for large jobs is done for this one.
    low_bounds: bool
    # Whether a row has a price: then doubled keys are looked for first.
    is_priced: bool
    # How many rows all starts may pay for together, but the last ones; None for any number.
    budget: float | None = None
    # Whether the run's rows replace all others.
    replaces: bool = False
    # Whether rows that others add meanwhile stay then.
    spares_others: bool = False
    # Whether only the rows go for which a filter is true, and the rows that the transform puts
    # outside of it, until it is fixed.
    is_filtered: bool = False
    outside: frozenset[int] = frozenset()
    # Whether it is not a filter, but the rows with a key of the run's rows that go.
    is_keyed: bool = False
    # The rows that only delete: each start finds them, and none of them fails.
    deleting: frozenset[int] = frozenset()
    # Whether there are more keys than one task holds.
    has_large_index: bool = False
    # Whether starts leave the commit to the user, but the last ones.
    is_staged: bool = False
    # Whether each batch is a checkpoint, so that all rows wait in chunks until their task ends.
    is_slow: bool = False

    @classmethod
    def drawn(cls, chance: Chance, kinds_of_others: Mapping[TableFormat, Sequence[str]]) -> Setting:
        """Draw a setting; 0 everywhere gives the simplest one."""
        formats: tuple[TableFormat, ...] = ("iceberg", "lance", "iceberg")
        table_format = formats[chance.of(3)]
        rows = (3, 1, 2, 4, 6, 0)[chance.of(6)]
        kinds = ("", *kinds_of_others[table_format])
        others = [kinds[chance.of(len(kinds), 0.6)] for _ in range(3)]
        if table_format == "lance":  # Its versions need more testing than a table's snapshots.
            others.append(("", "upkeep")[chance.of(2)])
        # A user who aborts a run must know whether it has landed: that is drawn more often.
        others.append(("", "abort")[chance.of(2, 0.2)])
        drawn = cls(
            format=table_format,
            rows=rows,
            places=(2, 1, 3)[chance.of(3)],
            batch_rows=(1, 2)[chance.of(2)],
            checkpoint_every=(0.2, None, 2.0)[chance.of(3)],
            file_rows=(None, 1, 2)[chance.of(3)],
            empty_table=chance.of(2, 0.5) == 1,
            unstable=chance.of(2, 0.4) == 1,
            poison=frozenset({1} if chance.of(2, 0.3) and rows > 1 else ()),
            max_errors=(1.0, 0)[chance.of(2, 0.4)],
            is_mended=chance.of(2, 0.5) == 1,
            flaky=0 if chance.of(2, 0.2) else None,
            verify_input=chance.of(2, 0.4) == 0,
            is_derived=chance.of(2, 0.3) == 1,
            loses_a_row=chance.of(2, 0.1) == 1,
            rival=chance.of(2, 0.6) == 1,
            others=tuple(other for other in others if other),
            decimal_keys=chance.of(2, 0.4) == 1,
            input=_INPUTS[chance.of(len(_INPUTS), 0.2)],
            misfit=chance.of(2, 0.06) == 1,
            strict_code=chance.of(2, 0.1) == 1,
            same_machine=chance.of(2, 0.5) == 1,
            unsafe_store=chance.of(2, 0.02) == 1,
            replay_bytes=(1 << 20, 1)[chance.of(2)],
            old_after_s=(172_800.0, 4.0, 0.0)[chance.of(3, 0.5)],
            is_scan=chance.of(2, 0.3) == 1,
            left_out=frozenset({2} if chance.of(2, 0.3) else ()),
            low_bounds=chance.of(2, 0.4) == 1,
            is_priced=chance.of(2) == 1,
            replaces=chance.of(2, 0.4) == 1,
        )
        if drawn.replaces:
            drawn = drawn.as_spared() if chance.of(2, 0.4) else drawn
            if drawn.format == "iceberg" and chance.of(4):
                drawn = drawn.as_filtered(
                    *([], ["old orphans"])[chance.of(2, 0.2)],
                    outside=frozenset({0} if chance.of(2, 0.1) else ()),
                )
                if chance.of(2):
                    # More rows are more keys: what was searched for fewer must not count.
                    grows = drawn.verify_input and chance.of(2) == 1
                    drawn = replace(
                        drawn,
                        is_keyed=True,
                        outside=frozenset(),
                        input="grows" if grows else drawn.input,
                        rival=drawn.rival or grows,
                    )
        if drawn.is_keyed and not drawn.is_risky and chance.of(2):
            drawn = drawn.as_deleting((frozenset({0}), frozenset({0, 2}), _ALL)[chance.of(3)])
        drawn = drawn.drawn_further(chance)
        return drawn.as_scan() if drawn.is_scan else replace(drawn, left_out=frozenset())

    def drawn_further(self, chance: Chance) -> Setting:
        """Return the setting with what is drawn for some: others keep their histories."""
        drawn = self
        if "owner" in drawn.others and chance.of(2):
            drawn = drawn.as_slow()
        if drawn.is_keyed:
            drawn = replace(drawn, has_large_index=chance.of(2) == 1)
        if drawn.is_priced and not (drawn.is_derived and not drawn.is_scan) and chance.of(2):
            drawn = replace(drawn, budget=float(1 + chance.of(max(1, drawn.rows))))
        if drawn.is_priced and not drawn.low_bounds:
            drawn = replace(drawn, is_staged=chance.of(3) == 1)
        return drawn

    def as_spared(self) -> Setting:
        """Return the setting of a replace that leaves others' rows alone, with some to be left."""
        return replace(self, spares_others=True, others=(*self.others, "writer", "writer"))

    def as_filtered(self, *more: str, outside: frozenset[int] = frozenset()) -> Setting:
        """Return the setting of a replace by a filter, with a writer and others beside it."""
        others = (*self.others, "writer", *more)
        return replace(self, is_filtered=True, outside=outside, others=others)

    def as_deleting(self, ids: frozenset[int]) -> Setting:
        """Return the setting of an upsert of which some rows delete, if it has such rows."""
        last = {self.rows - 1} if self.input == "shrinks" else set()
        unsure = {*self.poison, self.flaky, *self.left_out, *last}
        return replace(self, deleting=ids.intersection(range(self.rows)) - unsure)

    def as_scan(self) -> Setting:
        """Return the setting for a scan: its rows need no keys and are the same for all readers."""
        return replace(
            self,
            unstable=False,
            is_derived=False,
            verify_input=True,
            decimal_keys=False,
            input=self.input if self.input in {"grows", "shrinks"} else "steady",
        )

    def as_slow(self) -> Setting:
        """Return the same setting for a slow job of one place whose batches do not fill a file."""
        return replace(
            self,
            is_slow=True,
            rows=max(self.rows, 3),
            places=1,
            batch_rows=1,
            checkpoint_every=0.05,
            file_rows=None,
        )

    @property
    def mode(self) -> str:
        """The mode of the run."""
        if self.is_keyed:
            return "upsert"
        return "overwrite" if self.replaces else "append"

    @property
    def has_filter(self) -> bool:
        """Whether rows go for which a filter is true."""
        return self.is_filtered and not self.is_keyed

    @property
    def key_type(self) -> pa.DataType:
        """The type of the key column."""
        return pa.decimal128(9, 0) if self.decimal_keys else pa.int64()

    def may_not_end_well(self, *, has_landed: bool) -> bool:
        """Whether the last start may fail although nothing was disturbed.

        Args:
            has_landed: Whether the run has landed: then rows that came since are an error.
                Otherwise a run continues with them, unless its files are pinned.
        """
        fails = bool(self.poison) and not self.max_errors and not self.is_mended
        fails |= (self.misfit or bool(self.outside)) and not self.is_mended
        fails |= self.strict_code and self.is_mended
        fails |= self.is_derived and self.loses_a_row
        goes_on = self.input == "grows" and not self.is_scan and not has_landed
        is_steady = self.input == "steady" or goes_on
        return fails or self.unstable or self.unsafe_store or not is_steady

    @property
    def is_risky(self) -> bool:
        """Whether only the input check can detect that rows are lost or doubled."""
        return self.unstable or self.input == "duplicate" or (self.is_derived and self.loses_a_row)

    @property
    def must_not_land(self) -> bool:
        """Whether nothing may land at all."""
        doubled = self.input == "duplicate" and self.rows > 0 and self.verify_input
        keyless = self.input == "null" and (self.verify_input or not self.unstable)
        return doubled or keyless or self.unsafe_store

    def ids(self, start: int) -> list[int | None]:
        """Return the keys that a start of the script finds in its input."""
        ids: list[int | None] = list(range(self.rows))
        if self.input == "duplicate":
            return ids + ids[:1]
        if self.input == "null":
            return [*ids, None]
        if self.input == "grows" and start > 1:
            return [*ids, self.rows]
        if self.input == "shrinks" and start > 1:
            return ids[:-1]
        return ids
