"""A driver paused around its commit while abort, sweep or another driver runs.

Method: the proxy makes the pause. It holds our post, lets the other side do its work through the
catalog's own address, and only then forwards the post: the catalog's answer is real. On a table
without a snapshot the first post is the empty snapshot, which goes out before the intent; on a
filled table the first post follows the intent.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.errors import (
    HoldfastError,
    RunAbortedError,
    RunCommittedError,
    RunFencedError,
    RunUnfinishedError,
)
from tests.fault_proxy import Fault, fault_proxy
from tests.stack_access import Stack

pytestmark = [pytest.mark.spark, pytest.mark.stack, pytest.mark.rest]

ROWS = 40
MOMENTS = {"before its intent": False, "between intent and post": True}


@dataclass
class Paused:
    """One run on a table of its own, whose driver is paused at its first post."""

    session: SparkSession
    stack: Stack
    ledger: dict[str, Any]
    name: str

    @property
    def direct(self) -> hf.IcebergTable:
        """The table, without the proxy."""
        return hf.IcebergTable(self.name, catalog=self.stack.rest_catalog_properties())

    def run(self) -> hf.Run:
        """Return the run, as another process would make it."""
        return hf.Run("r", **self.ledger, takeover="now")

    def append(self, table: hf.IcebergTable) -> hf.Report:
        """Start the run; a second driver must not wait for the paused one."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return self.run().append(self.session.range(ROWS), to=table, key="id")

    def append_while(self, others: Callable[[], None]) -> str:
        """Start the run, let the others work during its first post, and return how it ended."""
        with fault_proxy(self.stack.rest.uri) as proxy:
            proxy.faults = [Fault(before=others)]
            catalog = {**self.stack.rest_catalog_properties(), "uri": proxy.uri}
            try:
                ended: str = self.append(hf.IcebergTable(self.name, catalog=catalog)).outcome
            except HoldfastError as error:
                ended = type(error).__name__
            assert not proxy.faults  # It was paused, so the test is not vacuous.
        return ended

    def ids(self) -> list[int]:
        """Read the run's rows as Spark sees them, from every file."""
        rows = self.session.table(f"lake.{self.name}").where("id >= 0").collect()
        return sorted(row["id"] for row in rows)

    def data_snapshots(self) -> int:
        """Count the snapshots that this run has put rows into."""
        found = self.session.sql(f"SELECT summary FROM lake.{self.name}.snapshots").collect()
        return sum(row["summary"].get("holdfast.run") == "r" for row in found)


@pytest.fixture(params=MOMENTS)
def paused(
    request: pytest.FixtureRequest,
    lake: SparkSession,
    stack: Stack,
    namespace: str,
    ledger: dict[str, Any],
) -> Paused:
    """Return a run whose first post goes out at the named moment."""
    lake.sql(f"CREATE TABLE lake.{namespace}.t (id bigint) USING iceberg")
    if MOMENTS[request.param]:
        lake.sql(f"INSERT INTO lake.{namespace}.t VALUES (-1)")
    return Paused(lake, stack, ledger, f"{namespace}.t")


def test_an_abort_goes_by(paused: Paused) -> None:
    """Nothing of the run lands any more, and a sweep after it leaves a readable table."""
    swept: list[hf.Swept] = []

    def give_up() -> None:
        paused.run().abort(to=paused.direct, reason="test")
        swept.append(paused.run().sweep(to=paused.direct))

    assert paused.append_while(give_up) == RunAbortedError.__name__
    assert swept[0].data_files > 0
    assert (paused.ids(), paused.data_snapshots()) == ([], 0)
    with pytest.raises(RunAbortedError):
        paused.append(paused.direct)


def test_a_new_driver_commits(paused: Paused) -> None:
    """The paused one finds its mark in the table, or is fenced; the rows are there once."""
    ended = paused.append_while(lambda: assert_committed(paused.append(paused.direct)))
    assert ended in {RunFencedError.__name__, "already_committed", "committed"}
    assert (paused.ids(), paused.data_snapshots()) == (list(range(ROWS)), 1)


def test_a_new_driver_commits_and_sweeps(paused: Paused) -> None:
    """Files that the paused driver would post may be gone: its post must not land."""

    def overtake() -> None:
        assert_committed(paused.append(paused.direct))
        paused.run().sweep(to=paused.direct)

    paused.append_while(overtake)
    assert (paused.ids(), paused.data_snapshots()) == (list(range(ROWS)), 1)
    paused.run().sweep(to=paused.direct)
    assert paused.ids() == list(range(ROWS))
    assert paused.append(paused.direct).outcome == "already_committed"


def test_a_sweep_alone_is_refused(paused: Paused) -> None:
    """The run may continue, so its files are paid work; the paused driver then commits."""

    def clean_up() -> None:
        with pytest.raises(RunUnfinishedError):
            paused.run().sweep(to=paused.direct)

    assert paused.append_while(clean_up) == "committed"
    assert (paused.ids(), paused.data_snapshots()) == (list(range(ROWS)), 1)


def test_an_abort_after_the_landing_says_so(paused: Paused) -> None:
    """A run that has landed cannot be aborted, and its files stay."""
    assert paused.append_while(lambda: None) == "committed"
    with pytest.raises(RunCommittedError):
        paused.run().abort(to=paused.direct)
    paused.run().sweep(to=paused.direct)
    assert (paused.ids(), paused.data_snapshots()) == (list(range(ROWS)), 1)


def assert_committed(report: hf.Report) -> None:
    """Check that the other driver did commit, so that the test is not vacuous."""
    assert report.outcome == "committed"
