"""Namespaces: where a dataset is that is known by a name. The driver asks, once a start.

Only its location is taken from a namespace, with storage options that do not expire. Commits are
posted to the location, as for a dataset that is named by its URI: so a namespace that keeps a
table's versions itself is refused, which might take another writer's commit beside ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from lance.namespace import (
    DeclareTableRequest,
    DescribeTableRequest,
    DirectoryNamespace,
    RestNamespace,
)

from holdfast.errors import (
    CatalogUnavailableError,
    SettingsError,
    TableMissingError,
    UnsupportedTableError,
)
from holdfast.model.lasting import lasts
from holdfast.sinks.base import Sink, TableView
from holdfast.sinks.lance.dataset import DatasetPlace
from holdfast.sinks.lance.sink import LanceSink
from holdfast.sinks.targets import NAMESPACE_NEEDS, LanceTable
from holdfast.storage.locations import normalise
from holdfast.text import reason_and_cause, without_passwords

KINDS = {"dir": DirectoryNamespace, "rest": RestNamespace}
# By the names of Lance's codes.
_MISSING = ("TABLE_NOT_FOUND", "NAMESPACE_NOT_FOUND")
_EXISTS = "TABLE_ALREADY_EXISTS"
_PASSING = ("CONCURRENT_MODIFICATION", "INTERNAL", "SERVICE_UNAVAILABLE", "THROTTLING")
_STORAGE = "storage."
_EXPIRES = "expires_at_millis"


def located(target: LanceTable, before_create: Callable[[Sink], object] | None) -> LanceTable:
    """Return the same dataset, named by its location.

    Args:
        target: The user's target, with a namespace.
        before_create: Called before an unknown name is made known to the namespace; may refuse.
            None: it must be known.

    Raises:
        CatalogUnavailableError: The namespace does not answer, or refuses.
        SettingsError: What it answers cannot be used.
        TableMissingError: It does not know the name.
    """
    named = _Named(target)
    try:
        return named.located()
    except TableMissingError:
        if before_create is None:
            raise
        before_create(_Unplaced(named))
        return named.declare()


class _Named:
    """A table of a namespace."""

    def __init__(self, target: LanceTable) -> None:
        """Connect to the namespace.

        Raises:
            CatalogUnavailableError: It does not answer, or its settings cannot be used.
        """
        self._target = target
        self._settings = dict(target.namespace or {})
        kind = self._settings.pop("impl")
        self._id = target.uri.split(".")
        where = without_passwords(str(self._settings[NAMESPACE_NEEDS[kind]]))
        self.name = f"{target.uri} of the namespace {where}"
        self._namespace = self._ask(lambda: KINDS[kind](**self._settings))

    def located(self) -> LanceTable:
        """Return the target, named by its location.

        Raises:
            CatalogUnavailableError: The namespace does not answer, or refuses.
            SettingsError: Its storage options cannot be used.
            TableMissingError: It does not know the name.
            UnsupportedTableError: It keeps the table's versions itself.
        """
        vends = None if self._target.storage_options is None else False
        request = DescribeTableRequest(id=self._id, vend_credentials=vends)
        found = self._ask(lambda: self._namespace.describe_table(request))
        if found.managed_versioning:
            raise UnsupportedTableError(
                table=self.name,
                what="the namespace keeps the table's versions itself, and Holdfast cannot post a "
                "commit to it",
                cure="use a namespace without table_version_tracking_enabled",
            )
        if not found.location:
            raise UnsupportedTableError(
                table=self.name, what="the namespace gives no location", cure="ask its operator"
            )
        options = self._options(found.storage_options or {})
        return replace(self._target, uri=found.location, storage_options=options, namespace=None)

    def declare(self) -> LanceTable:
        """Make the name known, and return where its dataset is to be created.

        Safe to call again: of two callers, both get the same location.

        Raises:
            CatalogUnavailableError: The namespace does not answer, or refuses.
            SettingsError: Its location, or its storage options, cannot be used.
            TableMissingError: The namespace that the table is to be in does not exist.
        """
        request = DeclareTableRequest(id=self._id)
        with suppress(FileExistsError):  # Another start has declared it.
            self._ask(lambda: self._namespace.declare_table(request))
        return self.located()

    def _options(self, vended: Mapping[str, str]) -> Mapping[str, str] | None:
        """Return the user's options, else the answer's, else those that the namespace was given.

        None if there are none: the session may have some.

        Raises:
            SettingsError: The answer's expire.
        """
        if self._target.storage_options is not None:
            return self._target.storage_options
        if _EXPIRES in vended:
            raise SettingsError(
                what=f"{self.name}: the namespace hands out keys that expire, and Holdfast would "
                "not ask for new ones",
                cure="pass LanceTable(storage_options=), with credentials that can be renewed "
                "if the job may outlive them",
            )
        own = {
            name.removeprefix(_STORAGE): str(value)
            for name, value in self._settings.items()
            if name.startswith(_STORAGE)
        }
        return {**own, **vended} or None

    def _ask(self, ask: Callable[[], Any]) -> Any:  # noqa: ANN401 - as above.
        """Return an answer; raise what Lance raises in the user's terms.

        Raises:
            FileExistsError: The name is known already.
            TableMissingError: It is not.
            CatalogUnavailableError: Anything else.
        """
        try:
            return ask()
        except Exception as error:  # Lance raises errors of its own, of Python, and of pydantic.
            code = getattr(getattr(error, "code", None), "name", "")
            if code == _EXISTS:
                raise FileExistsError(self.name) from error
            reason, cause = reason_and_cause(error, self._settings)
            if code in _MISSING:
                raise TableMissingError(
                    table=self.name,
                    what="the namespace does not know the name",
                    cure="create it first, or pass create=hf.Create(schema=...) for a table in a "
                    "namespace that exists",
                ) from cause
            raise CatalogUnavailableError(
                table=self.name,
                reason=reason,
                retry_safe=code in _PASSING if code else not lasts(error),
            ) from cause


class _Unplaced(LanceSink):
    """A dataset whose name the namespace did not know a moment ago."""

    def __init__(self, named: _Named) -> None:
        """Keep the name."""
        super().__init__(
            DatasetPlace(uri=named.name, options={}), rows_per_file=1, bytes_per_file=1
        )
        self._named = named

    def load(self) -> TableView:
        """Load the dataset, if another start has created it since.

        Raises:
            TableMissingError: It does not exist.
        """
        found = self._named.located()
        place = DatasetPlace(uri=normalise(found.uri), options=dict(found.storage_options or {}))
        return LanceSink(place, rows_per_file=1, bytes_per_file=1).load()
