"""run.json and the run log: a run's identity, and its drivers' gapless list of records.

run.json holds the run's nonce. Every record carries it, and so does the mark inside the table,
which distinguishes the same run id in another store. run.json names the run id too, so a folder
that was copied to another id is recognised as a copy.

The log decides who owns the run. A driver appends at the next number; if another driver's claim or
an abort is already there, it is fenced. So a claim fixes everything before it, and a fenced driver
can change nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any

import msgspec

from holdfast.errors import (
    LedgerDamagedError,
    RunAbortedError,
    RunFencedError,
    RunMismatchError,
    SettingsError,
    StoreUnavailableError,
)
from holdfast.failpoints import failpoint
from holdfast.ledger.layout import RunLayout, tasks_name
from holdfast.ledger.store import answers, create_once, list_objects
from holdfast.model.identity import Identity
from holdfast.model.records import (
    Abort,
    Base,
    Body,
    Claim,
    Indexed,
    Intent,
    Merged,
    PartReference,
    Pinned,
    Plan,
    Ready,
    Receipt,
    Record,
    Refused,
    Renewal,
    Rewritten,
    Seal,
    Stop,
    decode_record,
    doubtful_intents,
    encode_record,
    kind_of,
    open_json,
    seal_json,
)
from holdfast.model.stored import (
    RecordDamagedError,
    Segment,
    damaged,
    encode_run_id,
    typed,
    typed_whole,
)
from holdfast.storage.port import Storage, StorageError


# ---- run.json: the run's identity, created once by its first driver
@dataclass(frozen=True, slots=True, kw_only=True)
class RunFile:
    """The content of run.json."""

    nonce: str
    identity: Identity
    # Whether it has format 1, whose records do not carry their run's nonce.
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
    """Create run.json, or read the existing one and compare it.

    Args:
        storage: How the store is reached.
        layout: Where the run's objects are.
        run_id: The user's id, for errors.
        identity: The identity that this start expects the run to have.
        nonce: The run's nonce, if this start creates it.
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
    """Return the content of run.json; None if no driver has written it.

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
        raise damaged(layout.identity, error) from error
    if folder and folder != layout.folder.rsplit("/", 1)[1]:
        raise LedgerDamagedError(
            uri=layout.identity, reason=f"the folder was copied from run {content.run_id!r}"
        )
    return found


# ---- The run log: the driver's gapless list of create-once records

_CLAIM_ATTEMPTS_MAX = 100
# What a driver may write before the run's table is known. Such a seal is empty.
_EARLY = (Claim, Seal, Stop, Abort)


class RunLog:
    """One driver's view of a run's log. Reading again is always safe."""

    def __init__(  # noqa: PLR0913 - the ports are passed in one by one, so that tests see each.
        self,
        *,
        run_id: str,
        layout: RunLayout,
        storage: Storage,
        new_nonce: Callable[[], str],
        now: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        """Take the ports; nothing is read yet."""
        self._run_id = run_id
        self._layout = layout
        self._storage = storage
        self._new_nonce = new_nonce
        self._now = now
        self._sleep = sleep
        self._records: list[Record] = []
        self._own_claim = 0
        # The UUID of the run's table, once run.json was read.
        self._table_uuid = ""
        # What made the log unreadable: an append could hide the damage, so none is made.
        self._damage: LedgerDamagedError | None = None

    @property
    def run_id(self) -> str:
        """The id of the log's run."""
        return self._run_id

    @property
    def layout(self) -> RunLayout:
        """Where the run's objects are, and, once run.json was read, the nonce they carry."""
        return self._layout

    def belongs_to(self, run_file: RunFile) -> None:
        """Accept only records that name this run, including those already read.

        Raises:
            LedgerDamagedError: A record is another run's.
        """
        self._layout = replace(self._layout, nonce=run_file.nonce, has_unnamed=run_file.has_unnamed)
        self._table_uuid = run_file.identity.table_uuid
        for at, record in enumerate(self._records):
            self._check_owner(record, self._records[:at])

    @property
    def records(self) -> tuple[Record, ...]:
        """All records that this driver has read or written."""
        return tuple(self._records)

    @property
    def receipt(self) -> Receipt | None:
        """The receipt, if the log has one."""
        found = [record.body for record in self._records if isinstance(record.body, Receipt)]
        return found[-1] if found else None

    @property
    def intents(self) -> dict[int, Intent]:
        """All intents by record number."""
        return {
            record.number: record.body
            for record in self._records
            if isinstance(record.body, Intent)
        }

    @property
    def doubtful(self) -> dict[int, Intent]:
        """The intents that may have landed, or may still land, as far as the log shows."""
        return doubtful_intents(self._records)

    @property
    def seals(self) -> dict[int, Seal]:
        """All seals by record number."""
        return {
            record.number: record.body for record in self._records if isinstance(record.body, Seal)
        }

    @property
    def renewals(self) -> list[PartReference]:
        """The parts that list copies that drivers have made, or were about to make."""
        return [record.body.work for record in self._records if isinstance(record.body, Renewal)]

    @property
    def ready(self) -> Ready | None:
        """What the last start that was not to commit has staged, if no later one has changed it.

        A commit may copy files that have waited for long: its seal lists the same rows.
        """
        found: Ready | None = None
        seal: Seal | None = None
        for record in self._records:
            body = record.body
            if isinstance(body, Ready):
                found = body
            elif isinstance(body, Seal):
                is_same = seal is not None and body.covered == seal.covered
                found = replace(found, work=body.work) if found and is_same else None
                seal = body
        return found

    @property
    def began_at(self) -> float:
        """When the first record was written, in Unix seconds; the run must be claimed."""
        return datetime.fromisoformat(self._records[0].written_at).timestamp()

    @property
    def claims(self) -> dict[int, Claim]:
        """All claims by record number."""
        return {
            record.number: record.body for record in self._records if isinstance(record.body, Claim)
        }

    @property
    def own_claim(self) -> int:
        """The number of this driver's last claim; 0 if it has none."""
        return self._own_claim

    @property
    def next_number(self) -> int:
        """The number of the next record."""
        return len(self._records) + 1

    @property
    def plans(self) -> dict[int, Plan]:
        """The plan of each claim under which a job was started, by the claim's number."""
        found, claim = {}, 0
        for record in self._records:
            if isinstance(record.body, Claim):
                claim = record.number
            elif isinstance(record.body, Plan):
                found[claim] = record.body
        return found

    @property
    def follows_run_file(self) -> bool:
        """Whether run.json existed when a record was written.

        Records name their run from then on, but those of format 1 do not. No intent or receipt is
        written without it.
        """
        posted = any(isinstance(record.body, Intent | Receipt) for record in self._records)
        return posted or bool(_named_run(self._records))

    @property
    def task_folders(self) -> dict[int, str]:
        """The name of each job's folder of task logs, by the claim's number."""
        return {claim: plan.tasks or tasks_name(claim) for claim, plan in self.plans.items()}

    @property
    def pinned(self) -> Pinned | None:
        """The files that the run reads, once they are pinned; the newest list has all of them."""
        found = (record.body for record in reversed(self._records))
        return next((body for body in found if isinstance(body, Pinned)), None)

    @property
    def base(self) -> Base | None:
        """The rows that the run replaces, as they were when it began."""
        return next(
            (record.body for record in self._records if isinstance(record.body, Base)), None
        )

    @property
    def rewritten(self) -> list[PartReference]:
        """The parts that list files of the table which were written anew."""
        bodies = [record.body for record in self._records]
        return [body.rewrites for body in bodies if isinstance(body, Rewritten)]

    @property
    def indexed(self) -> list[Indexed]:
        """The indexes that were built of the keys of the run's rows, and their pieces."""
        return [record.body for record in self._records if isinstance(record.body, Indexed)]

    @property
    def merged(self) -> list[Merged]:
        """What was recorded of groups that are to enter the table in place of staged ones."""
        return [record.body for record in self._records if isinstance(record.body, Merged)]

    def refresh(self) -> None:
        """Read the records that were added since the last look.

        Raises:
            LedgerDamagedError: A record is damaged, or a number is missing.
            StoreUnavailableError: The store did not answer.
        """
        try:
            self._read_on()
        except LedgerDamagedError as error:
            self._damage = error
            raise

    def _read_on(self) -> None:
        there = set(list_objects(self._storage, self._layout.log))
        numbers = range(len(self._records) + 1, len(there) + 1)
        new = [self._layout.record(number) for number in numbers]
        for uri in new:
            if uri not in there:
                raise LedgerDamagedError(uri=uri, reason="missing, though later records exist")
        with answers(self._layout.log):
            found = self._storage.get_many(new)
        for number, uri, data in zip(numbers, new, found, strict=True):
            if data is None:
                raise LedgerDamagedError(uri=uri, reason="listed, but gone when read")
            self._records.append(self._decode(uri, number, data))

    @property
    def abort(self) -> Abort | None:
        """The record that aborted the run, if there is one."""
        bodies = (record.body for record in self._records)
        return next((body for body in bodies if isinstance(body, Abort)), None)

    @property
    def is_aborted(self) -> bool:
        """Whether the run was aborted."""
        return self.abort is not None

    def claim(self, body: Claim | Abort) -> Record:
        """Take the run over, or abort it: append after the last record, whatever it is.

        Raises:
            RunAbortedError: The run was aborted.
            StoreUnavailableError: Other drivers took every number, or the store did not answer.
        """
        for _ in range(_CLAIM_ATTEMPTS_MAX):
            if (record := self.try_claim(body)) is not None:
                return record
        raise StoreUnavailableError(
            uri=self._layout.log, reason="other drivers took every record number"
        )

    def try_claim(self, body: Claim | Abort) -> Record | None:
        """Claim right after the last known record; None if another driver's is there by now.

        Raises:
            RunAbortedError: The run was aborted.
            StoreUnavailableError: The store did not answer.
        """
        self._stop_if_aborted()
        # The create decides which driver is next, not a listing: list only after a loss.
        record, won = self._try_append(body)
        if not won:
            self.refresh()
            return None
        self._own_claim = record.number
        return record

    def stop_if_taken_over(self) -> None:
        """Check that the run is still this driver's.

        Raises:
            RunFencedError: Another driver has claimed it.
            RunAbortedError: It was aborted.
        """
        self.refresh()
        self._stop_if_fenced()

    def claim_next_pass(self, body: Claim) -> Record:
        """Claim again as the driver that holds the run, which ends the tasks of the last pass.

        Raises:
            RunFencedError: Another driver has claimed the run.
            RunAbortedError: The run was aborted.
        """
        record = self.append(body)
        self._own_claim = record.number
        return record

    def append(self, body: Body) -> Record:
        """Append a record under the current claim.

        Raises:
            RunFencedError: Another driver has claimed the run.
            RunAbortedError: The run was aborted.
            LedgerDamagedError: The next number is taken by a record that no claim allows.
        """
        # A fenced driver stays fenced: it may have read the later claim before this call.
        self._stop_if_fenced()
        record, won = self._try_append(body)
        if won:
            return record
        self._stop_if_fenced()
        raise LedgerDamagedError(
            uri=self._layout.record(record.number), reason="it was written without a claim"
        )

    def append_after_abort(self, body: Receipt | Refused) -> None:
        """Record what became of an aborted run's post; the first driver to find out does this.

        Raises:
            LedgerDamagedError: Another record follows the abort.
            StoreUnavailableError: The store did not answer.
        """
        for _ in range(_CLAIM_ATTEMPTS_MAX):
            if self._tells_outcome(body):
                return
            record, won = self._try_append(body)
            if not won and not isinstance(record.body, Receipt | Refused):
                raise LedgerDamagedError(
                    uri=self._layout.record(record.number), reason="it follows the abort record"
                )

    def _tells_outcome(self, body: Receipt | Refused) -> bool:
        """Whether the log says already what a record would say, or more."""
        return self.receipt is not None or body.intent_number not in self.doubtful

    def _try_append(self, body: Body) -> tuple[Record, bool]:
        if self._damage is not None:
            raise self._damage
        number = len(self._records) + 1
        ours = Record(
            number=number,
            nonce=self._new_nonce(),
            written_at=datetime.fromtimestamp(self._now(), tz=timezone.utc).isoformat(),
            body=body,
            # Another driver may have created run.json since this one looked for it.
            run=self._layout.nonce or _named_run(self._records),
            previous=self._records[-1].nonce if self._records else "",
        )
        uri = self._layout.record(number)
        data = encode_record(ours)
        kind = kind_of(body)
        failpoint(f"before-{kind}")
        found = create_once(self._storage, uri, data, sleep=self._sleep)
        failpoint(f"after-{kind}")
        record = ours if found == data else self._decode(uri, number, found)
        self._records.append(record)
        return record, found == data

    def _stop_if_fenced(self) -> None:
        self._stop_if_aborted()
        for record in self._records[self._own_claim :]:
            if isinstance(record.body, Claim):
                raise RunFencedError(run_id=self._run_id, number=record.number)

    def _stop_if_aborted(self) -> None:
        for record in self._records:
            if isinstance(record.body, Abort):
                reason = record.body.reason or "none given"
                raise RunAbortedError(run_id=self._run_id, number=record.number, reason=reason)

    def _decode(self, uri: str, number: int, data: bytes) -> Record:
        try:
            record = decode_record(data)
        except RecordDamagedError as error:
            raise damaged(uri, error) from error
        if record.number != number:
            raise LedgerDamagedError(uri=uri, reason=f"its number is {record.number}")
        # Earlier versions let a driver record a stop before it had claimed the run.
        if number == 1 and not isinstance(record.body, Claim | Abort | Stop):
            raise LedgerDamagedError(uri=uri, reason="the first record is not a claim")
        self._check_owner(record, self._records)
        return record

    def _check_owner(self, record: Record, before: Sequence[Record]) -> None:
        """Refuse a record that is another run's, or that does not follow the one before.

        Raises:
            LedgerDamagedError: It is another run's, or out of sequence.
        """
        uri, named = self._layout.record(record.number), _named_run(before)
        # Before run.json there is no nonce. Records may lack it until the first that has one.
        is_early = not record.run and not named and isinstance(record.body, _EARLY)
        is_own = self._layout.owns(record.run) and (not named or record.run in {named, ""})
        if not is_own and not is_early:
            raise LedgerDamagedError(uri=uri, reason="it belongs to another run")
        follows = before[-1].nonce if before else ""
        if record.previous != follows and not (
            record.previous is None and (self._layout.has_unnamed or not self._layout.nonce)
        ):
            raise LedgerDamagedError(uri=uri, reason="the record that it follows is missing")
        body = record.body
        # In format 1 records carry no nonce: only this check can detect another run's log.
        if isinstance(body, Intent) and self._table_uuid not in {"", body.table_uuid}:
            raise LedgerDamagedError(uri=uri, reason="it is an intent for another table")
        if isinstance(body, Receipt | Refused):
            intents = {
                earlier.number: earlier.body
                for earlier in before
                if isinstance(earlier.body, Intent)
            }
            intent = intents.get(body.intent_number)
            if intent is None or (isinstance(body, Receipt) and body.staged != intent.staged):
                raise LedgerDamagedError(
                    uri=uri, reason=f"the log has no matching intent {body.intent_number}"
                )


def _named_run(records: Sequence[Record]) -> str:
    """Return the run nonce that the records carry; empty if none does."""
    return next((record.run for record in reversed(records) if record.run), "")
