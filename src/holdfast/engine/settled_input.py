"""What the engine asks of an input, beyond what it asks of Spark."""

from __future__ import annotations

from typing import Protocol

from holdfast.engine.ports import Submitter
from holdfast.engine.prepare import Ledger


class SettledInput(Protocol):
    """Rows to be read, by Spark or by the workers themselves."""

    @property
    def submitter(self) -> Submitter:
        """What reads it, once it is settled."""

    def settle(self, ledger: Ledger, *, compare: bool) -> None:
        """Settle what is read, once for the whole run.

        Args:
            ledger: The run's ledger; claimed, if nothing is settled yet.
            compare: Whether this start must name the same.

        Raises:
            RunMismatchError: It names other files than the first start.
            InputChangedError: A pinned file was changed or deleted.
        """
