"""Names for what pyspark's two worlds have in common.

Classic and Connect DataFrames share no base class before Spark 4, and pyspark is optional, so
these are documentation for a reader; what is needed of them is asked for by attribute. They are
apart from `session`, which imports pyspark: signatures of ours need the names without it.
"""

from __future__ import annotations

from typing import Any, TypeAlias

SparkDataFrame: TypeAlias = Any
SparkSession: TypeAlias = Any
