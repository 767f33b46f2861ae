"""The place of a simulated Lance dataset: what the real sink asks for outside Lance."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Protocol

from holdfast.sinks.lance.dataset import DatasetPlace
from holdfast.storage.port import AlreadyThereError
from tests.simulation.lance_dataset import SimDataset


class Dataset(Protocol):
    """What the place needs of the dataset."""

    uuid: str
    is_gone: bool
    is_hidden: bool

    def opened(self) -> SimDataset:
        """Open the newest version.

        Raises:
            StoreUnavailableError: There is no answer.
            TableMissingError: There is no such dataset.
        """


@dataclass(frozen=True, kw_only=True)
class SimPlace(DatasetPlace):
    """Where the dataset is."""

    table: Dataset = field(repr=False)

    @property
    def deletions(self) -> str:
        """A folder that the simulated table knows."""
        return "mem://metadata/_deletions"

    @property
    def storage(self) -> Any:  # noqa: ANN401 - of the store only what the sink's look needs.
        """Its objects: the identity, and deletion files, which nobody reads."""
        return _Objects(self.table)

    def open(self, version: int | None = None) -> Any:  # noqa: ANN401 - in place of Lance's class.
        """Open the newest version.

        Raises:
            StoreUnavailableError: There is no answer.
            TableMissingError: There is no such dataset.
        """
        assert version is None
        return self.table.opened()


@dataclass(frozen=True, slots=True)
class _Objects:
    """The object with the dataset's id: created and removed with the dataset."""

    table: Dataset

    def get_sure(self, uri: str) -> bytes:
        if self.table.is_gone or self.table.is_hidden:
            raise FileNotFoundError(uri)
        return json.dumps({"format": 1, "id": self.table.uuid}).encode()

    get = get_sure

    def create(self, uri: str, _data: bytes) -> None:
        raise AlreadyThereError(uri)

    def put(self, uri: str, data: bytes) -> None:
        """Store a deletion file."""
