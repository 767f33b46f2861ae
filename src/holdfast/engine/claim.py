"""Claim: open a run's log and claim the run, before anything else is done."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from holdfast._version import __version__
from holdfast.engine.input_check import measure_and_compare, refuse_null_keys
from holdfast.engine.options import Choices
from holdfast.engine.ports import Ports, Submitter
from holdfast.engine.steps_log import say
from holdfast.engine.takeover import Heartbeat, at_work, wait_for_other_driver
from holdfast.engine.workbook import Workbook, without_lost_objects
from holdfast.errors import (
    HoldfastError,
    LedgerDamagedError,
    RunMismatchError,
    SettingsError,
    StoreUnavailableError,
    TableMissingError,
)
from holdfast.ledger.layout import RunLayout
from holdfast.ledger.row_files import KeyFiles
from holdfast.ledger.run_log import RunFile, RunLog, read_run_file
from holdfast.ledger.store import probe_store
from holdfast.model.records import Claim, Identity, Stop, key_difference
from holdfast.sinks.base import Sink
from holdfast.storage.port import Storage
from holdfast.worker.code_digest import code_digest

# ---- Prepare: open a run's log and claim the run, before anything else is done
_CLAIMS_MAX = 100
# How long others wait for a driver that has asked what remains, and does not write.
_PREPARED_FOR_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """One run's ledger, and how this driver works on it."""

    run_id: str
    store: str
    storage: Storage
    ports: Ports
    log: RunLog

    @classmethod
    def open(cls, run_id: str, store: str, storage: Storage, ports: Ports) -> Ledger:
        """Return the ledger of a run; nothing is read yet."""
        log = RunLog(
            run_id=run_id,
            layout=RunLayout.of(store, run_id),
            storage=storage,
            new_nonce=ports.new_nonce,
            now=ports.now,
            sleep=ports.sleep,
        )
        return cls(run_id=run_id, store=store, storage=storage, ports=ports, log=log)

    @property
    def layout(self) -> RunLayout:
        """Where the run stands."""
        return self.log.layout

    def run_file(self) -> RunFile | None:
        """Read what the run is, if any driver has got so far; records must then name it.

        Raises:
            LedgerDamagedError: run.json is damaged or was lost, or a record is another run's.
            StoreUnavailableError: The store did not answer.
        """
        found = read_run_file(self.storage, self.layout)
        if found is not None:
            self.log.belongs_to(found)
        elif self.log.names_a_run:  # And run.json alone says which it is.
            raise LedgerDamagedError(
                uri=self.layout.identity, reason="missing, though records name a run"
            )
        return found

    def probe(self) -> None:
        """Refuse a store that cannot hold a ledger.

        Raises:
            StoreError: It cannot.
        """
        probe_store(self.storage, self.store, self.ports.new_nonce(), sleep=self.ports.sleep)

    def workbook(self) -> Workbook:
        """Return an empty workbook on this ledger."""
        return Workbook(
            log=self.log,
            storage=self.storage,
            new_nonce=self.ports.new_nonce,
        )

    def claim(self, choices: Choices, *, compare_code: bool = True, is_new: bool = False) -> Claim:
        """Take the run, unless it has landed; wait for a driver that may be alive.

        Args:
            choices: What the user wants of this start.
            compare_code: Whether the transform is known, and to be compared with the last one.
            is_new: Whether this start has just made the run: then there is no log to read, and
                if there is one after all, the claim's own create will tell.

        Raises:
            RunBusyError: Another driver seems alive, and is not to be taken over.
            RunMismatchError: The code has changed, and the user wants that refused.
            RunAbortedError: The run was given up.
            StoreError: The ledger is damaged or does not answer.
            StoreUnavailableError: Other starts have claimed the run again and again.
        """
        claim = self._our_claim(choices)
        if not is_new:
            self.log.refresh()
        for _ in range(_CLAIMS_MAX):
            wait_for_other_driver(
                log=self.log, storage=self.storage, ports=self.ports, takeover=choices.takeover
            )
            if self.log.receipt is not None:
                return claim
            if compare_code:
                self._compare_code(claim, choices)
            # Where another start was quicker, it lives: it is waited for in its turn.
            with at_work(self.log, self.ports):
                if self.log.try_claim(claim) is not None:
                    return claim
        raise StoreUnavailableError(uri=self.layout.log, reason="rivals took every number")

    def heartbeat(self, choices: Choices, *, for_s: float = float("inf")) -> Heartbeat:
        """Begin to give signs of life, for so long, for other starts of the run to wait for."""
        return Heartbeat(self.log, self.storage, self.ports, choices.checkpoint_every_s, for_s)

    def claim_again(self, choices: Choices) -> Claim:
        """Say what is known now: the first claim was made before the transform was.

        Raises:
            RunMismatchError: The code has changed, and the user wants that refused.
            RunFencedError: Another driver has claimed the run.
        """
        claim = self._our_claim(choices)
        if self.log.receipt is None:
            self._compare_code(claim, choices)
            self.log.claim_next_pass(claim)
        return claim

    def stop(self, error: HoldfastError) -> None:
        """Say that this driver gives up, as far as that can be said: nobody needs to wait."""
        stop = Stop(reason=type(error).__name__, message=error.summary)
        say(self.run_id, f"stopped: {stop.reason}")  # Its message may hold values of a row.
        if not self.log.own_claim:
            return  # Nothing of this driver is in the log that another would wait for.
        with contextlib.suppress(HoldfastError):
            self.log.append(stop)

    def _our_claim(self, choices: Choices) -> Claim:
        return Claim(
            holdfast_version=__version__,
            host=self.ports.host,
            process_id=self.ports.process_id,
            machine=self.ports.machine,
            code=code_digest(choices.transform),
            checkpoint_every_s=choices.checkpoint_every_s,
        )

    def _compare_code(self, claim: Claim, choices: Choices) -> None:
        """Say so when the transform is another than the one that has made rows last.

        Raises:
            RunMismatchError: It is, and the user wants that refused.
        """
        worked = self.log.plans
        if not worked or self.log.claims[max(worked)].code == claim.code:
            return
        if choices.strict_code:
            raise RunMismatchError(
                run_id=self.run_id, differences="the transform's code has changed (strict_code)"
            )
        warnings.warn(
            f"run {self.run_id!r}: the transform's code has changed since the last start; rows "
            "that are done are kept as they are, and the report says which code made how many",
            stacklevel=6,  # The call of `append`.
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A run that was claimed before the DataFrame of its rows was built."""

    ledger: Ledger
    book: Workbook
    has_landed: bool
    # The whole input, which knows more keys than what is made of its remaining rows.
    source: Submitter
    # Tells other starts that the run has a driver, as long as this object is kept.
    heartbeat: Heartbeat

    @staticmethod
    def check(choices: Choices) -> None:
        """Refuse what cannot be done with rows that were made from those that remained.

        Raises:
            SettingsError: Whole rows are to be compared: those at hand are not the input's.
        """
        if choices.compares_rows:
            raise SettingsError(
                what='verify_input="rows" with run.remaining(): the rows that arrive are not '
                "those of its input",
                cure='leave it out ("keys" is the default), or append hf.materialize(df)',
            )


def refuse_new_table(ledger: Ledger, identity_on: Callable[..., Identity], sink: Sink) -> None:
    """Refuse to create a table for a run that exists: it was started with one.

    Args:
        ledger: The run's ledger.
        identity_on: Returns what this start wants the run to be, for `table` and `table_uuid`.
        sink: The table, which was not there a moment ago.

    Raises:
        RunMismatchError: The run writes another table, or its table was dropped.
        StoreError: The ledger is damaged or does not answer.
        CommitError: The catalog does not answer.
    """
    found = ledger.run_file()
    if found is None:
        return
    try:
        sink.load()  # Another start of the run may have created it since, and then run.json.
    except TableMissingError:
        wanted = identity_on(table=sink.name, table_uuid="")
        differences = "; ".join(wanted.differences(found.identity))
        raise RunMismatchError(run_id=ledger.run_id, differences=differences) from None


def prepare(
    ledger: Ledger, submitter: Submitter, key: tuple[str, ...], choices: Choices
) -> Prepared:
    """Claim the run, seal what earlier drivers have left, and measure the whole input.

    Raises:
        RunMismatchError: The run was started with another key.
        NullKeyError: Some rows have no key.
        HoldfastError: Any other; what is durable stays so.
    """
    ledger.probe()
    found = ledger.run_file()
    if found is not None and found.identity.key != key:
        raise RunMismatchError(
            run_id=ledger.run_id,
            differences=key_difference(found.identity.key, key),
        )
    heartbeat: Heartbeat | None = None
    try:
        ledger.claim(choices, compare_code=False)
        heartbeat = ledger.heartbeat(choices, for_s=_PREPARED_FOR_S)
        if found is None and ledger.log.names_a_run:
            ledger.run_file()  # Another driver has made it since, or it was lost.
        book = ledger.workbook()
        has_landed = ledger.log.receipt is not None
        if not has_landed:
            book.inherit()
            # Which failed rows this start would tolerate is not known yet: all are tried again.
            book.release(book.work.without(one.name for one in book.work.quarantined))
            # Finished rows are told by their keys: those of a lost file remain to be done.
            kept = without_lost_objects(book.work, ledger.storage, ledger.layout)
            if kept is not book.work:
                book.withdraw(kept)
        _measure(ledger, book, submitter, choices)
        book.seal_changes()
    except BaseException as error:
        # A traceback that a notebook keeps would keep the heartbeat, too.
        if heartbeat is not None:
            heartbeat.stop()
        if isinstance(error, HoldfastError):
            ledger.stop(error)
        raise
    return Prepared(
        ledger=ledger, book=book, has_landed=has_landed, source=submitter, heartbeat=heartbeat
    )


def _measure(ledger: Ledger, book: Workbook, submitter: Submitter, choices: Choices) -> None:
    """Measure the whole input; where no row is finished, look whether its keys differ.

    Raises:
        NullKeyError: Some rows have no key.
        DuplicateKeyError: Some rows share a key.
    """
    if book.finished or ledger.log.receipt is not None:
        book.input_sums = submitter.measure(KeyFiles(storage=ledger.storage))
        refuse_null_keys(book.input_sums)
    else:
        measure_and_compare(book, submitter, choices, ledger.ports)


# ---- What the engine asks of an input, beyond what it asks of Spark
class SettledInput(Protocol):
    """Rows to be read, by Spark or by the workers themselves."""

    @property
    def submitter(self) -> Submitter:
        """What reads it, once it is settled."""

    def settle(self, ledger: Ledger, *, compare: bool) -> None:
        """Settle what is read, once for the whole run.

        Args:
            ledger: The run's ledger; claimed, if nothing is settled yet.
            compare: Whether this start must name the same.

        Raises:
            RunMismatchError: It names other files than the first start.
            InputChangedError: A pinned file was changed or deleted.
        """
