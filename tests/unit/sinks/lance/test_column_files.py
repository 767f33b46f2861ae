"""Column files: values in the order of their rows, one for each, or an error."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from lance.file import LanceFileReader

from holdfast.errors import LedgerDamagedError, SchemaMismatchError, StoreUnavailableError
from holdfast.model.coverage import Pins
from holdfast.model.work import StagedGroup
from holdfast.sinks.base import NUMBER_COLUMN, Change, RowsMovedError
from holdfast.sinks.lance import column_files
from holdfast.sinks.lance.column_files import (
    COLUMN,
    FRAGMENT,
    Assembler,
    ColumnPlace,
    ColumnWriter,
    ColumnWriterSpec,
)
from holdfast.sinks.lance.columns import LanceColumnSink
from holdfast.sinks.lance.pages import write_joined
from holdfast.sinks.lance.placing import Assembly, AssemblyPart
from holdfast.sources.lance_columns import PinnedColumnScan
from holdfast.sources.scans import LanceScan
from holdfast.storage.port import Storage
from tests.fakes.column_rig import ColumnRig

SCHEMA = pa.schema([("n", pa.int64())])


@pytest.fixture
def rig(tmp_path: Path) -> ColumnRig:
    """Return a dataset of two fragments with ten rows each."""
    made = ColumnRig(str(tmp_path / "t.lance"))
    made.make(rows=20)
    return made


def place_of(rig: ColumnRig) -> ColumnPlace:
    """Return where its column files go."""
    return ColumnPlace(table=rig.uri, place=rig.sink().place, schema=SCHEMA, storage_version="2.2")


def writer(rig: ColumnRig) -> ColumnWriter:
    """Return a writer of values."""
    spec = ColumnWriterSpec(columns=place_of(rig), bases=(0, 10, 20), bytes_per_file=1)
    return spec.open("task")


def values(*numbers: int) -> pa.RecordBatch:
    """Return for some rows a value each, a hundred times the row's number."""
    columns = {"n": [100 * number for number in numbers], NUMBER_COLUMN: numbers}
    return pa.RecordBatch.from_pydict(
        columns, schema=SCHEMA.append(pa.field(NUMBER_COLUMN, "int64"))
    )


def staged(rig: ColumnRig, *batches: pa.RecordBatch) -> list[StagedGroup]:
    """Return what a task stages for some values."""
    task = writer(rig)
    for batch in batches:
        task.write(task.fit(batch))
    return task.cut()


def facts(groups: list[StagedGroup]) -> list[Any]:
    """Return what groups say of their rows, and how many they have."""
    return [
        (group.detail[COLUMN]["base"], group.detail[COLUMN]["is_whole"], group.files[0].rows)
        for group in groups
    ]


def assembly(groups: list[StagedGroup], **how: Any) -> Assembly:  # noqa: ANN401 - of `Assembly`.
    """Return the work of putting the first fragment's file together."""
    files = tuple((group.path, group.files[0].rows, group.size_bytes) for group in groups)
    part = AssemblyPart(base=0, fragment=0, version=1, files=files, failed=())
    made = Assembly(
        state="s",
        fragment=0,
        version=1,
        rows=10,
        parts=(part,),
        since=0,
        keeps=False,
        like=str(groups[0].detail[FRAGMENT]),
    )
    return replace(made, **how)


def test_each_fragment_has_files_of_its_own(rig: ColumnRig) -> None:
    """A file is whole if it has all rows of a fragment, in order."""
    groups = staged(rig, values(*range(4)), values(*range(4, 14)), values(*range(14, 20)))
    assert facts(groups) == [(0, True, 10), (10, True, 10)]


@pytest.mark.parametrize(
    "numbers",
    [
        (0, 2, 1, *range(3, 10)),
        (1, 0, *range(2, 10)),
        tuple(range(9)),
        tuple(range(1, 10)),
        (0, 2, *range(3, 10)),
    ],
    ids=["out of order", "late", "without the last", "without the first", "with a gap"],
)
def test_other_files_are_not_whole(rig: ColumnRig, numbers: tuple[int, ...]) -> None:
    """Their values would be those of other rows."""
    assert facts(staged(rig, values(*numbers))) == [(0, False, len(numbers))]


def test_rows_that_come_back_to_a_fragment_get_a_second_file(rig: ColumnRig) -> None:
    """One file is open at a time."""
    groups = staged(rig, values(8, 9, 10, 11), values(0, 1))
    assert facts(groups) == [(0, False, 2), (10, False, 2), (0, False, 2)]


def test_output_with_another_column_is_refused(rig: ColumnRig) -> None:
    """The columns are fixed when the run begins."""
    with pytest.raises(SchemaMismatchError, match="column 'm'"):
        writer(rig).fit(pa.RecordBatch.from_pydict({"m": [1], NUMBER_COLUMN: [0]}))


def test_values_are_put_in_order(rig: ColumnRig) -> None:
    """From several files, and in any order within each."""
    groups = staged(rig, values(7, 3, 1), values(12), values(0, 2, 9), values(13))
    groups += staged(rig, values(4, 5, 6, 8))
    own = [group for group in groups if group.detail[COLUMN]["base"] == 0]
    done = Assembler(place_of(rig)).rewrite(assembly(own).to_json())
    assert done.group is not None
    assert read(done.group) == [100 * number for number in range(10)]


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int] | None]:
    """Return the files that are made of copied pages, however small; None for each that is not."""
    made: list[tuple[str, int] | None] = []

    def note(*arguments: Any) -> tuple[str, int] | None:  # noqa: ANN401 - those of `write_joined`.
        made.append(write_joined(*arguments))
        return made[-1]

    monkeypatch.setattr(column_files, "_PAGE_BYTES_MIN", 0)
    monkeypatch.setattr(column_files, "write_joined", note)
    return made


def read(group: StagedGroup | None) -> list[Any]:
    """Return the values in a file, as a reader of the dataset gets them."""
    assert group is not None
    (file,) = json.loads(str(group.detail[FRAGMENT]))["files"]
    assert f"{group.path.rpartition('/')[0]}/{file['path']}" == group.path
    assert file["file_size_bytes"] == Path(group.path.removeprefix("file://")).stat().st_size
    return list(LanceFileReader(group.path).read_all().to_table()["n"].to_pylist())


def test_pages_of_files_in_order_are_copied(
    rig: ColumnRig, copies: list[tuple[str, int] | None]
) -> None:
    """Whichever of the files was written first."""
    groups = staged(rig, values(4, 5, 6)) + staged(rig, values(7, 8, 9), values(12))[:1]
    groups += staged(rig, values(*range(4)))
    done = Assembler(place_of(rig)).rewrite(assembly(groups).to_json())
    assert read(done.group) == [100 * number for number in range(10)]
    assert len(copies) == 1
    assert copies[0] is not None
    assert done.group is not None
    assert done.group.detail[COLUMN]["names"] == ["n", NUMBER_COLUMN]


@pytest.mark.parametrize(
    "numbers",
    [((0, 2, 1, 3, 4), (5, 6, 7, 8, 9)), ((0, 1, 2, 4, 5), (3, 6, 7, 8, 9))],
    ids=["out of order", "with a gap"],
)
def test_pages_of_other_files_are_not_copied(
    numbers: tuple[tuple[int, ...], ...],
    rig: ColumnRig,
    copies: list[tuple[str, int] | None],
) -> None:
    """A page would hold other rows than it seems to."""
    groups = [group for some in numbers for group in staged(rig, values(*some))]
    done = Assembler(place_of(rig)).rewrite(assembly(groups).to_json())
    assert read(done.group) == [100 * number for number in range(10)]
    assert copies == []


def test_pages_are_not_copied_for_rows_known_by_ids(
    tmp_path: Path, copies: list[tuple[str, int] | None]
) -> None:
    """Only some of them may be in the fragment, and in another order."""
    rig = ColumnRig(str(tmp_path / "ids.lance"))
    rig.make(rows=20, enable_stable_row_ids=True)
    groups = staged(rig, values(*range(5))) + staged(rig, values(*range(5, 10)))
    done = Assembler(place_of(rig)).rewrite(assembly(groups, since=1).to_json())
    assert read(done.group) == [100 * number for number in range(10)]
    assert copies == []


def test_a_copy_that_is_not_right_is_written_again(
    rig: ColumnRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read before it is used: if pages are not where they should be, Lance writes it."""
    groups = staged(rig, values(*range(5))) + staged(rig, values(*range(5, 10)))
    wrong: list[str] = []

    def swapped(
        storage: Storage, folder: str, files: Sequence[tuple[str, int]], _least: int
    ) -> tuple[str, int] | None:
        made = write_joined(storage, folder, files[::-1], 0)
        assert made is not None
        wrong.append(made[0])
        return made

    monkeypatch.setattr(column_files, "write_joined", swapped)
    done = Assembler(place_of(rig)).rewrite(assembly(groups).to_json())
    assert read(done.group) == [100 * number for number in range(10)]
    assert len(wrong) == 1
    assert not Path(wrong[0].removeprefix("file://")).exists()


def test_a_version_that_is_gone_is_pythons_own_error(rig: ColumnRig) -> None:
    """Then the driver looks at the dataset again."""
    work = assembly(staged(rig, values(*range(10))), version=7)
    with pytest.raises(FileNotFoundError, match="version 7"):
        Assembler(place_of(rig)).rewrite(work.to_json())


def test_a_file_with_values_that_is_gone_fails_the_start(rig: ColumnRig) -> None:
    """The next one notices it before anything else, and computes its rows again."""
    groups = staged(rig, values(*range(5))) + staged(rig, values(*range(5, 10)))
    Path(groups[0].path.removeprefix("file://")).unlink()
    with pytest.raises(StoreUnavailableError):
        Assembler(place_of(rig)).rewrite(assembly(groups).to_json())


def test_a_live_row_without_a_value_is_an_error(rig: ColumnRig) -> None:
    """A record that was lost must not become NULL."""
    groups = staged(rig, values(*range(9)))
    with pytest.raises(LedgerDamagedError, match="1 rows have no value"):
        Assembler(place_of(rig)).rewrite(assembly(groups).to_json())


def test_a_row_that_failed_needs_no_value(rig: ColumnRig) -> None:
    """It is NULL in the file."""
    work = assembly(staged(rig, values(*range(9))))
    part = replace(work.parts[0], failed=((9, 10),))
    done = Assembler(place_of(rig)).rewrite(replace(work, parts=(part,)).to_json())
    assert done.kept_rows == 10


def test_a_row_with_two_values_is_an_error(rig: ColumnRig) -> None:
    """Nothing says which is right."""
    groups = staged(rig, values(*range(10))) + staged(rig, values(4))
    with pytest.raises(LedgerDamagedError, match="a row has two values"):
        Assembler(place_of(rig)).rewrite(assembly(groups).to_json())


def test_values_of_another_fragment_are_an_error(rig: ColumnRig) -> None:
    """The numbers in the file say so."""
    groups = staged(rig, values(*range(10, 20)))
    with pytest.raises(LedgerDamagedError, match="rows of no fragment"):
        Assembler(place_of(rig)).rewrite(assembly(groups).to_json())


# ---- The sink: which file belongs to which fragment


def pinned(rig: ColumnRig) -> tuple[LanceColumnSink, Pins]:
    """Return a sink of a run that computes a column, and its rows."""
    sink = rig.sink()
    pins = PinnedColumnScan(LanceScan(uri=rig.uri, columns=("id",)), sink.place).pin()
    sink.begin(SCHEMA, pins, is_update=False)
    return sink, pins


def test_a_fragment_without_values_is_an_error(rig: ColumnRig) -> None:
    """All of its rows have failed, or a record was lost."""
    sink, _ = pinned(rig)
    groups = staged(rig, values(*range(10)))
    with pytest.raises(LedgerDamagedError, match=r"fragment 1.*10 rows have no value"):
        sink.loss(sink.load(), Change(adds=groups, removes="columns"), "n")
    sink.loss(sink.load(), Change(adds=groups, removes="columns", failed=[(10, 20)]), "n")


def test_values_of_no_pinned_row_are_an_error(rig: ColumnRig) -> None:
    """The ledger names rows that the run does not have."""
    sink, _ = pinned(rig)
    (group,) = staged(rig, values(*range(10)))
    stray = replace(group, detail={**group.detail, COLUMN: {**group.detail[COLUMN], "base": 40}})
    with pytest.raises(LedgerDamagedError, match="not in the run's input"):
        sink.loss(sink.load(), Change(adds=[stray], removes="columns"), "n")


def test_a_file_with_other_rows_than_its_fragment_is_an_error(rig: ColumnRig) -> None:
    """Each row after a missing one would get its neighbour's value."""
    sink, _ = pinned(rig)
    (group, other) = staged(rig, values(*range(9)), values(*range(10, 20)))
    lies = replace(
        group, detail={**group.detail, COLUMN: {**group.detail[COLUMN], "is_whole": True}}
    )
    with pytest.raises(LedgerDamagedError, match="other rows than its fragment"):
        sink.loss(sink.load(), Change(adds=[lies, other], removes="columns"), "n")


def test_rows_of_an_unknown_fragment_are_asked_for(rig: ColumnRig) -> None:
    """Unless they were appended."""
    sink, _ = pinned(rig)
    groups = staged(rig, values(*range(20)))
    rig.append(100)
    sink.loss(sink.load(), Change(adds=groups, removes="columns"), "n")
    assert sink.rows_without_columns() == 1
    rig.compact()
    with pytest.raises(RowsMovedError) as raised:
        sink.loss(sink.load(), Change(adds=groups, removes="columns"), "n")
    assert list(raised.value.rows.values()) == [[(0, 21)]]
