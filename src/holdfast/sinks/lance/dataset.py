"""A Lance dataset: how it is opened, and which error means what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import lance

from holdfast.errors import StoreUnavailableError, TableMissingError
from holdfast.model.lasting import lasts
from holdfast.plain_text import told
from holdfast.sinks.lance.options import for_lance, for_storage
from holdfast.storage.objects import ObjectStorage
from holdfast.storage.port import StorageError


@dataclass(frozen=True, kw_only=True)
class DatasetPlace:
    """Where a dataset stands, and how it is reached. Travels with tasks; is never stored."""

    uri: str
    # Credentials stand in them: never in a repr, a log or an error.
    options: Mapping[str, str] = field(repr=False)

    @property
    def storage(self) -> ObjectStorage:
        """Its objects, past Lance."""
        return ObjectStorage(for_storage(self.options))

    @property
    def data(self) -> str:
        """The folder of its data files."""
        return f"{self.uri}/data"

    @property
    def lance_options(self) -> dict[str, str]:
        """What Lance needs to reach it, asked for afresh.

        Raises:
            StoreUnavailableError: There are no credentials for now.
        """
        try:
            return for_lance(self.options)
        except StorageError as error:
            reason, cause = told(error, self.options)
            raise StoreUnavailableError(
                uri=self.uri, reason=reason, retry_safe=not lasts(error)
            ) from cause

    def open(self, version: int | None = None) -> lance.LanceDataset:
        """Look at the dataset afresh.

        Args:
            version: An older version; by default the newest.

        Raises:
            TableMissingError: There is no such dataset, or no such version.
            StoreUnavailableError: The store does not answer.
        """
        options = self.lance_options
        try:
            return lance.dataset(self.uri, version=version, storage_options=options)
        except (ValueError, OSError) as error:
            reason, cause = told(error, self.options)
            if is_gone(error):
                what = "there is no such dataset" if version is None else f"no version {version}"
                raise TableMissingError(table=self.uri, what=what) from cause
            raise StoreUnavailableError(
                uri=self.uri, reason=reason, retry_safe=not lasts(error)
            ) from cause


def is_gone(error: Exception) -> bool:
    """Whether an error of Lance's says that an object is not there, and nothing worse."""
    text = str(error).lower()
    return "not found" in text or "no such file" in text
