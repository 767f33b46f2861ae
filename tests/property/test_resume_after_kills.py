"""Random kills and faults: each row lands once, and what is durable is not computed again."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import HoldfastError
from tests.fakes.memory_storage import DriverDiedError
from tests.fakes.memory_submitter import MemorySubmitter
from tests.fakes.memory_table import PostFault
from tests.fakes.rig import Rig, durable_ids
from tests.fakes.watched_transform import WatchedTransform


@dataclass(frozen=True)
class Life:
    """One start: its options, and how many writes it survives; None if it is not killed."""

    options: dict[str, Any]
    partitions: int
    writes: int | None


_lives = st.builds(
    Life,
    options=st.fixed_dictionaries(
        {
            "batch_rows": st.integers(1, 4),
            "checkpoint_every": st.sampled_from([None, 1e-9, "1h"]),
            "verify_input": st.sampled_from(["keys", "rows", False]),
        }
    ),
    partitions=st.integers(1, 4),
    writes=st.none() | st.integers(0, 40),
)
_posts = st.lists(st.none() | st.sampled_from(PostFault), max_size=4)


def shared_out(ids: Sequence[int], partitions: int, chance: random.Random) -> MemorySubmitter:
    """Return an input of these ids, each in a partition of its own choice."""
    mixed = chance.sample(ids, len(ids))
    return MemorySubmitter(*(mixed[place::partitions] for place in range(partitions)))


@pytest.mark.slow_unit
@given(
    lives=st.lists(_lives, max_size=6),
    post_faults=_posts,
    rows=st.integers(0, 24),
    file_rows=st.sampled_from([None, 2, 5]),
    chance=st.randoms(use_true_random=False),
)
@settings(max_examples=150)
def test_a_run_that_is_killed_again_and_again_lands_once(
    lives: list[Life],
    post_faults: list[PostFault | None],
    rows: int,
    file_rows: int | None,
    chance: random.Random,
) -> None:
    """Any kill, at any write, under any options: no row is lost, doubled, or needlessly computed.

    Rows are in other partitions at each start, as they are in Spark.
    """
    rig, ids = Rig(), range(rows)
    rig.table.file_rows = file_rows
    rig.table.post_faults.extend(post_faults)
    for life in lives:
        durable, transform = durable_ids(rig), WatchedTransform()
        rig.storage.writes_left = life.writes
        submitter = shared_out(ids, life.partitions, chance)
        try:
            rig.start(submitter, transform=transform, **life.options)
        except (DriverDiedError, HoldfastError):
            rig.storage.revive()
        assert not durable & set(transform.ids)
        assert len(rig.table.data_snapshots) <= 1
    rig.table.post_faults.clear()
    rig.storage.revive()
    last = rig.start(shared_out(ids, 2, chance), transform=WatchedTransform())
    assert rig.table.ids == list(ids)
    assert last.rows == rows
    assert len(rig.table.data_snapshots) == 1
