"""A Lance dataset: its storage options, how it is opened, which one it is, its indices.

Users of Lance give options in object_store's names (`aws_endpoint`, `aws_access_key_id`, ...),
users of Iceberg in Iceberg's (`s3.endpoint`, ...). Both are understood.

One object inside the dataset's folder holds an id. The first process to need it creates it, once.
It is removed with the folder when the dataset is dropped, and survives overwrites, rollbacks and
clean-ups, which leave unknown files alone.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

import lance

from holdfast.errors import HoldfastError, StoreUnavailableError, TableMissingError
from holdfast.failpoints import failpoint
from holdfast.ledger.store import create_once
from holdfast.model.lasting import lasts
from holdfast.storage import credentials
from holdfast.storage.objects import ObjectStorage
from holdfast.storage.port import StorageError
from holdfast.text import in_short, printable, reason_and_cause

# ---- Storage options of a Lance dataset: in Lance's names for Lance, in ours for everything else

# Iceberg's name, Lance's name, and Lance's aliases.
_NAMES = (
    ("s3.endpoint", "aws_endpoint", "endpoint", "aws_endpoint_url", "endpoint_url"),
    ("s3.region", "aws_region", "region", "default_region", "aws_default_region", "client.region"),
    ("s3.access-key-id", "aws_access_key_id", "access_key_id", "client.access-key-id"),
    (
        "s3.secret-access-key",
        "aws_secret_access_key",
        "secret_access_key",
        "client.secret-access-key",
    ),
    (
        "s3.session-token",
        "aws_session_token",
        "session_token",
        "aws_token",
        "token",
        "client.session-token",
    ),
)
_ICEBERGS = {name: names[0] for names in _NAMES for name in names}
_LANCES = {names[0]: names[1] for names in _NAMES}


def for_storage(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options under the names of Holdfast's own storage."""
    return {_ICEBERGS.get(name.lower(), name): value for name, value in options.items()}


def for_lance(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options under Lance's names, with the newest credentials if they can be requested.

    Raises:
        SettingsError: The function that supplies credentials cannot be used.
        StorageError: It supplies none at the moment.
    """
    ours = for_storage(options)
    found = {
        _LANCES.get(name, name): value for name, value in ours.items() if name != credentials.OPTION
    }
    if found.get("aws_endpoint", "").startswith("http://"):
        found.setdefault("allow_http", "true")
    if ours.get("s3.anonymous", "").lower() == "true":
        found["aws_skip_signature"] = "true"
    provider = credentials.provider(ours)
    if provider is not None:
        given = provider()
        found["aws_access_key_id"] = given["access_key_id"]
        found["aws_secret_access_key"] = given["secret_access_key"]
        if token := given.get("token"):
            found["aws_session_token"] = token
    return {name: value for name, value in found.items() if not name.startswith("s3.")}


# ---- A Lance dataset: how it is opened, and what its errors mean
@dataclass(frozen=True, kw_only=True)
class DatasetPlace:
    """A dataset's location, and how it is reached. Sent with tasks, never stored."""

    uri: str
    # They hold credentials: never show them in a repr, a log or an error.
    options: Mapping[str, str] = field(repr=False)

    @property
    def storage(self) -> ObjectStorage:
        """Its objects, accessed without Lance."""
        return ObjectStorage(for_storage(self.options))

    @property
    def data(self) -> str:
        """The folder of its data files."""
        return f"{self.uri}/data"

    @property
    def deletions(self) -> str:
        """The folder of its deletion files: which rows of a fragment are gone."""
        return f"{self.uri}/_deletions"

    @property
    def lance_options(self) -> dict[str, str]:
        """What Lance needs to reach it, with fresh credentials.

        Raises:
            StoreUnavailableError: There are no credentials at the moment.
        """
        try:
            return for_lance(self.options)
        except StorageError as error:
            reason, cause = reason_and_cause(error, self.options)
            raise StoreUnavailableError(
                uri=self.uri, reason=reason, retry_safe=not lasts(error)
            ) from cause

    def identity(self) -> str | None:
        """Return the dataset's id; None if no run has written to it.

        Raises:
            StoreUnavailableError: The store does not answer.
        """
        return read_identity(self)

    def open(self, version: int | None = None) -> lance.LanceDataset:
        """Open the dataset's current state.

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
            reason, cause = reason_and_cause(error, self.options)
            if is_gone(error):
                what = (
                    "there is no such dataset"
                    if version is None
                    else f"it has no version {version}"
                )
                raise TableMissingError(table=self.uri, what=what) from cause
            raise StoreUnavailableError(
                uri=self.uri, reason=reason, retry_safe=not lasts(error)
            ) from cause


def is_gone(error: Exception) -> bool:
    """Whether a Lance error says that an object does not exist, and nothing worse."""
    text = str(error).lower()
    return "not found" in text or "no such file" in text


# ---- The identity of a dataset. A Lance dataset has a location, but no name of its own

_NAME = "_holdfast/identity.json"


def read_identity(place: DatasetPlace) -> str | None:
    """Return the dataset's id; None if it has none, or if there is no dataset.

    Raises:
        StoreUnavailableError: The store does not answer, or the object cannot be read.
    """
    uri = f"{place.uri}/{_NAME}"
    try:
        return _parse(uri, place.storage.get_sure(uri))
    except FileNotFoundError:
        return None
    except StorageError as error:
        raise StoreUnavailableError(
            uri=uri, reason=in_short(error), retry_safe=not error.lasts
        ) from error


def give_identity(place: DatasetPlace) -> str:
    """Give the dataset an id unless it has one, and return its id.

    Raises:
        StoreUnavailableError: The store does not answer.
    """
    uri = f"{place.uri}/{_NAME}"
    data = json.dumps({"format": 1, "id": str(uuid.uuid4())}).encode()
    failpoint("before-identity")
    found = create_once(place.storage, uri, data, sleep=time.sleep)
    failpoint("after-identity")
    return _parse(uri, found)


def _parse(uri: str, data: bytes) -> str:
    try:
        return str(json.loads(data)["id"])
    except (ValueError, KeyError, TypeError) as error:
        raise StoreUnavailableError(
            uri=uri, reason="it holds no dataset id", retry_safe=False
        ) from error


# ---- Indices of a dataset: a search finds rows outside them too, but more slowly

_log = logging.getLogger(__name__)


def unindexed_rows(place: DatasetPlace) -> dict[str, int]:
    """Return how many rows each index does not cover yet; a complete index is left out.

    So is an index whose state cannot be determined: the rows have landed either way.
    """
    found: dict[str, int] = {}
    try:
        dataset = place.open()
        names = [index.name for index in dataset.describe_indices()]
        for name in names:
            left = int(dataset.stats.index_stats(name).get("num_unindexed_rows") or 0)
            if left:
                found[name] = left
    except (HoldfastError, ValueError, OSError, KeyError, NotImplementedError) as error:
        reason = printable(reason_and_cause(error, place.options)[0])
        _log.warning("cannot read the state of the indices of %s: %s", place.uri, reason)
    return found
