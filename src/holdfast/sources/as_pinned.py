"""Reading a pinned file: that it is another one now is told in the user's terms."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from holdfast.errors import InputChangedError
from holdfast.model.pins import PinnedFile
from holdfast.storage.port import ObjectChangedError


@contextlib.contextmanager
def as_pinned(file: PinnedFile) -> Iterator[None]:
    """Stop if a file turns out not to be the one that was pinned.

    Raises:
        InputChangedError: It is not.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise InputChangedError(what=f"{file.uri} is gone") from error
    except ObjectChangedError as error:
        raise InputChangedError(what=f"{file.uri} was written anew since the run began") from error
