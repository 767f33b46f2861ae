"""Values under the same keys: what `verify_input="rows"` finds through real Spark."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as sf

import holdfast as hf
from holdfast.engine.options import VerifyInput
from holdfast.errors import InputChangedError, RunMismatchError, SettingsError, TransformError
from holdfast.ledger.row_files import KeyFiles
from holdfast.model.coverage import InputSums
from holdfast.spark.dataframe import DataFrameSubmitter
from holdfast.storage.objects import ObjectStorage
from tests.conftest import ROOT
from tests.crash.own_connect import connect_server
from tests.integration.process_jobs import COLUMNS, run_job
from tests.stack_access import Stack

pytestmark = [pytest.mark.spark, pytest.mark.stack, pytest.mark.rest]

ROWS = 200
KEYS = {"integer": "id", "text": "concat('k', id)", "decimal": "cast(id as decimal(30,5))"}
BOTH = pytest.mark.parametrize("verify_input", ["keys", "rows"])


@pytest.fixture
def table(lake: SparkSession, namespace: str) -> str:
    """Return a table of numbers with a balance."""
    lake.sql(f"CREATE TABLE lake.{namespace}.t (n bigint, balance bigint) USING iceberg")
    return f"lake.{namespace}.t"


class _How(TypedDict):
    verify_input: VerifyInput


class UpTo:
    """A transform that fails from some row on."""

    def __init__(self, end: int) -> None:
        """Take the first number to fail at."""
        self.end = end

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the columns of the table."""
        if any(number >= self.end for number in batch["n"].to_pylist()):
            raise LookupError("killed here")
        return batch.select(["n", "balance"])


def balances(
    lake: SparkSession, balance: str = "1", *, key: str = "id", rows: int = ROWS
) -> DataFrame:
    """Return numbered customers in two partitions."""
    return lake.range(0, rows, 1, 2).selectExpr(f"{key} as k", "id as n", f"{balance} as balance")


def append(
    df: DataFrame,
    table: str,
    ledger: dict[str, Any],
    *,
    end: int = ROWS * 10,
    verify_input: VerifyInput = "keys",
) -> hf.Report:
    """Append the rows, up to one that fails."""
    run = hf.Run("nightly", **ledger, takeover="now", verify_input=verify_input)
    return run.append(df, to=table, key="k", transform=UpTo(end), batch_rows=10, retries=0)


@BOTH
@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.filterwarnings("ignore:.*code has changed")
def test_new_values_under_finished_keys(
    lake: SparkSession, table: str, ledger: dict[str, Any], kind: str, verify_input: VerifyInput
) -> None:
    """By keys the two days are mixed; by rows the second is refused, half way and after landing."""
    key, how = KEYS[kind], _How(verify_input=verify_input)
    first, second = balances(lake, key=key), balances(lake, "2", key=key)
    with pytest.raises(TransformError):
        append(first, table, ledger, end=ROWS // 2, **how)
    if verify_input == "keys":
        report = append(second, table, ledger, **how)
        assert (report.kept_rows, report.input_compared) == (ROWS // 2, "keys")
        assert lake.table(table).where("balance = 1").count() == ROWS // 2
        assert append(first, table, ledger, **how).outcome == "already_committed"
        return
    more = balances(lake, "if(id = 3, 2, 1)", key=key, rows=ROWS + 50)
    for other in (second, more):
        with pytest.raises(InputChangedError, match="keys are the same, but some of the 100"):
            append(other, table, ledger, **how)
    report = append(balances(lake, key=key, rows=ROWS + 50), table, ledger, **how)
    assert (report.kept_rows, report.input_compared) == (ROWS // 2, "rows")
    with pytest.raises(RunMismatchError, match="250 rows with the same keys, but different values"):
        append(more, table, ledger, **how)
    again = append(balances(lake, key=key, rows=ROWS + 50).repartition(3), table, ledger, **how)
    assert (again.outcome, again.input_compared) == ("already_committed", "rows")
    assert lake.table(table).where("balance = 1").count() == ROWS + 50


def compacted(lake: SparkSession, folder: Path, order: Sequence[int]) -> DataFrame:
    """Write the same rows in another order; number them by a window with a partial order."""
    folder.mkdir(exist_ok=True)
    rows = pa.table({"n": order, "balance": [n % 5 for n in order]})
    pq.write_table(rows, folder / "rows.parquet")
    lake.catalog.refreshByPath(str(folder))
    numbered = sf.row_number().over(Window.orderBy("balance"))
    return lake.read.parquet(str(folder)).withColumn("k", numbered).repartition(2, "k")


@BOTH
@pytest.mark.filterwarnings("ignore:.*code has changed")
def test_numbers_of_rows_in_another_order(
    lake: SparkSession,
    table: str,
    ledger: dict[str, Any],
    verify_input: VerifyInput,
    tmp_path: Path,
) -> None:
    """The keys are 1 to n each time, but for different rows: by keys, rows are lost and doubled."""
    how = _How(verify_input=verify_input)
    first = compacted(lake, tmp_path / "raw", range(ROWS))
    with pytest.raises(TransformError):
        append(first, table, ledger, end=ROWS // 2, **how)
    second = compacted(lake, tmp_path / "raw", range(ROWS - 1, -1, -1))
    if verify_input == "keys":
        append(second, table, ledger, **how)
        assert lake.table(table).count() == ROWS
        assert lake.table(table).select("n").distinct().count() < ROWS
        return
    with pytest.raises(InputChangedError, match="keys are the same"):
        append(second, table, ledger, **how)
    assert lake.table(f"{table}.snapshots").count() == 0


def test_a_run_verified_by_keys_cannot_continue_by_rows(
    lake: SparkSession, table: str, ledger: dict[str, Any]
) -> None:
    """The values were not recorded; the other way round works, and the report says so."""
    append(balances(lake), table, ledger)
    with pytest.raises(RunMismatchError, match="200 rows were done without it"):
        append(balances(lake), table, ledger, verify_input="rows")
    assert append(balances(lake), table, ledger, verify_input="keys").input_compared == "keys"


def test_a_column_that_was_added_is_named_and_the_order_of_columns_is_free(
    lake: SparkSession, table: str, ledger: dict[str, Any]
) -> None:
    """A changed schema is a changed input under "rows"."""
    df = balances(lake)
    append(df, table, ledger, verify_input="rows")
    wider = df.withColumn("balance", sf.col("balance").cast("long")).withColumn("c", sf.lit(1))
    with pytest.raises(RunMismatchError, match=r"\(gone: balance int; new: balance bigint, c int"):
        append(wider, table, ledger, verify_input="rows")
    again = append(df.select("balance", "n", "k"), table, ledger, verify_input="rows")
    assert (again.outcome, again.input_compared) == ("already_committed", "rows")


def test_rows_of_remaining_are_compared_by_keys_only(
    lake: SparkSession, table: str, ledger: dict[str, Any]
) -> None:
    """What arrives is not the input's rows: an error at once; the same run continues by keys."""
    with pytest.raises(SettingsError, match=r"with run\.remaining\(\)"):
        hf.Run("remaining", **ledger, verify_input="rows").remaining(balances(lake), key="k")
    run = hf.Run("remaining", **ledger)
    left = run.remaining(balances(lake), key="k")
    assert run.append(left, to=table, key="k", transform=UpTo(ROWS)).rows == ROWS


def sums(df: DataFrame) -> InputSums:
    """Measure a DataFrame by whole rows."""
    nothing = KeyFiles(storage=ObjectStorage({}), uris={})
    measured: InputSums = DataFrameSubmitter(df, ("k",)).measure(nothing, whole_rows=True)
    return measured


# Values of one type that must have different hashes, and that xxhash64 alone may confuse.
DIFFERENT = {
    "NULL and empty": ["cast(null as string)", "''"],
    "array": ["array(1, null, 2)", "array(null, 1, 2)", "array(1, 2)", "array(1, 2, null)"],
    "no array": [
        "cast(array() as array<int>)",
        "cast(null as array<int>)",
        "array(cast(null as int))",
    ],
    "arrays in arrays": [
        "array(array(1), array(2))",
        "array(array(1, 2))",
        "array(array(1, 2), null)",
    ],
    "struct": [
        "named_struct('x', 1, 'y', cast(null as int))",
        "named_struct('x', cast(null as int), 'y', 1)",
        "named_struct('x', cast(null as int), 'y', cast(null as int))",
        "cast(null as struct<x: int, y: int>)",
    ],
    "map": [
        "map('a', 1, 'b', 2)",
        "map('a', 2, 'b', 1)",
        "map('a', 1, 'b', null)",
        "map('a', null, 'b', 1)",
        "cast(map() as map<string, int>)",
        "cast(null as map<string, int>)",
    ],
    "maps in structs": [
        "named_struct('m', map(1, array(2)))",
        "named_struct('m', map(1, array(3)))",
    ],
    "double": ["0.0D", "double('nan')", "cast(null as double)", "1e-300D"],
    "decimal": ["cast(1.5 as decimal(38, 10))", "cast(1.6 as decimal(38, 10))"],
    "binary": ["x'00'", "x''", "x'0000'"],
    "time": ["timestamp'2026-01-01 00:00:00Z'", "timestamp'2026-01-01 00:00:00.000001Z'"],
}
SPARK_4 = {
    "collation": ["'A' collate utf8_lcase", "'a' collate utf8_lcase"],
    "variant": [
        "parse_json('1')",
        "parse_json('\"1\"')",
        "parse_json('null')",
        "cast(null as variant)",
    ],
}
SAME = {
    "map": ["map('a', 1, 'b', 2)", "map('b', 2, 'a', 1)"],
    "zero": ["0.0D", "-0.0D"],
    "time": ["timestamp'2026-01-01 00:00:00Z'", "timestamp'2026-01-01 01:00:00+01:00'"],
}


@pytest.mark.parametrize("kind", [*DIFFERENT, *SPARK_4])
def test_different_values_have_different_sums(lake: SparkSession, kind: str) -> None:
    """Spark's own hash skips NULLs and refuses maps: the values here must have different hashes."""
    if kind in SPARK_4 and lake.version < "4":
        pytest.skip("a type of Spark 4")
    values = {**DIFFERENT, **SPARK_4}[kind]
    found = {sums(lake.sql(f"select 1 as k, {value} as v")).row_low for value in values}
    assert len(found) == len(values)


@pytest.mark.parametrize("kind", SAME)
def test_the_same_value_in_another_form_has_the_same_sums(lake: SparkSession, kind: str) -> None:
    """A map has no order, and a timestamp no zone; 0.0 and -0.0 are equal in Spark."""
    first, other = (sums(lake.sql(f"select 1 as k, {value} as v")) for value in SAME[kind])
    assert first.matches(other)


def test_which_column_a_value_is_in_matters_and_nullability_does_not(lake: SparkSession) -> None:
    """NULL and 1 are not 1 and NULL; how a column is declared says nothing about its values."""
    first = sums(lake.sql("select 1 as k, 1 as a, cast(null as int) as b"))
    assert not first.matches(sums(lake.sql("select 1 as k, cast(null as int) as a, 1 as b")))
    strict = lake.range(3).selectExpr("id as k", "id as v")
    loose = lake.createDataFrame(strict.collect(), "k bigint, v bigint")
    assert strict.schema != loose.schema
    assert sums(strict).matches(sums(loose))


def test_names_that_spark_cannot_distinguish_are_hashed_by_position(lake: SparkSession) -> None:
    """Columns with the same name, or names that differ only in case, may swap values."""
    for names in ("a, a", "a, A"):
        first, last = names.split(", ")
        found = sums(lake.sql(f"select 1 as k, 1 as {first}, 2 as {last}"))
        assert not found.matches(sums(lake.sql(f"select 1 as k, 2 as {first}, 1 as {last}")))


def test_rows_of_every_type_land_and_are_known_again(
    lake: SparkSession, table: str, ledger: dict[str, Any]
) -> None:
    """Tasks sum what Spark has hashed, whatever is in the rows; the transform sees no hash."""
    columns = [f"{values[0]} as `v {name}`" for name, values in DIFFERENT.items()]
    df = balances(lake).selectExpr("*", *columns)
    seen = len(df.columns)

    def checked(batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.num_columns != seen:
            raise LookupError(batch.schema.names)
        return batch.select(["n", "balance"])

    run = hf.Run("types", **ledger, verify_input="rows")
    report = run.append(df, to=table, key="k", transform=checked)
    assert (report.outcome, report.input_compared) == ("committed", "rows")
    again = run.append(df.repartition(4), to=table, key="k", transform=checked)
    assert (again.outcome, again.input_compared) == ("already_committed", "rows")


@pytest.mark.connect
def test_under_connect_values_are_compared_too(
    stack: Stack, lake: SparkSession, namespace: str, ledger: dict[str, Any], tmp_path: Path
) -> None:
    """No JVM is reachable: the hash is SQL."""
    lake.sql(f"CREATE TABLE lake.{namespace}.rows ({COLUMNS}) USING iceberg")
    with connect_server(tmp_path / "server") as remote:
        job = {
            "spark": {"spark.remote": remote},
            "run_id": "nightly",
            "to": f"{namespace}.rows",
            "catalog": stack.rest_catalog_properties(),
            "verify_input": "rows",
            **ledger,
        }
        paths = {"PYTHONPATH": f"{ROOT}/src{os.pathsep}{ROOT}"}
        for outcome in ("committed", "already committed"):
            ended = run_job(job, folder=tmp_path, environment=paths)
            assert (ended.code, ended.report.get("outcome")) == (0, outcome), ended.errors
            assert ended.report["input"] == "compared row by row, including values"
        other = {**job, "label": "concat('other row ', id) AS label"}
        ended = run_job(other, folder=tmp_path, environment=paths)
        assert ended.code != 0
        assert "40 rows with the same keys, but different values" in ended.errors
