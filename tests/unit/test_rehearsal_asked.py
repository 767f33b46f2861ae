"""A commit in another process writes what its caller names, and nothing that only a ledger says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.errors import RunMismatchError, SettingsError
from holdfast.ledger.ledger import Ports
from holdfast.model.records import open_json, seal_json
from holdfast.sinks.base import Sink
from holdfast.sinks.iceberg.sink import IcebergSink
from tests.fakes.cli_lake import CliLake, lake
from tests.fakes.memory_submitter import MemorySubmitter

__all__ = ["lake"]

GONE = Ports(process_id=2**30)


def staged(lake: CliLake, **options: Any) -> Sink:  # noqa: ANN401
    """Return the table, with a row of others, for which a run has staged twenty."""
    sink = lake.make_table()
    sink.load().handle.append(pa.table({"id": pa.array([100], pa.int64())}))
    lake.start("r", MemorySubmitter(range(10), range(10, 20)), GONE, commit=False, **options)
    return sink


def forge(lake: CliLake, **facts: Any) -> None:  # noqa: ANN401
    """Change the run's identity as another writer of its store can."""
    file = lake.folder / "store" / "r" / "run.json"
    content = open_json(file.read_bytes())
    content["identity"] |= facts
    file.write_bytes(seal_json(content))


def table_of(lake: CliLake) -> hf.IcebergTable:
    """Return the table as a user names it."""
    return hf.IcebergTable("db.t", catalog={"name": "lake", **lake.properties})


def ids_of(sink: Sink) -> list[int]:
    """Return the ids in the table."""
    assert isinstance(sink, IcebergSink)
    return sorted(sink.load().handle.scan().to_arrow()["id"].to_pylist())


def test_a_commit_in_another_process_needs_the_table(lake: CliLake) -> None:
    """The ledger names one, which other writers of its store can change."""
    sink = staged(lake)
    with pytest.raises(SettingsError, match=r"(?s)only the ledger .* run\.commit\(to=\.\.\.\)"):
        hf.Run("r", store=lake.store).commit()
    assert ids_of(sink) == [100]


FORGED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"mode": "overwrite"}, {}, r"(?s)replace all rows of .* mode='overwrite'\)"),
    ({"mode": "overwrite_partitions"}, {}, "mode='overwrite_partitions'"),
    ({"mode": "overwrite", "where": "id > 5"}, {}, "mode='overwrite', where='id > 5'"),
    ({"mode": "upsert", "on": ["id"]}, {}, "mode='upsert', on='id'"),
    (
        {"mode": "overwrite", "where": ""},
        {"mode": "overwrite", "where": "id < 0"},
        r"(?s)replace all rows of .*to=\.\.\., mode='overwrite'\)",
    ),
    (
        {"mode": "upsert", "on": ["id"], "delete_column": "gone"},
        {"mode": "upsert", "on": "id"},
        "delete_column='gone'",
    ),
    (
        {"mode": "append"},
        {"mode": "upsert", "on": "id"},
        r"(?s)append to .*run\.commit\(to=\.\.\.\)",
    ),
]


@pytest.mark.parametrize(("recorded", "named", "why"), FORGED)
def test_a_commit_in_another_process_does_only_what_it_is_called_for(
    lake: CliLake, recorded: Mapping[str, Any], named: Mapping[str, Any], why: str
) -> None:
    """A changed ledger cannot turn an append into an overwrite, nor widen one."""
    sink = staged(lake)
    forge(lake, **recorded)
    with pytest.raises(SettingsError, match=why):
        hf.Run("r", store=lake.store).commit(to=table_of(lake), **named)
    assert ids_of(sink) == [100]


def test_a_ledger_does_not_choose_the_branch_of_a_table_that_is_named_without_one(
    lake: CliLake,
) -> None:
    """A name as text is that of `main`."""
    sink = staged(lake)
    forge(lake, branch="audit")
    with pytest.raises(RunMismatchError, match="its branch was 'audit', and is now 'main'"):
        hf.Run("r", store=lake.store).commit(to="lake.db.t")
    assert ids_of(sink) == [100]


def test_the_object_that_has_made_the_write_knows_what_it_was(lake: CliLake) -> None:
    """It needs no argument, and refuses what has changed in the ledger since."""
    sink = staged(lake)
    identity = lake.ledger("r").run_file()
    assert identity is not None
    run = hf.Run("r", store=lake.store)
    run._target, run._asked = table_of(lake), identity.identity  # noqa: SLF001
    forge(lake, mode="overwrite")
    with pytest.raises(RunMismatchError, match="its mode was 'overwrite', and is now 'append'"):
        run.commit()
    assert ids_of(sink) == [100]
    forge(lake, mode="append")
    assert run.commit().outcome == "committed"
    assert ids_of(sink) == [*range(20), 100]


@pytest.mark.parametrize(
    ("options", "left"), [({"mode": "overwrite"}, []), ({"mode": "upsert", "on": ["id"]}, [100])]
)
def test_what_is_named_as_the_write_was_is_committed(
    lake: CliLake, options: dict[str, Any], left: list[int]
) -> None:
    """In the words of the verbs."""
    sink = staged(lake, **options)
    run = hf.Run("r", store=lake.store)
    assert run.commit(to=table_of(lake), **options).rows == 20
    assert ids_of(sink) == [*range(20), *left]
