"""Random histories of work: each covered row's output exists exactly once, whatever is dropped."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.coverage import NOTHING, Coverage, InputSums
from holdfast.model.work import Chunk, StagedFile, StagedGroup, TaskRecord, Work

_LOW, _HIGH = 7, 11
_TASKS = ["chunk", "chunk", "chunk", "cut", "cut", "replay"]
_UNSEEN = "00000001/rows/000000/000000000001/9999"


@dataclass
class History:
    """What tasks did and the driver accepted, and which rows are in which object."""

    work: Work = field(default_factory=Work)
    next_row: int = 0
    next_number: int = 0
    # The input rows that each record covers, and the output rows in its chunk or files.
    covered: dict[str, list[int]] = field(default_factory=dict)
    outputs: dict[str, list[int]] = field(default_factory=dict)

    def rows(self, count: int) -> list[int]:
        """Return new input rows."""
        self.next_row += count
        return list(range(self.next_row - count, self.next_row))

    def make(self, rows: list[int], *, chunk: bool, supersedes: tuple[str, ...]) -> TaskRecord:
        """Return a record over new rows whose files also hold the rows of what it supersedes."""
        name = f"{1 + self.next_number // 7:08d}/rows/000000/000000000001/{self.next_number:04d}"
        self.next_number += 1
        outputs = _outputs(rows)
        for other in supersedes:
            outputs += self.outputs.get(other, [])
        self.covered[name], self.outputs[name] = rows, outputs
        file = StagedFile(path=f"file of {name}", size_bytes=1, rows=len(outputs))
        group = StagedGroup(path=f"group of {name}", size_bytes=1, files=(file,), detail={})
        return TaskRecord(
            name=name,
            coverage=_coverage(rows),
            seconds=1.0,
            groups=(group,) if outputs and not chunk else (),
            chunk=Chunk(rows=len(outputs), size_bytes=1, digest=name)
            if outputs and chunk
            else None,
            supersedes=supersedes,
        )

    def check(self) -> None:
        """Compare the rows in objects with those that are covered."""
        work = self.work
        standing: Counter[int] = Counter()
        for group in work.groups:
            standing.update(self.outputs[group.path.removeprefix("group of ")])
        for record in work.waiting:
            standing.update(self.outputs[record.name])
        covered = [row for record in work.records for row in self.covered[record.name]]
        assert len(set(covered)) == len(covered)
        assert standing == Counter(_outputs(covered))
        whole = _coverage(covered)
        assert work.sums == InputSums(
            rows=whole.rows,
            null_keys=0,
            low=whole.low,
            high=whole.high,
            row_low=whole.row_low or 0,
            row_high=whole.row_high or 0,
        )


def _outputs(rows: list[int]) -> list[int]:
    """Return the output of input rows: none, one or two rows each, distinguished by number."""
    return [10 * row + i for row in rows for i in range(row % 3)]


def _coverage(rows: list[int]) -> Coverage:
    if not rows:
        return NOTHING
    low, high = sum(row * _LOW for row in rows), sum(row * _HIGH for row in rows)
    return Coverage(rows=len(rows), low=low, high=high, row_low=high, row_high=low, keys_bytes=1)


def _half(data: st.DataObject, names: list[str]) -> tuple[str, ...]:
    return tuple(name for name in names if data.draw(st.booleans()))


def _few(data: st.DataObject, names: list[str]) -> list[str]:
    return data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=2)) if names else []


def _step(data: st.DataObject, history: History) -> None:
    """Do one thing that tasks or the driver may do."""
    work = history.work
    accepted = [record.name for record in work.records]
    waiting = [record.name for record in work.waiting]
    superseded = sorted(work.superseded)
    kind = data.draw(st.sampled_from([*_TASKS, "drop", "lose", "rival", "again"]))
    if kind in {"drop", "lose"}:
        # Any record, or one whose rows are in the files of another.
        history.work = work.without(_few(data, accepted if kind == "drop" else superseded))
    elif kind == "again":
        history.work, refused = work.plus(work.records)
        assert refused == tuple(accepted)
    elif kind == "rival":
        # It names what is superseded already, what was dropped, or what was never seen.
        bad = [*superseded, *sorted(set(history.covered) - set(accepted)), _UNSEEN]
        named = (*_few(data, bad), *waiting[:1])
        record = history.make(history.rows(2), chunk=False, supersedes=named)
        history.work, refused = work.plus([record])
        assert refused == (record.name,)
    else:
        rows = history.rows(0 if kind == "replay" else data.draw(st.integers(0, 4)))
        named = () if kind == "chunk" else _half(data, waiting)
        record = history.make(rows, chunk=kind == "chunk", supersedes=named)
        history.work, refused = work.plus([record])
        assert refused == ()


@given(data=st.data())
def test_every_covered_row_is_kept_exactly_once(data: st.DataObject) -> None:
    """After every step, the output of the covered rows is in files or waiting chunks, once."""
    history = History()
    for _ in range(data.draw(st.integers(5, 25))):
        _step(data, history)
        history.check()
    texts = [json.dumps(record.to_json()) for record in history.work.records]
    again = Work(records=tuple(TaskRecord.from_json(json.loads(text)) for text in texts))
    assert again == history.work
