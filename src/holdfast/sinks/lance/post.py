"""The post: one conditional commit to a Lance dataset.

Lance's own append is no compare-and-set: it lands on whatever the newest version is, and a post
that is sent twice can land twice. A merge, which names all fragments of the new version, lands
only if nothing but indices and settings has changed since the version that it was built on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lance import LanceDataset, LanceOperation, Transaction
from lance.commit import CommitConflictError
from lance.fragment import FragmentMetadata

from holdfast.errors import (
    CommitRefusedError,
    StoreUnavailableError,
    TableChangedError,
    TableMissingError,
)
from holdfast.failpoints import failpoint
from holdfast.plain_text import told
from holdfast.sinks.base import Outcome, TableView
from holdfast.sinks.lance.dataset import DatasetPlace, is_gone
from holdfast.sinks.lance.history import History
from holdfast.sinks.lance.identity import read_identity

_REFUSALS = ("forbidden", "access denied", "accessdenied", "permission denied", "unauthorized")


@dataclass(frozen=True, slots=True, kw_only=True)
class Post:
    """What is to be posted, and on which look it was built."""

    place: DatasetPlace
    view: TableView
    # A LanceSchema, of which Lance exports no type.
    schema: Any
    fragments: Sequence[FragmentMetadata] = ()
    notes: Mapping[str, str] = field(default_factory=dict)

    def send(self) -> tuple[Outcome, int]:
        """Post once, and return the version that it has made, if it has.

        Whatever is not a clear answer is unknown, and the mark will tell.

        Raises:
            CommitRefusedError: The store refused for good.
            TableChangedError: It landed in a dataset that was made again, or cleaned up meanwhile.
        """
        dataset: LanceDataset = self.view.handle.dataset
        there = [one.metadata for one in dataset.get_fragments()]
        # No column is added, so others' appends may land on top of it.
        merge = LanceOperation.Merge(
            [*there, *self.fragments], self.schema, preserves_nullability=True
        )
        transaction = Transaction(
            read_version=dataset.version, operation=merge, transaction_properties=dict(self.notes)
        )
        # Right before: Lance itself notices neither what was cleaned away since, nor when another
        # dataset stands in its place.
        if not self._lets_pass(dataset.version) or read_identity(self.place) != self.view.uuid:
            return Outcome.UNSENT, 0
        failpoint("before-lance-commit")
        try:
            landed = LanceDataset.commit(dataset, transaction, max_retries=0)
        except CommitConflictError:
            return Outcome.CONFLICT, 0
        except Exception as error:  # noqa: BLE001 - lost answers have any shape.
            return self._told(error), 0
        if not History(landed).lets_pass(dataset.version, below=landed.version):
            raise TableChangedError(
                table=self.place.uri,
                change=(
                    f"versions since {dataset.version} were cleaned away while version "
                    f"{landed.version} was posted, which may undo what they did: look at both, "
                    f"and if so, restore version {landed.version - 1}"
                ),
            )
        if read_identity(self.place) != self.view.uuid:
            raise TableChangedError(
                table=self.place.uri,
                change=(
                    f"it was dropped and made again while version {landed.version} was posted, "
                    f"which names files that are gone: restore version {landed.version - 1}"
                ),
            )
        return Outcome.LANDED, int(landed.version)

    def _told(self, error: Exception) -> Outcome:
        """Return what an error means.

        Raises:
            CommitRefusedError: The store refused for good.
        """
        text = str(error).lower()
        if any(word in text for word in _REFUSALS):
            reason, cause = told(error, self.place.options)
            raise CommitRefusedError(table=self.place.uri, reason=reason) from cause
        if is_gone(error):
            return Outcome.CONFLICT  # The version that it was built on was cleaned away.
        if isinstance(error, ValueError) and not self._has_changed():
            reason, cause = told(error, self.place.options)
            raise CommitRefusedError(table=self.place.uri, reason=reason) from cause
        return Outcome.UNKNOWN

    def _lets_pass(self, base: int) -> bool:
        """Whether a post that was built on a version can still be right.

        Raises:
            StoreUnavailableError: The store does not answer.
        """
        try:
            return History(self.place.open()).lets_pass(base)
        except TableMissingError:
            return False

    def _has_changed(self) -> bool:
        try:
            return bool(self.place.open().version != self.view.parent_snapshot_id)
        except (TableMissingError, StoreUnavailableError):
            return True
