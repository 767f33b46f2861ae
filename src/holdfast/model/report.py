"""The report: what one start of a run did, for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from holdfast.model.costs import cost_lines
from holdfast.model.records import Intent, MergeCounts, Ready, Receipt
from holdfast.text import moment, printable

# "ready": everything is staged and checked, and the user commits it.
Outcome = Literal["committed", "already_committed", "ready"]
Presence = Literal["yes", "unknown"]
# "keys" and "rows": see `verify_input=`. "files": the files of a scan, which are pinned.
Compared = Literal["keys", "rows", "files"] | None

_COMPARED: Mapping[Compared, str] = {
    "keys": "compared by its keys",
    "rows": "compared row by row, including values",
    "files": "the pinned files",
    None: "not compared",
}
# What a start that only found the run in the table must not be taken to have compared.
_LEFT_OUT: Mapping[Compared, str] = {
    "keys": "; values were not compared",
    None: ", neither keys nor values",
}
_KILO = 1000
_NEXT = "run.staged_rows() shows the rows, run.commit() commits them"
# Lance's optimize_indices() may bring back what an index of several parts answered before
# update_columns.
_REBUILD = "optimize_indices() adds new rows; after update_columns build it again (replace=True)"
_MINUTE_S = 60
_SHORT_S = 10
# When to advise on small files: many files, and many per task, so that a small job is left alone.
_MANY_FILES = 100
_MANY_FILES_A_TASK = 8
_SMALL_FILE_BYTES = 16 * 1024 * 1024
# When to advise on rows that copy-on-write carries over: many, and many for each replaced one.
_MANY_CARRIED = 1_000_000
_MANY_CARRIED_A_ROW = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What one start of a run did. `print(report)` shows it as a small table."""

    run_id: str
    table: str
    outcome: Outcome
    # None if nothing was committed.
    snapshot_id: int | None
    rows: int
    files: int
    size_bytes: int
    posts: int
    # When the post was made that landed, as an ISO 8601 time; empty if nothing was committed.
    landed_at: str = ""
    # What an upsert has done: keys matched and inserted, files searched and rewritten.
    upserts: MergeCounts | None = None
    # Data files that hold rows that the run's have replaced, and these rows.
    replaced_files: int = 0
    replaced_rows: int = 0
    replaced_partitions: int = 0
    # Files of deletes that were added for that; or rows that were written anew, into new files,
    # because others of theirs were replaced.
    delete_files: int = 0
    carried_rows: int = 0
    # Rows of the output that were not written: they only deleted the row with their key, if there
    # was one.
    deleted_keys: int = 0
    # Data files that were read for rows that a filter matches, and written anew without these; of
    # them, those that were read because others had changed the table before the commit.
    searched_files: int = 0
    searched_again: int = 0
    tasks: int = 0
    passes: int = 0
    seconds: float = 0.0
    # Rows of earlier starts, which were not computed again, and the time that tasks had spent on
    # them.
    kept_rows: int = 0
    kept_seconds: float = 0.0
    # Rows that were done but had to be left out: covered twice, or their files were removed.
    dropped_rows: int = 0
    withdrawn_rows: int = 0
    # The tasks' use of storage: bytes_read, bytes_written, requests, busy_s (summed over concurrent
    # calls) and waited_s (how long computing waited for storage).
    io: Mapping[str, float] = field(default_factory=dict)
    # Files that had waited long, and were copied to new names before they were published; those
    # that kept their names, because the store refused to copy them.
    copied_files: int = 0
    not_copied_files: int = 0
    # How many rows each version of the transform's code has produced, by its digest.
    rows_by_code: Mapping[str, int] = field(default_factory=dict)
    # Rows that failed, and are in the quarantine instead of the table.
    quarantined_rows: int = 0
    # The cost of the answers, in the unit of `cost=`: of those that count, by the claim under which
    # they were paid for; of these, what earlier starts had paid; and what was paid for rows that
    # were lost, or left out. All of it is recorded as paid.
    cost_by_epoch: Mapping[int, float] = field(default_factory=dict)
    kept_cost: float = 0.0
    lost_cost: float = 0.0
    # What killed tasks may have spent besides: with a budget, what they had taken and not recorded;
    # without one, an estimate.
    held_cost: float = 0.0
    # The most that all of this may be; None without a limit.
    budget: float | None = None
    # How many rows each index of the table lacks, by its name.
    unindexed_rows: Mapping[str, int] = field(default_factory=dict)
    # For columns of rows that are there: rows that were computed again because others had moved or
    # changed them; and rows without a value, because others have appended them.
    rows_again: int = 0
    rows_without_columns: int = 0
    # How the input was compared with what an earlier start read; None if it was not.
    input_compared: Compared = "keys"
    still_in_table: Presence = "yes"

    @property
    def cost(self) -> float:
        """All that is recorded as paid."""
        return sum(self.cost_by_epoch.values()) + self.lost_cost

    @property
    def advice(self) -> str:
        """Advice on improving the table; empty if there is none."""
        if self.carried_rows >= max(_MANY_CARRIED, _MANY_CARRIED_A_ROW * self.replaced_rows):
            return (
                f"{self.carried_rows:,} rows were written anew to replace {self.replaced_rows:,} "
                "among them: set the table property write.merge.mode to merge-on-read, or sort the "
                "table by the merge key"
            )
        size = self.size_bytes / max(1, self.files)
        if self.files < _MANY_FILES or self.files < _MANY_FILES_A_TASK * self.tasks:
            return ""
        if size >= _SMALL_FILE_BYTES:
            return ""
        return (
            f"files have {readable_size(int(size))} on average, because each task writes to many "
            "partitions: cluster the input by the partition columns, or compact the table"
        )

    def __str__(self) -> str:
        """Return the report as lines of `name  value`."""
        lines = [
            ("run", self.run_id),
            ("table", self.table),
            ("outcome", self.outcome.replace("_", " ")),
            *self._landed(),
            *self._version(),
            ("rows", f"{self.rows:,}"),
            ("files", f"{self.files:,} ({readable_size(self.size_bytes)})"),
        ]
        replaced = replaced_text(self.replaced_rows, self.replaced_files, self.replaced_partitions)
        if replaced:
            lines.append((self._tense("replaces", "replaced"), f"{replaced}{self._how()}"))
        lines += _merge_lines(self.upserts)
        if self.searched_files and (self.upserts is None or self.searched_again):
            lines.append(("searched", self._searched()))
        lines += self._effort()
        if self.kept_rows:
            saved = readable_time(self.kept_seconds)
            lines.append(("kept", f"{self.kept_rows:,} rows of earlier starts, {saved} of work"))
        counts = (
            ("deletes", self.deleted_keys, "key", ", in the table or not"),
            ("dropped", self.dropped_rows, "row", " covered twice"),
            ("withdrawn", self.withdrawn_rows, "row", " of removed files"),
            ("copied", self.copied_files, "file", " that had waited long"),
            ("waited", self.not_copied_files, "file", " for over 48 h: the store makes no copies"),
            ("failed", self.quarantined_rows, "row", ": see run.quarantined()"),
            ("again", self.rows_again, "row", " that others had moved or changed"),
            ("without", self.rows_without_columns, "row", " that others had appended"),
        )
        lines += [(name, counted(n, noun) + what) for name, n, noun, what in counts if n]
        lines += cost_lines(self)
        if self.io.get("requests"):
            lines.append(("storage", self._storage()))
        if len(self.rows_by_code) > 1:
            made = [f"{rows:,} by {code[:8]}" for code, rows in self.rows_by_code.items()]
            lines.append(("code", ", ".join(made)))
        lines += [
            ("index", f"{name} does not cover {counted(rows, 'row')} yet: {_REBUILD}")
            for name, rows in self.unindexed_rows.items()
        ]
        if self.advice:
            lines.append(("advice", self.advice))
        lines.append(("input", self._input()))
        if self.still_in_table != "yes":
            lines.append(("in table", "unknown: the table's history no longer shows it"))
        lines.append(("time", f"{self.seconds:.1f} s"))
        lines += [("next", _NEXT)] if self.outcome == "ready" else []
        return "\n".join(f"  {name:<9} {printable(value)}" for name, value in lines)

    def _landed(self) -> list[tuple[str, str]]:
        if self.outcome != "already_committed" or not self.landed_at:
            return []
        at = moment(datetime.fromisoformat(self.landed_at).timestamp())
        return [("landed", f"{at} UTC, by an earlier start: this one computed nothing")]

    def _input(self) -> str:
        left_out = _LEFT_OUT.get(self.input_compared, "")
        return _COMPARED[self.input_compared] + (
            left_out if self.outcome == "already_committed" else ""
        )

    def _version(self) -> list[tuple[str, str]]:
        if self.snapshot_id is None:
            return []
        # A Lance dataset is named by its location, and counts its versions.
        return [("version" if "://" in self.table else "snapshot", str(self.snapshot_id))]

    def _tense(self, present: str, past: str) -> str:
        return present if self.outcome == "ready" else past

    def _effort(self) -> list[tuple[str, str]]:
        """Return how many tasks ran, and how often the result was posted."""
        if self.outcome == "already_committed":
            return []
        passes = f" in {self.passes} passes" if self.passes > 1 else ""
        tasks = ("tasks", f"{self.tasks:,}{passes}")
        if self.outcome == "ready":
            return [tasks]
        is_anew = self.replaced_files and self.posts > 1
        again = ", each for the rows that were there then" if is_anew else ""
        return [tasks, ("posts", f"{self.posts:,}{again}")]

    def _how(self) -> str:
        """Say what was written to replace rows among others; empty if whole files went."""
        if self.delete_files:
            return f", by {counted(self.delete_files, 'file')} of position deletes"
        return f", with {self.carried_rows:,} others written anew" if self.carried_rows else ""

    def _searched(self) -> str:
        text = f"{counted(self.searched_files, 'file')} for rows to replace"
        if not self.searched_again:
            return text
        return f"{text}, {self.searched_again:,} of them because others changed the table"

    def _storage(self) -> str:
        read, written = (int(self.io[name]) for name in ("bytes_read", "bytes_written"))
        return (
            f"{readable_size(read)} read, {readable_size(written)} written, "
            f"{self.io['requests']:,.0f} requests, waited {readable_time(self.io['waited_s'])}"
        )


def readable_size(size_bytes: int) -> str:
    """Return a size in readable form: `1.4 GB`."""
    size = float(size_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if size < _KILO:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= _KILO
    return f"{size:.1f} TB"


def readable_time(seconds: float) -> str:
    """Return a duration in readable form: `2 h 5 min`."""
    whole = round(seconds)
    if whole < _MINUTE_S:
        return f"{seconds:.1f} s" if seconds < _SHORT_S else f"{whole} s"
    hours, minutes = divmod(whole // _MINUTE_S, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {whole % _MINUTE_S} s"


def counted(number: int, one: str, many: str = "") -> str:
    """Return a number with its noun: `1 file`, `2 files`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def replaced_text(rows: int, files: int, partitions: int) -> str:
    """Return what a run has replaced; empty without files."""
    if not files:
        return ""
    of = f" of {counted(partitions, 'partition')}" if partitions else ""
    return f"{counted(rows, 'row')} in {counted(files, 'file')}{of}"


def replaced_by(record: Intent | Receipt | Ready) -> str:
    """Return what a post replaces, has replaced, or would; empty for nothing."""
    return replaced_text(record.removed_rows, record.removed_files, record.removed_partitions)


def merged_by(record: Intent | Receipt | None) -> list[tuple[str, str]]:
    """Return what an upsert does, or has done, as names and values; none for other modes."""
    return _merge_lines(record.upserts if record else None)


def _merge_lines(counts: MergeCounts | None) -> list[tuple[str, str]]:
    return [("merged", counts.keys_text), ("rewrote", counts.files_text)] if counts else []
