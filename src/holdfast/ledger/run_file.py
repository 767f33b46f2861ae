"""run.json: what a run is, created once by its first driver.

Its nonce is the run's own: the mark inside the table carries it, so that the same run id from
a second store is told apart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from holdfast.errors import LedgerDamagedError, RunMismatchError
from holdfast.ledger.create_once import create_once
from holdfast.ledger.layout import RunLayout
from holdfast.model.identity import Identity
from holdfast.model.records import RecordDamagedError, open_json, seal_json
from holdfast.storage.port import Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFile:
    """What stands in run.json."""

    nonce: str
    identity: Identity
    # The table's schema when the run began, in the sink's own JSON.
    schema: dict[str, Any]


def open_run_file(  # noqa: PLR0913 - the ports are passed in one by one, so that tests see each.
    storage: Storage,
    layout: RunLayout,
    *,
    run_id: str,
    identity: Identity,
    schema: dict[str, Any],
    nonce: str,
    sleep: Callable[[float], None],
) -> RunFile:
    """Create run.json, or read the one that stands and compare it.

    Args:
        storage: How the store is reached.
        layout: Where the run stands.
        run_id: The user's id, for errors.
        identity: What this start wants the run to be.
        schema: The table's schema now; kept only when this start creates the run.
        nonce: Ours, if we are the first.
        sleep: How to pause between attempts.

    Raises:
        RunMismatchError: The id belongs to another job.
        LedgerDamagedError: run.json is damaged.
    """
    data = seal_json({"nonce": nonce, "identity": identity.to_json(), "schema": schema})
    found = create_once(storage, layout.identity, data, sleep=sleep)
    try:
        content = open_json(found)
        run_file = RunFile(
            nonce=content["nonce"],
            identity=Identity.from_json(content["identity"]),
            schema=content["schema"],
        )
    except (RecordDamagedError, KeyError, TypeError) as error:
        raise LedgerDamagedError(uri=layout.identity, reason=str(error)) from error
    if differences := identity.differences(run_file.identity):
        raise RunMismatchError(run_id=run_id, differences="; ".join(differences))
    return run_file
