"""Judge: what must hold after each call, read from the tables and the files themselves.

What docs/explanation/trust.md says that a writer of records can do is counted, but is not a
violation.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from holdfast.model.records import open_json
from tests.fuzz.calls import ABORTS, STARTS, SWEEPS, WRITING, Said
from tests.fuzz.jobs import GIVEN_UP, JOBS, LANDED, Job, Lake, Row
from tests.fuzz.mutations import Mutation
from tests.fuzz.picture import Picture, Truth, live_files, pointer_of, rows_of

# The object that names a table's newest version: every commit rewrites it.
_POINTERS = ("catalog.db", "_versions/latest_version_hint.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A violation; `declared` if the documentation says that it can happen."""

    what: str
    declared: str = ""


@dataclass(kw_only=True)
class Judge:
    """Follows one round, from the damage on."""

    lake: Lake
    job: Job
    truth: Truth
    # The lake right after the damage.
    damaged: Picture
    mutations: Sequence[Mutation]
    # Whether the run may be swept: it had ended, or a call has ended it.
    has_ended: bool = field(init=False)
    has_landed: bool = field(init=False)

    def __post_init__(self) -> None:
        """Record the state of the run."""
        self.has_landed = self.job.run_id in LANDED
        self.has_ended = self.has_landed or self.job.run_id in GIVEN_UP

    @property
    def is_forged(self) -> bool:
        """Whether a record was rewritten with a digest that fits."""
        return any(item.is_forged for item in self.mutations)

    def look(self, said: Said) -> Iterator[Verdict]:
        """Yield all that is wrong after a call."""
        if said.wrong:
            yield Verdict(what=said.wrong)
        yield from self._files(said)
        if said.states is not None:
            yield from self._listing(said.states)
        if said.call in WRITING or said.says_committed:
            yield from self._rows(said)
        self.has_ended |= said.outcome in {"ok", "RunCommittedError", "RunAbortedError"} and (
            said.call in (*STARTS, *ABORTS)
        )

    # ---- files ---------------------------------------------------------------------------------
    def _files(self, said: Said) -> Iterator[Verdict]:
        own_ledger = f"{self.lake.folder}/store/{self.job.run_id}/"
        own_staged = self.truth.staged[self.job.run_id]
        is_sweep = said.call in SWEEPS
        for path, how in self.damaged.changed().items():
            where = path.removeprefix(f"{self.lake.folder}/")
            if path.endswith(_POINTERS) and how == "changed":
                continue
            if path.startswith(own_ledger):
                rest = path.removeprefix(own_ledger)
                if how == "gone" and is_sweep and not rest.startswith(("log/", "run.json")):
                    continue
                yield Verdict(what=f"{where} of the ledger is {how}")
            elif path in own_staged and is_sweep and how == "gone":
                if not self.has_ended:
                    yield self._unless_forged(f"{where} is gone, though the run had not ended")
            elif path in self._staged_in_dataset() and is_sweep and self.is_forged:
                yield Verdict(what="a file that another run has staged", declared="Lance's names")
            else:
                kind = "live file" if path in self.truth.live else "file of others"
                yield Verdict(what=f"{kind} {where} is {how}")
        # Judged once: what is wrong now is not reported again after the next call.
        self.damaged = Picture.of(self.lake.folder, self.damaged)

    def _staged_in_dataset(self) -> set[str]:
        """Return what other runs have staged in the same dataset, whose names do not show it."""
        if not self.job.is_lance:
            return set()
        others = [item for item in JOBS if item != self.job and item.table == self.job.table]
        return {path for item in others for path in self.truth.staged[item.run_id]}

    # ---- what is said --------------------------------------------------------------------------
    def _listing(self, states: dict[str, str]) -> Iterator[Verdict]:
        for job in JOBS:
            if job == self.job:
                continue
            found = states.get(job.run_id, "not listed")
            if found in {"not listed", "damaged", "unreadable"}:
                yield Verdict(what=f"`runs` says that {job.run_id} is {found}")

    # ---- rows ----------------------------------------------------------------------------------
    def _rows(self, said: Said) -> Iterator[Verdict]:
        table = self.job.table
        try:
            now, lost = self._read(table)
        except Exception as error:  # noqa: BLE001 - of whatever library reads it.
            yield Verdict(what=f"{table} cannot be read: {type(error).__name__}: {error!s:.200}")
            return
        if lost:
            yield Verdict(what=f"live files are gone: {lost[:3]}")
        own, wanted = self.job.rows, Counter(self.job.rows)
        others = Counter({row: n for row, n in self.truth.rows[table].items() if row not in own})
        ours = Counter({row: n for row, n in now.items() if row in own})
        if missing := others - now:
            yield Verdict(what=f"rows of others are gone: {_some(missing)}")
        if added := (now - ours) - others:
            yield self._unless_forged(f"rows that no run was to add: {_some(added)}")
        if ours and ours != wanted:
            yield self._unless_forged(
                f"rows of the run: {_some(wanted - ours)} missing, {_some(ours - wanted)} too many"
            )
        if self.has_landed and not ours:
            yield self._unless_forged("the rows had landed and are gone")
        if said.says_committed and not ours:
            yield self._unless_forged("it says that the run has landed, and no row is in the table")
        self.has_landed |= ours == wanted

    def _read(self, table: str) -> tuple[Counter[Row], list[str]]:
        """Return a table's rows, and the live files that are not there.

        If the table has no new version, rows and live files are those that it had: what happened to
        these files is judged separately.
        """
        if pointer_of(self.lake, table) == self.truth.pointers[table]:
            return self.truth.rows[table], []
        live = live_files(self.lake, table)
        lost = [path for path in live if not os.path.exists(path)]  # noqa: PTH110
        return rows_of(self.lake, table), lost

    def _unless_forged(self, what: str) -> Verdict:
        """Return what is wrong, and whether the documentation declares it.

        A writer of records can make a run commit wrong rows, or none. A ledger of format 1 names
        its run neither in the folder nor in its records.
        """
        declared = "a writer of records" if self.is_forged else ""
        if not declared and self._is_mixed_format_1():
            declared = "format 1 names no run"
        return Verdict(what=what, declared=declared)

    def _is_mixed_format_1(self) -> bool:
        """Whether run.json and the log are of format 1, and at least one of them was changed."""
        folder = self.lake.folder / "store" / self.job.run_id
        mixed = [item for item in self.mutations if item.kind.startswith(("older", "foreign"))]
        try:
            return bool(mixed) and open_json((folder / "run.json").read_bytes())["format"] == 1
        except (OSError, ValueError):
            return False


def _some(rows: Counter[Row]) -> str:
    return f"{sum(rows.values())} {sorted(rows)[:2]}"
