"""Which dataset it is. A Lance dataset has a place, but no name of its own.

One object inside the dataset's folder holds an id. It is created once, by whoever comes first; it
goes with the folder when the dataset is dropped, and outlives overwrites, roll-backs and
clean-ups, which leave what they do not know.
"""

from __future__ import annotations

import json
import time
import uuid

from holdfast.errors import StoreUnavailableError
from holdfast.failpoints import failpoint
from holdfast.ledger.create_once import create_once
from holdfast.plain_text import in_short
from holdfast.sinks.lance.dataset import DatasetPlace
from holdfast.storage.port import StorageError

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
