"""The commit while the catalog is down: waited for, and never taken for a failure."""

from __future__ import annotations

import pytest

from holdfast.errors import CatalogUnavailableError, CommitUnknownError
from tests.fakes.memory_table import PostFault
from tests.fakes.rig import Rig


@pytest.mark.parametrize("fault", [PostFault.ANSWER_LOST, PostFault.NEVER_ARRIVES])
@pytest.mark.parametrize("outage", [1, 30])
def test_an_outage_after_a_lost_answer_is_waited_for(fault: PostFault, outage: int) -> None:
    """The look that would tell fails as well: the driver pauses and looks again."""
    rig = Rig()
    rig.table.post_faults.append(fault)
    rig.table.after_post = lambda: setattr(rig.table, "load_failures", outage)
    landed = rig.publish()
    assert landed.posts == len(rig.table.posts) == (1 if fault is PostFault.ANSWER_LOST else 2)
    assert len(rig.table.data_snapshots) == 1
    assert len(rig.time.sleeps) == outage + 1


def test_an_outage_before_any_post_is_raised_at_once() -> None:
    """Nothing is under way, so nobody has to wait to find out."""
    rig = Rig()
    rig.table.load_failures = 1
    with pytest.raises(CatalogUnavailableError):
        rig.publish()
    assert (rig.table.posts, rig.time.sleeps) == ([], [])


@pytest.mark.parametrize("fault", [PostFault.ANSWER_LOST, PostFault.NEVER_ARRIVES])
def test_an_outage_that_does_not_end_after_a_lost_answer_is_unknown(fault: PostFault) -> None:
    """A post is out and nobody can look: the error says that it may have landed."""
    rig = Rig()
    rig.table.post_faults.append(fault)
    rig.table.after_post = lambda: setattr(rig.table, "load_failures", 10_000)
    with pytest.raises(CommitUnknownError, match="Delete nothing"):
        rig.publish()
