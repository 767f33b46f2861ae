"""A Lance dataset: its storage options, how it is opened, which one it is, its indices.

Users of Lance have theirs in object_store's names (`aws_endpoint`, `aws_access_key_id`, ...),
users of Iceberg in Iceberg's (`s3.endpoint`, ...). Both are understood.

One object inside the dataset's folder holds an id. It is created once, by whoever comes first; it
goes with the folder when the dataset is dropped, and outlives overwrites, roll-backs and
clean-ups, which leave what they do not know.
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
from holdfast.text import in_short, printable, told

# ---- Storage options of a Lance dataset: in Lance's names for Lance, in ours for everything else

# Iceberg's name, Lance's, and what else Lance calls it.
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
_ICEBERGS = {other: one[0] for one in _NAMES for other in one}
_LANCES = {one[0]: one[1] for one in _NAMES}


def for_storage(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options in the names of Holdfast's own storage."""
    return {_ICEBERGS.get(name.lower(), name): value for name, value in options.items()}


def for_lance(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options in Lance's names, with the newest credentials where they can be asked for.

    Raises:
        SettingsError: The function that gives credentials cannot be used.
        StorageError: It gives none for now.
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


# ---- A Lance dataset: how it is opened, and which error means what
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


# ---- Which dataset it is. A Lance dataset has a place, but no name of its own

_NAME = "_holdfast/identity.json"


def read_identity(place: DatasetPlace) -> str | None:
    """Return the dataset's id; None if it has none, or there is no dataset.

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
    """Give the dataset an id, unless it has one; return the one that it has now.

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
            uri=uri, reason="it holds no id of a dataset", retry_safe=False
        ) from error


# ---- Indices of a dataset: a search finds new rows without them, but more slowly

_log = logging.getLogger(__name__)


def unindexed_rows(place: DatasetPlace) -> dict[str, int]:
    """Return how many rows each index does not know yet; an index that knows all is left out.

    What cannot be found out is left out as well: the rows have landed, whatever an index says.
    """
    found: dict[str, int] = {}
    try:
        dataset = place.open()
        names = [one.name for one in dataset.describe_indices()]
        for name in names:
            left = int(dataset.stats.index_stats(name).get("num_unindexed_rows") or 0)
            if left:
                found[name] = left
    except (HoldfastError, ValueError, OSError, KeyError, NotImplementedError) as error:
        reason = printable(told(error, place.options)[0])
        _log.warning("the state of the indices of %s is not known: %s", place.uri, reason)
    return found
