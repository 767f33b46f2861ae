"""run.json: what a run is, created once by its first driver.

Its nonce is the run's own. The mark inside the table carries it, so that the same run id from a
second store is told apart, and so does every record. It names the run id too: a folder that was
copied to another id is known as a copy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from holdfast.errors import (
    LedgerDamagedError,
    RunMismatchError,
    SettingsError,
    StoreUnavailableError,
)
from holdfast.failpoints import failpoint
from holdfast.ledger.create_once import create_once
from holdfast.ledger.layout import RunLayout
from holdfast.model.identity import Identity
from holdfast.model.records import open_json, seal_json
from holdfast.model.run_id import encode_run_id
from holdfast.model.stored import RecordDamagedError, Segment, typed, typed_whole
from holdfast.storage.port import Storage, StorageError


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFile:
    """What stands in run.json."""

    nonce: str
    identity: Identity
    # Whether it is of format 1, whose records carry no nonce of their run.
    has_unnamed: bool = False


def open_run_file(  # noqa: PLR0913 - the ports are passed in one by one, so that tests see each.
    storage: Storage,
    layout: RunLayout,
    *,
    run_id: str,
    identity: Identity,
    nonce: str,
    sleep: Callable[[float], None],
) -> RunFile:
    """Create run.json, or read the one that stands and compare it.

    Args:
        storage: How the store is reached.
        layout: Where the run stands.
        run_id: The user's id, for errors.
        identity: What this start wants the run to be.
        nonce: Ours, if we are the first.
        sleep: How to pause between attempts.

    Raises:
        RunMismatchError: The id belongs to another job.
        LedgerDamagedError: run.json is damaged.
    """
    data = seal_json({"run_id": run_id, "nonce": nonce, "identity": identity.to_json()})
    failpoint("before-run-file")
    run_file = _decoded(layout, create_once(storage, layout.identity, data, sleep=sleep))
    failpoint("after-run-file")
    if differences := identity.differences(run_file.identity):
        raise RunMismatchError(run_id=run_id, differences="; ".join(differences))
    return run_file


def read_run_file(storage: Storage, layout: RunLayout) -> RunFile | None:
    """Return what stands in run.json; None if no driver got that far.

    Raises:
        LedgerDamagedError: run.json is damaged.
        StoreUnavailableError: The store did not answer.
    """
    try:
        data = storage.get(layout.identity)
    except FileNotFoundError:
        return None
    except StorageError as error:
        raise StoreUnavailableError(
            uri=layout.identity, reason=str(error), retry_safe=not error.lasts
        ) from error
    return _decoded(layout, data)


class _RunJson(msgspec.Struct):
    """run.json as it is stored."""

    format: int
    nonce: Segment
    identity: dict[str, Any]
    # Not in format 1.
    run_id: str = ""


def _decoded(layout: RunLayout, data: bytes) -> RunFile:
    try:
        content = typed(open_json(data), _RunJson)
        found = RunFile(
            nonce=content.nonce,
            identity=typed_whole(content.identity, Identity),
            has_unnamed=content.format == 1,
        )
        folder = "" if found.has_unnamed else encode_run_id(content.run_id)
    except (RecordDamagedError, SettingsError) as error:
        raise LedgerDamagedError(uri=layout.identity, reason=str(error)) from error
    if folder and folder != layout.folder.rsplit("/", 1)[1]:
        raise LedgerDamagedError(
            uri=layout.identity, reason=f"the folder was copied: this is run {content.run_id!r}"
        )
    return found
