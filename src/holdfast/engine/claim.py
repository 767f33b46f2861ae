"""Claim: open a run's log and claim the run, before anything else is done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from holdfast._version import __version__
from holdfast.engine.input_check import measure_and_compare, refuse_null_keys
from holdfast.engine.options import WriteOptions
from holdfast.engine.ports import Submitter
from holdfast.engine.takeover import Heartbeat, at_work, wait_for_other_driver
from holdfast.engine.workbook import Workbook, without_lost_objects
from holdfast.errors import (
    HoldfastError,
    RunMismatchError,
    SettingsError,
    StoreUnavailableError,
    TableMissingError,
)
from holdfast.ledger.ledger import Ledger
from holdfast.ledger.row_files import KeyFiles
from holdfast.model.identity import Identity, key_difference
from holdfast.model.records import Claim
from holdfast.sinks.base import Sink
from holdfast.text import warn_caller
from holdfast.worker.code_digest import code_digest

# ---- Prepare: open a run's log and claim the run, before anything else is done

_CLAIMS_MAX = 100
# How long others wait for a driver that asked for the remaining rows but has not started to write.
_PREPARED_FOR_S = 3600.0


def claim_run(
    ledger: Ledger, options: WriteOptions, *, compare_code: bool = True, is_new: bool = False
) -> Claim:
    """Claim the run, unless it has landed; wait for a driver that may be alive.

    Args:
        ledger: The run's ledger.
        options: The user's options for this start.
        compare_code: Whether the transform is known and is compared with the last one.
        is_new: Whether this start has just created the run: then there is no log to read, and
            if there is one after all, creating the claim fails.

    Raises:
        RunBusyError: Another driver seems alive, and the user forbids a takeover.
        RunMismatchError: The code has changed, and `strict_code` refuses that.
        RunAbortedError: The run was aborted.
        StoreError: The ledger is damaged or does not answer.
        StoreUnavailableError: Other starts took every record number.
    """
    claim = _our_claim(ledger, options)
    if not is_new:
        ledger.log.refresh()
    for _ in range(_CLAIMS_MAX):
        wait_for_other_driver(ledger, options.takeover)
        if compare_code:
            _compare_code(ledger, claim, options)
        if ledger.log.receipt is not None:
            return claim
        # A start that claimed before us is alive: the next round waits for it.
        with at_work(ledger):
            if ledger.log.try_claim(claim) is not None:
                return claim
    raise StoreUnavailableError(
        uri=ledger.layout.log, reason="other drivers took every record number"
    )


def claim_again(ledger: Ledger, options: WriteOptions) -> Claim:
    """Claim again with the transform's code, which the first claim did not know yet.

    Raises:
        RunMismatchError: The code has changed, and `strict_code` refuses that.
        RunFencedError: Another driver has claimed the run.
    """
    claim = _our_claim(ledger, options)
    _compare_code(ledger, claim, options)
    if ledger.log.receipt is None:
        ledger.log.claim_next_pass(claim)
    return claim


def _our_claim(ledger: Ledger, options: WriteOptions) -> Claim:
    return Claim(
        holdfast_version=__version__,
        host=ledger.ports.host,
        process_id=ledger.ports.process_id,
        machine=ledger.ports.machine,
        code=code_digest(options.transform),
        checkpoint_every_s=options.checkpoint_every_s,
        budget=None if options.budget is None else float(options.budget),
    )


def _compare_code(ledger: Ledger, claim: Claim, options: WriteOptions) -> None:
    """Warn if the transform's code differs from the code that last produced rows.

    Raises:
        RunMismatchError: It differs, `strict_code` refuses that, and the run has not landed.
    """
    worked = ledger.log.plans
    if not worked or ledger.log.claims[max(worked)].code == claim.code:
        return
    has_landed = ledger.log.receipt is not None
    if options.strict_code and not has_landed:
        raise RunMismatchError(
            run_id=ledger.run_id, differences="the transform's code has changed (strict_code)"
        )
    kept = (
        "the run has landed with rows of the earlier code, and nothing is computed: use a new run "
        "id to write what this code makes"
        if has_landed
        else "finished rows are kept as they are, and the report shows how many rows each version "
        "made"
    )
    warn_caller(
        f"run {ledger.run_id!r}: the transform's code has changed since the last start; {kept}"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A run that was claimed before its DataFrame was built."""

    ledger: Ledger
    book: Workbook
    has_landed: bool
    # The whole input; what the user derives from the remaining rows holds fewer keys.
    source: Submitter
    # Shows other starts that the run has a driver, as long as this object is referenced.
    heartbeat: Heartbeat


def refuse_new_table(ledger: Ledger, identity_on: Callable[..., Identity], sink: Sink) -> None:
    """Refuse to create a table for an existing run: it was started with one.

    Args:
        ledger: The run's ledger.
        identity_on: Returns the identity that this start expects, given `table` and `table_uuid`.
        sink: The table, which did not exist a moment ago.

    Raises:
        RunMismatchError: The run writes another table, or its table was dropped.
        StoreError: The ledger is damaged or does not answer.
        CommitError: The catalog does not answer.
    """
    found = ledger.run_file()
    if found is None:
        return
    try:
        sink.load()  # Another start may have created the table since, and then run.json.
    except TableMissingError:
        wanted = identity_on(table=sink.name, table_uuid="")
        differences = "; ".join(wanted.differences(found.identity))
        raise RunMismatchError(run_id=ledger.run_id, differences=differences) from None


def prepare(
    ledger: Ledger, submitter: Submitter, key: tuple[str, ...], options: WriteOptions
) -> Prepared:
    """Claim the run, seal the work of earlier drivers, and measure the whole input.

    Raises:
        SettingsError: Whole rows are to be compared, but the rows to be written are not the
            input's.
        RunMismatchError: The run was started with another key.
        NullKeyError: Some rows have no key.
        HoldfastError: Any other error; durable work is kept.
    """
    if options.compares_rows:
        raise SettingsError(
            what='verify_input="rows" cannot be used with run.remaining(): the appended rows '
            "are not those of its input",
            cure='leave it out ("keys" is the default), or append hf.materialize(df)',
        )
    if options.budget is not None:
        raise SettingsError(
            what="budget= cannot be used with run.remaining(): Holdfast does not make the calls "
            "that cost something",
            cure="leave it out, or make the calls in transform=",
        )
    ledger.probe()
    found = ledger.run_file()
    if found is not None and found.identity.key != key:
        raise RunMismatchError(
            run_id=ledger.run_id,
            differences=key_difference(found.identity.key, key),
        )
    heartbeat: Heartbeat | None = None
    try:
        claim_run(ledger, options, compare_code=False)
        heartbeat = Heartbeat(ledger, options.checkpoint_every_s, for_s=_PREPARED_FOR_S)
        if found is None and ledger.log.follows_run_file:
            ledger.run_file()  # Another driver has created it since, or it was lost.
        book = Workbook(ledger)
        has_landed = ledger.log.receipt is not None
        if not has_landed:
            book.inherit()
            # Retry all failed rows: how many this start tolerates is not known yet.
            book.release(book.work.without(record.name for record in book.work.quarantined))
            # Finished rows are known by their keys: if a key file is lost, its rows are redone.
            kept = without_lost_objects(ledger, book.work)
            if kept is not book.work:
                book.withdraw(kept)
        _measure(ledger, book, submitter, options)
        book.seal_changes()
    except BaseException as error:
        # A traceback that a notebook keeps would keep the heartbeat running, too.
        if heartbeat is not None:
            heartbeat.stop()
        if isinstance(error, HoldfastError):
            ledger.stop(error)
        raise
    return Prepared(
        ledger=ledger, book=book, has_landed=has_landed, source=submitter, heartbeat=heartbeat
    )


def _measure(ledger: Ledger, book: Workbook, submitter: Submitter, options: WriteOptions) -> None:
    """Measure the whole input; if no row is finished, also check that its keys differ.

    Raises:
        NullKeyError: Some rows have no key.
        DuplicateKeyError: Some rows share a key.
    """
    if book.finished or ledger.log.receipt is not None:
        book.input_sums = submitter.measure(KeyFiles(storage=ledger.storage))
        refuse_null_keys(book.input_sums)
    else:
        measure_and_compare(book, submitter, options, ledger.ports)


# ---- What the engine needs from an input, beyond what it needs from Spark
class SettledInput(Protocol):
    """Rows to be read, by Spark or by the workers themselves."""

    @property
    def submitter(self) -> Submitter:
        """What submits the jobs that read the input, once it is settled."""

    def settle(self, ledger: Ledger, *, compare: bool) -> None:
        """Fix what is read, once for the whole run.

        Args:
            ledger: The run's ledger; already claimed, if nothing is settled yet.
            compare: Whether this start must name the same input.

        Raises:
            RunMismatchError: It names other files than the first start did.
            InputChangedError: A pinned file was changed or deleted.
        """
