"""The only place that imports pyspark: sessions, jobs, version differences.

Classic and Connect DataFrames share no base class before Spark 4, and pyspark is optional, so the
names below only document intent; the code relies on attributes. Signatures elsewhere need them
without importing pyspark.
"""

from __future__ import annotations

from typing import Any, TypeAlias

SparkDataFrame: TypeAlias = Any
SparkSession: TypeAlias = Any
