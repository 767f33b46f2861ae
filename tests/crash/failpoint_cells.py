"""The cells of the crash matrix: each step where a process can die, and what is done there."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

# kill: SIGKILL. stop: SIGSTOP until a rival has finished, then SIGCONT. error: an exception.
Fault = Literal["kill", "stop", "error"]
FAULTS: tuple[Fault, ...] = ("kill", "stop", "error")

Process = Literal["driver", "task"]
Verb = Literal["append", "overwrite", "overwrite_partitions", "upsert", "add_columns"]
Deletes = Literal["", "some", "all"]

# What leads to the step. A job: the first start. replay: a task is killed when its chunk is
# durable. withdrawal: a staged file is gone at the second start. mistake: the transform fails for
# all rows. renewal: staged files count as old at once. merge: two groups count as many. conflict:
# another writer commits right before the post; the step is reached after that. abort: of a run
# whose driver died between intent and post. sweep: of one that landed.
Story = Literal[
    "job",
    "replay",
    "withdrawal",
    "mistake",
    "renewal",
    "merge",
    "conflict",
    "abort",
    "sweep",
]

_OF_DRIVERS: dict[Story, tuple[str, ...]] = {
    "job": (
        "before-probe-is-deleted",
        "before-run-file",
        "after-run-file",
        "before-claim",
        "after-claim",
        "before-plan",
        "after-plan",
        "after-job",
        "before-part",
        "after-part",
        "before-seal",
        "after-seal",
        "before-first-snapshot",
        "after-first-snapshot",
        "after-file-check",
        "before-intent",
        "after-intent",
        "before-post",
        "after-post",
        "before-receipt",
        "after-receipt",
    ),
    "withdrawal": ("after-replaced-records", "before-withdrawal-is-sealed"),
    "mistake": ("before-stop", "after-stop"),
    "renewal": (
        "before-renewal",
        "after-renewal",
        "before-copies",
        "before-manifest-copies",
        "after-copies",
    ),
    "merge": ("before-merged", "after-merged", "before-merge", "after-merge"),
    "conflict": ("before-refused", "after-refused"),
    "abort": (
        "before-abort",
        "after-abort",
        "before-resolving-post",
        "after-resolving-post",
        "after-abort-is-resolved",
    ),
    "sweep": ("before-files-are-swept", "after-files-are-swept", "after-ledger-is-swept"),
}
_OF_TASKS: dict[Story, tuple[str, ...]] = {
    "job": (
        "before-task",
        "before-first-record",
        "after-first-record",
        "after-batch",
        "before-chunk",
        "after-chunk",
        "before-keys",
        "after-keys",
        "before-chunk-record",
        "after-chunk-record",
        "before-failed-rows",
        "after-failed-rows",
        "before-failed-rows-record",
        "after-failed-rows-record",
        "before-files-are-closed",
        "after-files-are-closed",
        "after-manifest",
        "after-earlier-keys",
        "before-files-record",
        "after-files-record",
        "before-report",
    ),
    "replay": (
        # In the second pass one place has no rows left: its record says only that it has ended.
        "before-last-record",
        "after-last-record",
        "after-chunk-is-read",
        "before-replay-record",
        "after-replay-record",
    ),
}


_STORIES = (*_OF_DRIVERS, "replay")
# Steps that only a scan reaches, and steps that it never reaches: its rows have no keys.
_OF_SCANS = ("before-pins", "after-pins", "before-pinned", "after-pinned")
_OF_KEYS = {"before-keys", "after-keys"}
# The same for Lance: a dataset has versions from the start, and no manifests of ours.
_OF_LANCE = (
    "before-lance-create",
    "after-lance-create",
    "before-identity",
    "after-identity",
    "before-lance-commit",
)
_OF_ICEBERG = {
    "before-first-snapshot",
    "after-first-snapshot",
    "after-manifest",
    "before-manifest-copies",
    *("before-merged", "after-merged", "before-merge", "after-merge"),
}
# Steps that only a replace reaches, at first and after a conflict, and steps that it never reaches:
# a row that fails fails the job, and the table is there before it.
_OF_REPLACES: dict[Story, tuple[str, ...]] = {
    "job": ("before-base", "after-base", "after-loss", "before-removal", "after-removal"),
    "conflict": ("after-loss", "before-removal", "after-removal"),
}
_OF_APPENDS = {
    *("before-first-snapshot", "after-first-snapshot", "before-failed-rows", "after-failed-rows"),
    *("before-failed-rows-record", "after-failed-rows-record"),
}
_SCANS_SEED = 8
_REPLACES_SEED = 25
_LANCE_SEED = 14
_SAMPLED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One step, in one story, with one fault."""

    step: str
    of: Process
    story: Story
    fault: Fault
    # Whether the job scans files, instead of reading a DataFrame.
    is_scan: bool = False
    # Whether it writes a Lance dataset, instead of an Iceberg table.
    is_lance: bool = False
    verb: Verb = "append"
    # Whether only rows that match a filter are replaced: some of a file stay.
    has_filter: bool = False
    # Whether replaced rows of files that stay are deleted by their positions.
    by_position: bool = False
    # Which rows of an upsert delete.
    deletes: Deletes = ""
    # Whether an upsert has more keys than one task holds.
    is_large: bool = False
    # Whether the write stages everything, and a commit follows.
    is_staged: bool = False
    # Whether tasks take what calls cost from an account.
    has_budget: bool = False

    @property
    def row(self) -> str:
        """The first column of its row in the table of results."""
        kind = ", of a scan" if self.is_scan else ""
        kind += f", {self.verb}" if self.verb != "append" else ""
        kind += " by a filter" if self.has_filter else ""
        kind += " by positions" if self.by_position else ""
        kind += {"": "", "some": " with deletes", "all": " of deletes only"}[self.deletes]
        kind += " by a large index" if self.is_large else ""
        kind += ", committed later" if self.is_staged else ""
        kind += ", with a budget" if self.has_budget else ""
        kind += ", after a conflict" if self.is_late else ""
        return f"{self.step}{kind}{', onto Lance' if self.is_lance else ''}"

    @property
    def name(self) -> str:
        """The cell's name, as pytest shows it."""
        kind = f"{'scan-' if self.is_scan else ''}{'lance-' if self.is_lance else ''}"
        kind += f"{self.verb}-" if self.verb != "append" else ""
        kind += "where-" if self.has_filter else ""
        kind += "positions-" if self.by_position else ""
        kind += f"deletes-{self.deletes}-" if self.deletes else ""
        kind += "large-" if self.is_large else ""
        kind += "later-" if self.is_staged else ""
        kind += "budget-" if self.has_budget else ""
        kind += "late-" if self.is_late else ""
        return f"{kind}{self.step}-{self.fault}"

    @property
    def is_late(self) -> bool:
        """Whether the step is reached before a conflict, too."""
        known = self.step in _OF_REPLACES["job"] or self.verb == "add_columns"
        return self.story == "conflict" and known


def _cells() -> list[Cell]:
    processes: tuple[tuple[Process, dict[Story, tuple[str, ...]]], ...]
    processes = (("driver", _OF_DRIVERS), ("task", _OF_TASKS))
    return [
        Cell(step=step, of=of, story=story, fault=fault)
        for of, stories in processes
        for story, steps in stories.items()
        for step in steps
        for fault in FAULTS
    ]


def _scan_cells(known: Sequence[Cell]) -> list[Cell]:
    """Return all cells that only scans reach, and a sample of the rest."""
    new = [
        Cell(step=step, of="driver", story="job", fault=fault, is_scan=True)
        for step in _OF_SCANS
        for fault in FAULTS
    ]
    jobs = [cell for cell in known if cell.story == "job" and cell.step not in _OF_KEYS]
    some = random.Random(_SCANS_SEED).sample(jobs, _SAMPLED)
    return new + [replace(cell, is_scan=True) for cell in some]


def _lance_cells(known: Sequence[Cell]) -> list[Cell]:
    """Return all cells that only Lance drivers reach, and a sample of the rest, in all stories."""
    new = [
        Cell(step=step, of="driver", story="job", fault=fault, is_lance=True)
        for step in _OF_LANCE
        for fault in FAULTS
    ]
    both = [cell for cell in known if cell.step not in _OF_ICEBERG]
    rng = random.Random(_LANCE_SEED)
    stories = [story for story in _STORIES if story != "merge"]
    some = [rng.choice([cell for cell in both if cell.story == story]) for story in stories]
    some += rng.sample([cell for cell in both if cell not in some], _SAMPLED - len(some))
    return new + [replace(cell, is_lance=True) for cell in some]


def _replace_cells(known: Sequence[Cell]) -> list[Cell]:
    """Return per verb and format all cells that only replaces reach, and a sample of the rest."""
    found: list[Cell] = []
    kinds: tuple[tuple[Verb, bool], ...]
    kinds = (("overwrite", False), ("overwrite_partitions", False), ("overwrite", True))
    rng = random.Random(_REPLACES_SEED)
    for verb, is_lance in kinds:
        new = [
            Cell(step=step, of="driver", story=story, fault=fault, is_lance=is_lance, verb=verb)
            for story, steps in _OF_REPLACES.items()
            for step in steps
            for fault in FAULTS
        ]
        left_out = _OF_APPENDS | (_OF_ICEBERG if is_lance else set())
        rest = [cell for cell in known if cell.step not in left_out]
        some = [replace(cell, is_lance=is_lance, verb=verb) for cell in rng.sample(rest, _SAMPLED)]
        found += new + some
    return found + _filter_cells() + _upsert_cells() + _position_cells() + _column_cells()


def _filter_cells() -> list[Cell]:
    """Return the cells of a replace by a filter: those that only it reaches, and around it."""
    steps: tuple[tuple[str, Process, Story], ...] = (
        ("before-rewrite", "task", "job"),
        ("after-rewrite", "task", "job"),
        ("before-rewritten", "driver", "job"),
        ("after-rewritten", "driver", "job"),
        ("after-loss", "driver", "conflict"),
        ("after-removal", "driver", "conflict"),
        ("before-post", "driver", "job"),
        ("after-post", "driver", "job"),
    )
    return [
        Cell(step=step, of=of, story=story, fault=fault, verb="overwrite", has_filter=True)
        for step, of, story in steps
        for fault in FAULTS
    ]


def _upsert_cells() -> list[Cell]:
    """Return the cells of an upsert: those that only it reaches, and around it."""
    steps: tuple[tuple[str, Process, Story], ...] = (
        ("before-index", "task", "job"),
        ("after-index", "task", "job"),
        ("before-indexed", "driver", "job"),
        ("after-indexed", "driver", "job"),
        ("before-rewrite", "task", "job"),
        ("after-rewrite", "task", "job"),
        ("after-rewritten", "driver", "job"),
        ("after-loss", "driver", "conflict"),
        ("after-removal", "driver", "conflict"),
        ("before-post", "driver", "job"),
        ("after-post", "driver", "job"),
    )
    of_large: tuple[tuple[str, Process], ...] = (
        ("before-piece", "task"),
        ("after-piece", "task"),
        ("before-indexed", "driver"),
        ("after-indexed", "driver"),
        ("before-index", "task"),
        ("after-index", "task"),
        ("before-index-is-local", "task"),
        ("after-index-is-local", "task"),
    )
    usual = [
        Cell(step=step, of=of, story=story, fault=fault, verb="upsert")
        for step, of, story in steps
        for fault in FAULTS
    ]
    large = [
        Cell(step=step, of=of, story="job", fault=fault, verb="upsert", is_large=True)
        for step, of in of_large
        for fault in FAULTS
    ]
    return usual + large + _delete_cells()


def _delete_cells() -> list[Cell]:
    """Return the cells of upserts whose rows delete: killed with keys in chunks, and in files."""
    steps: tuple[tuple[str, Process, Story, Deletes], ...] = (
        ("before-deleted-keys", "task", "job", "some"),
        ("after-deleted-keys", "task", "job", "some"),
        ("after-copies", "driver", "renewal", "some"),
        ("before-merge", "driver", "merge", "some"),
        ("after-chunk-record", "task", "job", "all"),
        ("before-deleted-keys", "task", "job", "all"),
        ("before-replay-record", "task", "replay", "all"),
        ("before-indexed", "driver", "job", "all"),
        ("after-loss", "driver", "conflict", "all"),
        ("after-post", "driver", "job", "all"),
        ("after-abort", "driver", "abort", "all"),
        ("before-files-are-swept", "driver", "sweep", "all"),
    )
    return [
        Cell(step=step, of=of, story=story, fault=fault, verb="upsert", deletes=deletes)
        for step, of, story, deletes in steps
        for fault in FAULTS
    ]


def _position_cells() -> list[Cell]:
    """Return the cells of an upsert that deletes rows by their positions."""
    steps: tuple[tuple[str, Process, Story], ...] = (
        ("before-delete-file", "task", "job"),
        ("after-delete-file", "task", "job"),
        ("before-rewritten", "driver", "job"),
        ("after-rewritten", "driver", "job"),
        ("before-removal", "driver", "job"),
        ("after-removal", "driver", "job"),
        ("before-post", "driver", "job"),
        ("after-post", "driver", "job"),
        ("before-receipt", "driver", "job"),
        ("after-loss", "driver", "conflict"),
        ("after-removal", "driver", "conflict"),
        ("before-resolving-post", "driver", "abort"),
        ("after-abort-is-resolved", "driver", "abort"),
        ("before-files-are-swept", "driver", "sweep"),
        ("after-files-are-swept", "driver", "sweep"),
    )
    return [
        Cell(step=step, of=of, story=story, fault=fault, verb="upsert", by_position=True)
        for step, of, story in steps
        for fault in FAULTS
    ]


# The steps of a run that computes columns. The conflict is a compaction: rows are pinned again.
_OF_COLUMNS: tuple[tuple[Process, Story, tuple[str, ...]], ...] = (
    (
        "driver",
        "job",
        (
            *("before-pins", "after-pins", "before-pinned", "after-pinned", "after-seal"),
            *("after-loss", "before-rewritten", "after-rewritten", "before-intent"),
            *("after-intent", "before-post", "before-lance-commit", "after-post"),
            *("before-receipt", "after-receipt"),
        ),
    ),
    (
        "task",
        "job",
        (
            *("before-task", "after-batch", "before-chunk", "after-chunk", "before-chunk-record"),
            *("after-chunk-record", "before-files-are-closed", "after-files-are-closed"),
            *("before-files-record", "after-files-record", "before-rewrite", "after-rewrite"),
        ),
    ),
    ("task", "replay", ("after-chunk-is-read", "before-replay-record", "after-replay-record")),
    ("driver", "renewal", ("before-renewal", "before-copies", "after-copies")),
    (
        "driver",
        "conflict",
        (
            *("before-refused", "after-refused", "before-pins", "after-pins", "before-pinned"),
            *("after-pinned", "after-loss", "before-rewritten", "after-rewritten"),
        ),
    ),
    ("task", "conflict", ("before-task", "before-rewrite", "after-rewrite")),
    ("driver", "abort", ("before-resolving-post", "after-abort-is-resolved")),
    ("driver", "sweep", ("before-files-are-swept", "after-files-are-swept")),
)


def _column_cells() -> list[Cell]:
    """Return the cells of a run that computes columns of a Lance dataset, in full."""
    return [
        Cell(step=step, of=of, story=story, fault=fault, is_lance=True, verb="add_columns")
        for of, story, steps in _OF_COLUMNS
        for step in steps
        for fault in FAULTS
    ]


def _later_cells() -> list[Cell]:
    """Return the cells of a write whose commit comes later: around its last record and that."""
    steps: tuple[tuple[str, Story], ...] = (
        ("before-ready", "job"),
        ("after-ready", "job"),
        ("before-intent", "job"),
        ("after-intent", "job"),
        ("before-post", "job"),
        ("after-post", "job"),
        ("before-receipt", "job"),
        ("after-receipt", "job"),
        ("after-copies", "renewal"),
        ("after-refused", "conflict"),
        ("after-abort-is-resolved", "abort"),
    )
    kinds: tuple[tuple[Verb, bool], ...] = (("append", False), ("append", True), ("upsert", False))
    return [
        Cell(
            step=step,
            of="driver",
            story=story,
            fault=fault,
            verb=verb,
            is_lance=is_lance,
            is_staged=True,
        )
        for verb, is_lance in kinds
        for step, story in steps[: len(steps) if verb == "append" and not is_lance else 6]
        for fault in FAULTS
    ]


def _budget_cells() -> list[Cell]:
    """Return the cells of a task that takes money."""
    return [
        Cell(step=step, of="task", story="job", fault=fault, has_budget=True)
        for step in ("before-entry", "after-entry")
        for fault in FAULTS
    ]


_USUAL = _cells()
CELLS = [
    *_USUAL,
    *_scan_cells(_USUAL),
    *_lance_cells(_USUAL),
    *_replace_cells(_USUAL),
    *_later_cells(),
    *_budget_cells(),
]


def sampled(seed: int, count: int) -> Sequence[Cell]:
    """Return some cells, always the same ones for a seed."""
    return random.Random(seed).sample(CELLS, count)
