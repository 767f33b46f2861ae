"""Take-over: wait for a driver that seems alive, then claim the run.

Correctness does not hang on the wait: whoever claims last owns the run. It only keeps a driver
that was started by mistake from ending the work of a healthy one.
"""

from __future__ import annotations

import warnings
from datetime import datetime

from holdfast.engine.choices import Takeover
from holdfast.engine.ports import Ports
from holdfast.errors import RunBusyError
from holdfast.ledger.answers import answers
from holdfast.ledger.layout import RunLayout
from holdfast.ledger.run_log import RunLog
from holdfast.model.records import Abort, Claim, Receipt, Stop
from holdfast.plain_text import printable
from holdfast.storage.port import Storage

# A driver writes nothing while its job runs; without checkpoints neither do its tasks.
_QUIET_WITHOUT_CHECKPOINTS_S = 60.0
_SILENT_S_MIN = 60.0
_POLL_S = 1.0


def wait_for_other_driver(  # noqa: PLR0913 - one look needs all of these.
    *,
    run_id: str,
    log: RunLog,
    storage: Storage,
    layout: RunLayout,
    ports: Ports,
    takeover: Takeover,
) -> None:
    """Wait as long as the last driver of the run may be alive, unless told otherwise.

    Raises:
        RunBusyError: It seems alive, and is not to be taken over.
        StoreUnavailableError: The store did not answer.
    """
    if takeover == "now" or not log.claims:
        return
    number = max(log.claims)
    claim = log.claims[number]
    if _has_ended(log, number, claim, ports):
        return
    age_s = _age_s(log, storage, layout, number, ports)
    quiet_s = quiet_after_s(claim.checkpoint_every_s)
    if age_s >= quiet_s:
        return
    if takeover == "never":
        raise RunBusyError(run_id=run_id, host=claim.host, process_id=claim.process_id, age_s=age_s)
    warnings.warn(
        f"run {run_id!r}: process {claim.process_id} on {printable(claim.host)} wrote "
        f"{age_s:.0f} s ago and "
        f'may be at work; waiting {quiet_s - age_s:.0f} s, then taking over (takeover="now" does '
        "not wait)",
        stacklevel=6,  # The call of `append`.
    )
    until = ports.now() + quiet_s - age_s
    for _ in range(int(quiet_s / _POLL_S) + 2):
        left_s = until - ports.now()
        if left_s <= 0:
            return
        ports.sleep(min(_POLL_S, left_s))
        log.refresh()
        if _has_ended(log, max(log.claims), log.claims[max(log.claims)], ports):
            return


def quiet_after_s(checkpoint_every_s: float | None) -> float:
    """Return how long a driver that lives, or its tasks, may write nothing."""
    return 2 * (checkpoint_every_s or _QUIET_WITHOUT_CHECKPOINTS_S / 2)


def silent_after_s(checkpoint_every_s: float | None) -> float:
    """Return when a person is told of it: a minute may pass between two passes as well."""
    return max(_SILENT_S_MIN, quiet_after_s(checkpoint_every_s))


def _has_ended(log: RunLog, number: int, claim: Claim, ports: Ports) -> bool:
    """Whether the driver of a claim is known to have ended."""
    if any(isinstance(record.body, Receipt | Abort) for record in log.records):
        return True
    if any(isinstance(record.body, Stop) for record in log.records[number:]):
        return True
    if not claim.machine or claim.machine != ports.machine:
        return False
    return claim.process_id == ports.process_id or not ports.is_running(claim.process_id)


def _age_s(log: RunLog, storage: Storage, layout: RunLayout, claim: int, ports: Ports) -> float:
    """How long ago the driver of the claim, or one of its tasks, wrote something.

    Raises:
        StoreUnavailableError: The store did not answer.
    """
    written = datetime.fromisoformat(log.records[-1].written_at).timestamp()
    newest = None
    if (tasks := log.task_folders.get(claim)) is not None:
        folder = layout.job_tasks(tasks)
        with answers(folder):
            newest = storage.newest(folder)
    return max(0.0, ports.now() - max(written, newest or 0.0))
