"""Random faults and restarts: whatever happens, the run is in the table at most once."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import HoldfastError
from tests.fakes.memory_storage import CreateFault
from tests.fakes.memory_table import DriverDiedError, PostFault
from tests.fakes.rig import LAYOUT, Rig

_posts = st.lists(st.none() | st.sampled_from(PostFault), max_size=12)
_creates = st.lists(st.none() | st.sampled_from(CreateFault), max_size=20)


@pytest.mark.slow_unit
@given(post_faults=_posts, create_faults=_creates)
@settings(max_examples=150)
def test_a_run_that_is_started_until_it_ends_well_is_in_the_table_once(
    post_faults: list[PostFault | None], create_faults: list[CreateFault | None]
) -> None:
    """Every start either succeeds or raises one of our errors; at the end there is one snapshot.

    Each start uses up at least one of the faults, so the starts come to an end.
    """
    rig = Rig()
    rig.table.post_faults.extend(post_faults)
    rig.storage.create_faults.extend(create_faults)
    for _ in range(len(post_faults) + len(create_faults) + 1):
        try:
            driven = rig.start()
        except (HoldfastError, DriverDiedError):
            assert len(rig.table.data_snapshots) <= 1
            continue
        break
    else:
        raise AssertionError("no start ended well")
    (snapshot,) = rig.table.data_snapshots
    assert driven.snapshot_id == snapshot.snapshot_id
    receipt = rig.log().receipt
    rig.table.post_faults.clear()
    rig.storage.create_faults.clear()
    again = rig.start()
    assert again.outcome == "already_committed"
    assert (rig.log().receipt, again.snapshot_id) == (receipt, driven.snapshot_id)
    assert len(rig.table.data_snapshots) == 1
    assert not any(uri.startswith(LAYOUT.folder) for uri in rig.storage.names_called("delete"))
