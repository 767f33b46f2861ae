"""Names for what pyspark's two worlds have in common.

Classic and Connect DataFrames share no base class before Spark 4, and pyspark is optional, so these
names only document intent; the code relies on attributes. They are separate from `session`, which
imports pyspark: our signatures need the names without it.
"""

from __future__ import annotations

from typing import Any, TypeAlias

SparkDataFrame: TypeAlias = Any
SparkSession: TypeAlias = Any
