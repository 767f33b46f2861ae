"""Rows left: exact whichever side is broadcast, and whole rows are never shuffled."""

from __future__ import annotations

import contextlib
import io
import warnings
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from holdfast.errors import NullKeyError
from holdfast.ledger.row_files import KeyFile, KeyFiles
from holdfast.spark import keys
from holdfast.spark.keys import RowsLeft
from holdfast.storage.objects import ObjectStorage

pytestmark = [pytest.mark.spark]

ROWS = 5_000
# How many rows are finished, what fits into the heap, and which joins that must lead to.
ROUTES = {
    "finished keys": (1_000, 10**9, ["BroadcastHashJoin LeftAnti"]),
    "keys left": (4_500, 150_000, ["BroadcastHashJoin LeftSemi"]),
    "filter over keys left": (
        3_000,
        50_000,
        ["BroadcastHashJoin LeftAnti", "BroadcastHashJoin LeftSemi"],
    ),
    "filter over finished keys": (
        2_000,
        50_000,
        ["BroadcastHashJoin LeftAnti", "BroadcastHashJoin LeftOuter"],
    ),
}
NUMBER, TEXT = "id * 7919 - 4000", "concat('schlüssel-', id * 31)"
KEYS: dict[str, dict[str, str]] = {
    "number": {"k": NUMBER},
    "text": {"k": TEXT},
    "both": {"a.b": TEXT, "k": f"cast({NUMBER} AS int)"},
}


def frame(session: SparkSession, kind: str, start: int = 0, stop: int = ROWS) -> DataFrame:
    """Return rows with a key of this kind, their number and a wide column."""
    columns = [f"{how} AS `{name}`" for name, how in KEYS[kind].items()]
    rows = session.range(start, stop, 1, 3)
    return rows.selectExpr(*columns, "id AS n", "repeat('x', 500) AS `wide.column`")


def finished(df: DataFrame, key: list[str], folder: Path) -> KeyFiles:
    """Return the keys of all rows of a DataFrame as the key files of three records."""
    storage = ObjectStorage({})
    rows = pa.Table.from_pylist([row.asDict() for row in df.select("n", *quoted(key)).collect()])
    uris = {}
    for part in range(3):
        some = rows.filter(pa.compute.equal(pa.array([n % 3 for n in rows["n"].to_pylist()]), part))
        uris[f"record {part}"] = f"{folder.as_uri()}/{part}.keys"
        file = KeyFile(storage, uris[f"record {part}"])
        file.add(key, [some[name].combine_chunks() for name in key])
        file.finish()
    return KeyFiles(storage=storage, uris=uris, rows=rows.num_rows)


def quoted(key: list[str]) -> list[str]:
    """Return names as Spark takes them."""
    return [f"`{name}`" for name in key]


def plan_of(df: DataFrame) -> str:
    """Return Spark's plan."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        df.explain()
    return printed.getvalue()


def joins_of(df: DataFrame) -> list[str]:
    """Return the joins that whole rows pass through, without those that made what is kept.

    Method: walk the plan as Spark has it. What is kept is a leaf there; PySpark 4.3 prints its plan
    as if it were a part of the rows' own.
    """
    found, nodes = [], [df._jdf.queryExecution().sparkPlan()]  # noqa: SLF001 - no other way.
    while nodes:
        node = nodes.pop()
        if node.nodeName().endswith("Join"):
            found.append(f"{node.nodeName()} {node.joinType().toString()}")
        children = node.children()
        nodes += [children.apply(number) for number in range(children.size())]
    return sorted(found)


def room(monkeypatch: pytest.MonkeyPatch, size_bytes: int) -> None:
    """Let broadcasts have this size."""
    monkeypatch.setattr(keys, "broadcast_bytes", lambda _session: size_bytes)


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("route", ROUTES)
def test_rows_left_are_exact_and_stay_where_they_are(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, route: str, kind: str
) -> None:
    """Whichever side is broadcast, every row left is there once, in the input's partitions."""
    done, size_bytes, joins = ROUTES[route]
    room(monkeypatch, size_bytes)
    df, key = frame(session, kind), list(KEYS[kind])
    left = RowsLeft(df, key, finished(frame(session, kind, 0, done), key, tmp_path))
    rows = left.rows()
    assert rows.columns == df.columns
    assert sorted(row["n"] for row in rows.select("n").collect()) == list(range(done, ROWS))
    assert left.sums().rows == ROWS - done
    assert joins_of(rows) == joins
    assert rows.rdd.getNumPartitions() == df.rdd.getNumPartitions()
    left.release()


@pytest.mark.parametrize("route", ["filter over keys left", "filter over finished keys"])
def test_keys_with_the_same_hash_are_told_apart(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, route: str
) -> None:
    """A hash of 16 bits lets hundreds of keys pass by mistake, and none is lost or done twice."""
    done, _, _ = ROUTES[route]
    room(monkeypatch, 200_000)
    whole = keys.hash_sql
    monkeypatch.setattr(keys, "hash_sql", lambda key: f"({whole(key)} & 65535)")
    left = RowsLeft(
        frame(session, "text"), ["k"], finished(frame(session, "text", 0, done), ["k"], tmp_path)
    )
    rows = left.rows()
    mistaken = left._kept[-1].count()  # noqa: SLF001 - so that the test is not vacuous.
    assert mistaken > 50
    assert sorted(row["n"] for row in rows.select("n").collect()) == list(range(done, ROWS))
    left.release()


def test_if_not_even_a_filter_fits_rows_are_shuffled_with_a_warning(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is slow, and says so, but it does not fail."""
    room(monkeypatch, 1_000)
    left = RowsLeft(
        frame(session, "number"),
        ["k"],
        finished(frame(session, "number", 0, 2000), ["k"], tmp_path),
    )
    with pytest.warns(UserWarning, match=r"2,000 finished keys and the 3,000 keys left"):
        rows = left.rows()
    assert sorted(row["n"] for row in rows.select("n").collect()) == list(range(2000, ROWS))
    assert joins_of(rows) == ["SortMergeJoin LeftAnti"]
    assert len(left._kept) == 1  # noqa: SLF001 - the keys left; no filter was built in vain.
    left.release()


def test_records_that_share_keys_are_named_with_how_many(
    session: SparkSession, tmp_path: Path
) -> None:
    """Their rows would be in the table twice, whether two records cover them or more."""
    df, storage, uris = frame(session, "number", 0, 10), ObjectStorage({}), {}
    numbers = [row["k"] for row in df.orderBy("n").select("k").collect()]
    for name, some in {"a": numbers[:6], "b": numbers[4:], "c": numbers[5:6]}.items():
        uris[name] = f"{tmp_path.as_uri()}/{name}.keys"
        file = KeyFile(storage, uris[name])
        file.add(["k"], [pa.array(some, pa.int64())])
        file.finish()
    done = KeyFiles(storage=storage, uris=uris, rows=13)
    assert keys.overlaps(df, ["k"], done) == {("a", "b"): 1, ("a", "b", "c"): 1}
    alone = KeyFiles(storage=storage, uris={"a": uris["a"]}, rows=6)
    assert keys.overlaps(df, ["k"], alone) == {}


@pytest.mark.parametrize("size_bytes", [150_000, 50_000])
def test_rows_without_a_key_are_refused_before_they_could_be_lost(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size_bytes: int
) -> None:
    """NULL equals nothing: no join with the keys left would find such a row."""
    room(monkeypatch, size_bytes)
    done = finished(frame(session, "number", 0, 4000), ["k"], tmp_path)
    df = frame(session, "number").selectExpr("if(n = 4999, NULL, k) AS k", "n")
    with pytest.raises(NullKeyError, match="1 "):
        RowsLeft(df, ["k"], done).rows()


@pytest.mark.parametrize("route", ROUTES)
def test_a_key_in_two_rows_left_keeps_both(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, route: str
) -> None:
    """Doubled keys are the input check's to find: here no row may get lost, nor appear twice."""
    done, size_bytes, _ = ROUTES[route]
    room(monkeypatch, size_bytes)
    df = frame(session, "number")
    twice = df.unionByName(frame(session, "number", done, done + 50))
    left = RowsLeft(twice, ["k"], finished(frame(session, "number", 0, done), ["k"], tmp_path))
    found = sorted(row["n"] for row in left.rows().select("n").collect())
    assert found == sorted([*range(done, ROWS), *range(done, done + 50)])
    assert left.sums().rows == ROWS - done + 50
    left.release()


def test_too_many_finished_keys_are_not_broadcast_to_find_the_keys_left(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark cannot know how many keys Python will read, and may change its plan when it does."""
    room(monkeypatch, 50_000)
    done = finished(frame(session, "number", 0, 2000), ["k"], tmp_path)
    left = RowsLeft(frame(session, "number"), ["k"], done)
    assert left.sums().rows == ROWS - 2000
    plan = plan_of(left.keys)
    assert "SortMergeJoin" in plan
    assert "BroadcastHashJoin" not in plan
    assert "wide" not in plan.partition("InMemoryRelation")[2]
    left.release()


def test_what_executors_keep_is_freed(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keys left and the filter lie on their disks only as long as the job needs them."""
    room(monkeypatch, 50_000)
    done = finished(frame(session, "number", 0, 2000), ["k"], tmp_path)
    before = set(session.sparkContext._jsc.getPersistentRDDs())  # noqa: SLF001
    left = RowsLeft(frame(session, "number"), ["k"], done)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        left.rows().count()
    assert set(session.sparkContext._jsc.getPersistentRDDs()) - before  # noqa: SLF001
    left.release()
    assert not set(session.sparkContext._jsc.getPersistentRDDs()) - before  # noqa: SLF001
