"""A store that does not answer, or not truly: an error of ours, and the next start goes on."""

from __future__ import annotations

import pytest

from holdfast.engine.options import VerifyInput
from holdfast.errors import HoldfastError, LedgerDamagedError
from holdfast.storage.port import StorageError
from tests.fakes.logs import job_ledger, task_records
from tests.fakes.memory_storage import bit_flipped
from tests.fakes.rig import LAYOUT, Rig, two_partitions
from tests.fakes.watched_transform import WatchedTransform

ALL = list(range(20))


def rig_with_chunks() -> Rig:
    """Return a run whose driver died when one task was done and the other had a chunk."""
    rig, dying = Rig(), WatchedTransform()
    dying.at[15] = rig.storage.kill
    rig.start_and_die(transform=dying, batch_rows=5, checkpoint_every=1e-9)
    return rig


def test_a_call_without_an_answer_is_told_in_our_terms_and_costs_nothing() -> None:
    """Whichever it is: the start ends well or with an error of ours, and the next one ends well."""
    dry = rig_with_chunks()
    dry.storage.calls.clear()
    dry.start(transform=WatchedTransform())
    untold = []
    for number, (kind, uri) in enumerate(dry.storage.calls):
        rig = rig_with_chunks()
        rig.storage.fail_after(number)
        try:
            rig.start(transform=WatchedTransform())
        except HoldfastError as error:
            assert error.retry_safe  # noqa: PT017 - it need not be raised.
        except StorageError:
            untold.append(f"{kind} {uri}")
        assert rig.storage.calls_until_failure is None  # The call did fail.
        rig.start(transform=WatchedTransform())
        assert (rig.table.ids, len(rig.table.data_snapshots)) == (ALL, 1)
    assert untold == []


def test_a_listing_that_misses_a_record_which_a_task_reported_is_not_believed() -> None:
    """The rows of that record would be computed again, and land beside the first ones."""
    rig, submitter = Rig(), two_partitions()

    def hide_a_record() -> None:
        (uri, *_) = [one for one in rig.storage.objects if one.endswith("/0000.json")]
        del rig.storage.objects[uri]

    submitter.after_job = hide_a_record
    with pytest.raises(LedgerDamagedError, match="wrote 1 records, and fewer are listed"):
        rig.start(submitter)
    assert rig.table.data_snapshots == []


def test_a_damaged_task_record_stops_the_start() -> None:
    """What it covered is not known, and must not be guessed."""
    rig = rig_with_chunks()
    (first, *_) = task_records(job_ledger(rig.storage))
    rig.storage.damage[LAYOUT.task_record(first.name)] = bit_flipped
    with pytest.raises(LedgerDamagedError, match=first.name):
        rig.start(transform=WatchedTransform())
    assert rig.table.data_snapshots == []


@pytest.mark.parametrize("verify_input", ["keys", False])
def test_a_damaged_chunk_is_never_written_to_the_table(*, verify_input: VerifyInput) -> None:
    """Its digest stands in its record: its rows are computed again, and it is said so."""
    rig = rig_with_chunks()
    (chunk,) = [
        one for one in rig.storage.objects if one.endswith("0000.chunk") and "/000001/" in one
    ]
    rig.storage.damage[chunk] = bit_flipped
    driven = rig.start(transform=WatchedTransform(), verify_input=verify_input)
    assert driven.withdrawn_rows > 0
    assert (rig.table.ids, len(rig.table.data_snapshots)) == (ALL, 1)
