"""The sink contract on the simulated table, which the simulation relies on."""

from __future__ import annotations

import pickle

import pytest

from tests.contract.simulated_table import SimulatedTable
from tests.contract.sink_contract import SinkContract


class TestSimulatedTable(SinkContract):
    """The table in memory that the simulation runs on."""

    def table(self, *, empty: bool = False) -> SimulatedTable:
        """Return a new table in a world of its own."""
        return SimulatedTable(empty=empty)

    @pytest.mark.xfail(
        reason="simulated executors share the memory of the driver",
        strict=True,
        raises=pickle.PicklingError,
    )
    def test_a_writer_spec_survives_the_way_to_an_executor(self) -> None:
        """A spec cannot be pickled."""
        super().test_a_writer_spec_survives_the_way_to_an_executor()
