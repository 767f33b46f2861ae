"""Work items of a replay: each gets a task of its own, so none waits for another."""

from __future__ import annotations

from collections import Counter

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from holdfast.spark.jobs import one_a_partition
from holdfast.worker.replay import ITEM_COLUMN

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("items", [1, 2, 3, 8, 17])
def test_each_item_is_alone_in_its_partition(session: SparkSession, items: int) -> None:
    """Spark's own distribution put two of two into one task, and a replay took twice as long."""
    texts = [f'["it\'s", "{number}"]' for number in range(items)]
    found = one_a_partition(session, texts).withColumn("place", sf.spark_partition_id()).collect()
    assert sorted(row[ITEM_COLUMN] for row in found) == sorted(texts)
    assert set(Counter(row["place"] for row in found).values()) == {1}
