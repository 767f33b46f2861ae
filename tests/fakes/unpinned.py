"""An input that needs no settling: its keys show what is done."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.engine.ports import Submitter
from holdfast.ledger.ledger import Ledger


@dataclass(frozen=True, slots=True)
class Unpinned:
    """Rows that a submitter reads, as a DataFrame's are."""

    submitter: Submitter

    def settle(self, ledger: Ledger, *, compare: bool) -> None:
        """Do nothing."""
