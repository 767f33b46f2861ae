"""History: what the versions of a dataset show about a post.

Every version but the newest may have been cleaned up. Each one that still exists names the
transaction that made it: its operation, and whose it was.

Lance refuses our post once anything other than an index or a setting was committed since the
version that it was built on. So the first other version after that is ours, or the post is dead.
That holds as long as every version since still exists: Lance does not notice versions that were
cleaned up.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import lance

from holdfast.errors import StoreUnavailableError
from holdfast.model.lasting import lasts
from holdfast.sinks.lance.dataset import is_gone
from holdfast.storage.runtime import io_runtime
from holdfast.text import reason_and_cause

# Operations that let through a post that was built on an older version. Some of these may still
# stop it; nothing here relies on that. The last is what Lance's Python returns for an operation
# that it has no class for: a compaction that reserves numbers for its fragments, or a future
# operation.
_PASSING = (
    "CreateIndex",
    "ReserveFragments",
    "Clone",
    "UpdateConfig",
    "UpdateBases",
    "BaseOperation",
)
# Lance's Python fails on this when it reads back a compaction that has moved an index.
_UNREADABLE_REWRITE = "RewrittenIndex"


# How many such versions between a look and its post are searched.
_PASSING_MAX = 20
# Operations whose version need not hold anything of the one before it.
_ANEW = ("Overwrite", "Restore")


# Operations that note in each row which version has changed it last, or that change none.
_TRACED = ("Append", "Delete", "Rewrite", "Update", *_PASSING)


class GoneError(Exception):
    """A version that would show the outcome was cleaned up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The operation that made one version."""

    kind: str
    # The version that a rollback went back to.
    restored: int | None
    properties: Mapping[str, str]
    # The files of the rows that an append added.
    added: frozenset[str] = frozenset()
    # Whether it may have given rows other values without a trace in each row.
    is_in_place: bool = True

    @property
    def lets_pass(self) -> bool:
        """Whether a post that was built on an older version may land after it."""
        return self.kind in _PASSING


@dataclass(frozen=True, slots=True)
class History:
    """What is known about the versions up to one look."""

    dataset: lance.LanceDataset
    _steps: dict[int, Step] = field(default_factory=dict)

    def live_names(self, names: Collection[str]) -> set[str]:
        """Return those of the files, named without their suffix, that a version reaches.

        Args:
            names: Of data files and deletion files.

        Raises:
            StoreUnavailableError: The store does not answer.
        """

        def of_one(version: int) -> set[str]:
            with contextlib.suppress(GoneError):
                dataset = self.opened(version)
                files = {file.partition(".")[0] for file in _files(dataset)}
                return wanted & (files | _deletion_files(dataset))
            return set()

        wanted, live = set(names), set[str]()
        if wanted:
            versions = [entry["version"] for entry in self.dataset.versions()]
            for some in io_runtime().each(of_one, versions):
                live |= some
        return live

    def step(self, version: int) -> Step:
        """Return the operation that made a version.

        Raises:
            GoneError: The version was cleaned up.
            StoreUnavailableError: The store does not answer.
        """
        if version not in self._steps:
            self._steps[version] = self._read(version)
        return self._steps[version]

    def settled_below(self) -> int:
        """Return the number below which no post can land any more; 0 if history does not show it.

        Raises:
            StoreUnavailableError: The store does not answer.
        """
        version = self.dataset.version
        try:
            while version > 0 and self.step(version).lets_pass:
                version -= 1
        except GoneError:
            return 0
        return version + 1

    def landing(self, base: int, is_ours: Callable[[Step], bool]) -> int | None:
        """Return the version that a post on a base has made; None if it has made none so far.

        Args:
            base: The version that the post was built on.
            is_ours: Whether a step is the one that the post requested.

        Raises:
            GoneError: The version that would show it was cleaned up.
            StoreUnavailableError: The store does not answer.
        """
        for version in range(base + 1, self.dataset.version + 1):
            step = self.step(version)
            if is_ours(step):
                return version
            if not step.lets_pass:
                return None
        return None

    def noted(self, base: int, is_ours: Callable[[Step], bool]) -> int | None:
        """Return our version after a base, among those that still exist.

        Args:
            base: The version that the post was built on.
            is_ours: Whether a step is the one that the post requested.

        Raises:
            StoreUnavailableError: The store does not answer.
        """
        for version in range(base + 1, min(base + _PASSING_MAX, self.dataset.version) + 1):
            with contextlib.suppress(GoneError):
                step = self.step(version)
                if is_ours(step):
                    return version
                if not step.lets_pass:
                    return None
        return None

    def lets_pass(self, base: int, below: int | None = None) -> bool:
        """Whether every version since a base exists, and lets a post on that base through.

        Args:
            base: The version that the post was built on.
            below: The first version that does not matter; by default all up to the newest matter.

        Raises:
            StoreUnavailableError: The store does not answer.
        """
        stop = self.dataset.version + 1 if below is None else below
        try:
            return all(self.step(version).lets_pass for version in range(base + 1, stop))
        except GoneError:
            return False

    def shows(self, base: int) -> bool:
        """Whether every version since a base exists.

        Raises:
            StoreUnavailableError: The store does not answer.
        """
        try:
            return all(self.step(version) for version in range(base + 1, self.dataset.version))
        except GoneError:
            return False

    def has_new_index(self, since: int) -> bool:
        """Whether an index may have been built after a version: true if that is not known.

        Raises:
            StoreUnavailableError: The store does not answer.
        """
        try:
            steps = [self.step(version) for version in range(since + 1, self.dataset.version + 1)]
        except GoneError:
            return True
        return any(step.kind == "CreateIndex" for step in steps)

    def is_followed(self, landed: int, is_marked: Callable[[lance.LanceDataset], bool]) -> bool:
        """Whether the versions after this one were built on it.

        A version whose request took a long time may take a number that a clean-up has freed, below
        newer versions that were not built on it: then none of its rows are in the dataset.

        Args:
            landed: The version.
            is_marked: Whether a version holds the mark that this one set.

        Raises:
            GoneError: The next version was cleaned up, or the previous one that would show it.
            StoreUnavailableError: The store does not answer.
        """
        if landed == self.dataset.version:
            return is_marked(self.dataset)
        if self.step(landed + 1).kind in _ANEW:
            return True  # It would hold neither: its rows are gone either way.
        after = self.opened(landed + 1)
        if is_marked(after):
            return True
        files = _files(self.opened(landed))
        if not files <= _files(after):
            return False
        # If a version added no files, its files prove nothing.
        return files != _files(self.opened(landed - 1))

    def is_present(self, landed: int) -> bool | None:
        """Whether what a version added has been neither overwritten nor rolled back since.

        Returns:
            None if history does not show it.

        Raises:
            StoreUnavailableError: The store does not answer.
        """
        present = {landed: True}
        try:
            for version in range(landed + 1, self.dataset.version + 1):
                step = self.step(version)
                before = present[version - 1]
                if step.restored is not None:
                    before = present.get(step.restored, False)
                present[version] = before and step.kind != "Overwrite"
        except GoneError:
            return None
        return present[self.dataset.version]

    def added_since(self, base: int) -> frozenset[str]:
        """Return the files of rows that were appended after a version, as far as history shows it.

        Args:
            base: The version.

        Raises:
            StoreUnavailableError: The store does not answer.
        """
        found: set[str] = set()
        for version in range(base + 1, self.dataset.version + 1):
            with contextlib.suppress(GoneError):
                found |= self.step(version).added
        return frozenset(found)

    def traces_rows_since(self, base: int) -> bool:
        """Whether each row shows by itself if it has changed since a version.

        Args:
            base: The version.

        Raises:
            StoreUnavailableError: The store does not answer.
        """
        try:
            return all(
                self._traces_rows(version) for version in range(base + 1, self.dataset.version + 1)
            )
        except GoneError:
            return False

    def _traces_rows(self, version: int) -> bool:
        step = self.step(version)
        # An update of columns may only take fragments out of indices. The other may be an operation
        # of the future: one that reserves numbers changes no fragment.
        may_be_empty = step.kind == _PASSING[-1] or (step.kind == "Update" and step.is_in_place)
        if not may_be_empty:
            return not step.is_in_place
        return _fragments(self.opened(version)) == _fragments(self.opened(version - 1))

    def opened(self, version: int) -> lance.LanceDataset:
        """Return the dataset as of a version.

        Raises:
            GoneError: The version was cleaned up.
            StoreUnavailableError: The store does not answer.
        """
        with self._answers():
            return self.dataset.checkout_version(version)

    def _read(self, version: int) -> Step:
        try:
            with self._answers():
                found: Any = self.dataset.read_transaction(version)
        except TypeError as error:
            if _UNREADABLE_REWRITE in str(error):
                return Step(kind="Rewrite", restored=None, properties={}, is_in_place=False)
            raise GoneError from error  # It exists, but cannot be read.
        if found is None:
            raise GoneError
        operation = found.operation
        fragments = operation.fragments if type(operation).__name__ == "Append" else ()
        return Step(
            added=frozenset(file.path for fragment in fragments for file in fragment.files),
            is_in_place=type(operation).__name__ not in _TRACED
            or bool(getattr(operation, "fields_modified", ())),
            kind=type(operation).__name__,
            restored=getattr(operation, "version", None),
            properties=dict(found.transaction_properties or {}),
        )

    @contextlib.contextmanager
    def _answers(self) -> Iterator[None]:
        """Distinguish a cleaned-up version from a store that does not answer.

        Raises:
            GoneError: A version was cleaned up.
            StoreUnavailableError: The store does not answer.
        """
        try:
            yield
        except (ValueError, OSError) as error:
            reason, cause = reason_and_cause(error, {})
            if is_gone(error):
                raise GoneError from cause
            raise StoreUnavailableError(
                uri=self.dataset.uri, reason=reason, retry_safe=not lasts(error)
            ) from cause


def _fragments(dataset: lance.LanceDataset) -> list[str]:
    return [json.dumps(part.metadata.to_json(), default=str) for part in dataset.get_fragments()]


def _files(dataset: lance.LanceDataset) -> set[str]:
    return {file.path for fragment in dataset.get_fragments() for file in fragment.metadata.files}


def _deletion_files(dataset: lance.LanceDataset) -> set[str]:
    found = [(part.fragment_id, part.metadata.deletion_file) for part in dataset.get_fragments()]
    return {f"{number}-{file.read_version}-{file.id}" for number, file in found if file is not None}
