"""Where everything of one run stands in the store.

<store>/<run id>/
  run.json            identity; created once
  log/00000001.json   claim, intent, receipt, abort
  parts/...           large bodies that those records point to
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.model.run_id import encode_run_id
from holdfast.storage.locations import normalise


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLayout:
    """The names of one run's objects."""

    folder: str

    @classmethod
    def of(cls, store: str, run_id: str) -> RunLayout:
        """Return the layout of a run in a store."""
        return cls(folder=f"{normalise(store)}/{encode_run_id(run_id)}")

    @property
    def identity(self) -> str:
        """The object that says what the run is."""
        return f"{self.folder}/run.json"

    @property
    def log(self) -> str:
        """The folder of the run log."""
        return f"{self.folder}/log"

    def record(self, number: int) -> str:
        """The object of one record of the run log."""
        return f"{self.log}/{number:08d}.json"

    def part(self, name: str) -> str:
        """A large body that a record points to."""
        return f"{self.folder}/parts/{name}"


def probe_uri(store: str, nonce: str) -> str:
    """Return a name for the store probe; no encoded run id can look like it."""
    return f"{normalise(store)}/=probe/{nonce}"
