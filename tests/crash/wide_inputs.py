"""Inputs whose rows are wide. Drivers import this module, so it does not need pytest."""

from __future__ import annotations

from pyspark.sql import DataFrame

_WORDS = 4_000


def wide_payloads(df: DataFrame, tasks: int) -> DataFrame:  # noqa: ARG001 - as all upstreams.
    """Give each row a text of about 250 kB that does not compress well."""
    words = f"transform(sequence(1, {_WORDS}), n -> sha2(concat(id, '.', n), 256))"
    return df.selectExpr("id", f"concat_ws('', {words}) AS payload")
