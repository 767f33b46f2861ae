"""The account of a job and the purses of its tasks: what is taken, spent and given back."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from holdfast.errors import LedgerDamagedError, StoreUnavailableError
from holdfast.worker.budget import Account, Allowance, Purse
from tests.fakes.memory_storage import CreateFault, MemoryStorage
from tests.fakes.task_ledgers import ManualClock, job_ledger

AMOUNT = 64.0


def allowance(
    amount: float = AMOUNT, *, slots: int = 2, row_cost: float = 0.0, is_exact: bool = False
) -> Allowance:
    """Return what tasks may spend together."""
    return Allowance.of(amount, slots=slots, row_cost=row_cost, is_exact=is_exact)


def account(
    storage: MemoryStorage, allowed: Allowance, nonce: str = "n", *, run: str = ""
) -> Account:
    """Return the account as one of its users opens it."""
    ledger = job_ledger(storage)
    return Account(
        storage,
        replace(ledger.layout, nonce=run),
        ledger.tasks,
        amount=allowed.amount,
        chains=allowed.chains,
        nonce=nonce,
        sleep=ManualClock().sleep,
    )


def purse(storage: MemoryStorage, allowed: Allowance, place: int = 0) -> Purse:
    """Return the purse of one task."""
    return Purse(account(storage, allowed, f"n{place}"), allowed, place)


def spend(purse: Purse, cost: Callable[[], float], rows: int = 1_000_000) -> float:
    """Pay for one row after the other, as long as possible; return what was spent."""
    while rows and purse.affords(1):
        purse.pay(cost(), 1)
        rows -= 1
    return purse.spent


def test_without_an_allowance_a_purse_pays_for_anything() -> None:
    """It only adds up; no request is made."""
    free = Purse()
    assert (free.affords(7), free.affords(1, 1000)) == (7, 1)
    free.pay(5.0, 1)
    free.settle()
    assert (free.spent, free.is_out) == (5.0, False)


@pytest.mark.parametrize("slots", [1, 2, 5, 300])
@pytest.mark.parametrize(("amount", "each", "rows"), [(0.3, 0.1, 3), (7.0, 1.0, 7), (9.9, 3.0, 3)])
def test_one_task_spends_all_that_pays_for_whole_rows(
    amount: float, each: float, rows: int, slots: int
) -> None:
    """Whatever the parts are that it takes; sums of decimal fractions are rounded."""
    storage = MemoryStorage()
    for known in (each, 0.0):
        storage.objects.clear()
        mine = purse(storage, allowance(amount, slots=slots, row_cost=known, is_exact=known > 0))
        assert spend(mine, lambda: each) == pytest.approx(rows * each)
        assert mine.is_out


def test_tasks_together_never_spend_more_than_the_amount() -> None:
    """They take turns at random, and costs are known only afterwards.

    What is spent beyond the amount is at most the last row of each task.
    """
    for seed in range(20):
        chance, storage = random.Random(seed), MemoryStorage()
        allowed = allowance(slots=8, row_cost=chance.choice([0.0, 0.5]))
        purses = [purse(storage, allowed, place) for place in range(8)]
        busy = list(purses)
        while busy:
            one = chance.choice(busy)
            if one.affords(1):
                one.pay(chance.random(), 1)
            else:
                busy.remove(one)
        spent = sum(each.spent for each in purses)
        assert AMOUNT - 8 <= spent <= AMOUNT + 8 * 0.5
        for each in purses:
            each.settle()
        assert account(storage, allowed).taken() == pytest.approx(spent)


def test_tasks_on_threads_never_take_the_same_money() -> None:
    """Each entry has one winner."""
    storage, allowed = MemoryStorage(), allowance(slots=8, row_cost=0.25, is_exact=True)
    purses = [purse(storage, allowed, place) for place in range(8)]
    threads = [threading.Thread(target=spend, args=(each, lambda: 0.25)) for each in purses]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(each.spent for each in purses) == AMOUNT


def test_before_the_first_answer_one_row_is_called_for() -> None:
    """Nobody knows what it costs, and it may cost all there is."""
    mine = purse(MemoryStorage(), allowance())
    assert (mine.affords(1000), mine.affords(1, 1)) == (1, 0)
    mine.pay(10.0, 1)
    assert 1 <= mine.affords(1000) <= 5
    assert mine.affords(1, in_flight=5) == 0
    assert not mine.is_out


def test_a_task_learns_from_others_what_a_row_costs() -> None:
    """It need not try one row first."""
    storage, allowed = MemoryStorage(), allowance(slots=1)
    first = purse(storage, allowed)
    spend(first, lambda: 2.0, rows=3)
    first.settle()
    assert purse(storage, allowed).affords(1000) > 1


def test_what_is_given_back_can_be_taken_by_others() -> None:
    """A task that needs little does not keep the rest."""
    storage, allowed = MemoryStorage(), allowance(slots=1, row_cost=1.0, is_exact=True)
    for place in range(64):
        one = purse(storage, allowed, place)
        spend(one, lambda: 1.0, rows=1)
        one.settle()
        one.settle()  # Only once.
    assert account(storage, allowed).taken() == AMOUNT
    assert not purse(storage, allowed).affords(1)


def test_a_dead_task_keeps_a_small_part_of_what_its_slot_could_spend() -> None:
    """So little is lost in a kill."""
    storage, allowed = MemoryStorage(), allowance(slots=4, row_cost=0.001)
    purse(storage, allowed).affords(1)
    assert 0 < account(storage, allowed).taken() <= AMOUNT / 100


def test_a_closed_account_gives_nothing_and_takes_nothing_back() -> None:
    """What a task then still holds counts as spent, as it may spend it."""
    storage, allowed = MemoryStorage(), allowance(slots=2, row_cost=1.0, is_exact=True)
    mine, other = purse(storage, allowed), purse(storage, allowed, 1)
    assert mine.affords(1)
    driver = account(storage, allowed, "driver")
    driver.close()
    driver.close()
    taken = driver.taken()
    assert (other.affords(1), other.is_out) == (0, True)
    mine.pay(1.0, 1)
    mine.settle()
    assert driver.taken() == taken > 0
    assert driver.killed_cost(0.0) == taken
    assert driver.killed_cost(taken) == 0.0


@pytest.mark.parametrize("fault", CreateFault)
def test_money_is_taken_once_whatever_the_store_answers(fault: CreateFault) -> None:
    """A create without a clear answer is read back."""
    storage, allowed = MemoryStorage(), allowance(slots=1, row_cost=1.0, is_exact=True)
    mine = purse(storage, allowed)
    storage.create_faults.extend([fault, None, fault])
    assert spend(mine, lambda: 1.0, rows=3) == 3.0
    mine.settle()
    assert account(storage, allowed).taken() == 3.0


def test_a_stale_listing_gives_no_money_twice() -> None:
    """A task meets its own earlier entry, and does not take it for a new one."""

    class Stale(MemoryStorage):
        stale = 0

        def folders(self, prefix_uri: str) -> list[str]:
            self.stale -= 1
            return [] if self.stale >= 0 else super().folders(prefix_uri)

    storage, allowed = Stale(), allowance(2.0, slots=1, row_cost=1.0, is_exact=True)
    mine = purse(storage, allowed)
    assert spend(mine, lambda: 1.0, rows=2) == 2.0
    storage.stale = 1
    assert (mine.affords(1), mine.is_out) == (0, True)
    driver = account(storage, allowed, "driver")
    storage.stale = 1
    driver.close()
    storage.stale = 1
    assert driver.taken() == 2.0


def test_a_rival_that_is_faster_takes_its_part_first() -> None:
    """The loser takes what is left after that."""
    storage, allowed = MemoryStorage(), allowance(2.0, slots=1, row_cost=1.0, is_exact=True)
    mine, rival = purse(storage, allowed), purse(storage, allowed, 1)

    def be_faster() -> None:
        rival.affords(1)
        rival.pay(1.0, 1)

    storage.before_create = be_faster
    assert mine.affords(1)
    mine.pay(1.0, 1)
    assert (mine.affords(1), rival.affords(1)) == (0, 0)


def test_a_task_that_found_nothing_left_does_not_ask_again() -> None:
    """It is asked after each answer, until those in flight are there."""
    storage, allowed = MemoryStorage(), allowance(3.0, slots=1, row_cost=1.0, is_exact=True)
    mine = purse(storage, allowed)
    spend(mine, lambda: 1.0, rows=2)
    assert (mine.affords(1), mine.affords(1, in_flight=1)) == (1, 0)
    calls = len(storage.calls)
    for _ in range(10):
        assert mine.affords(1, in_flight=1) == 0
    assert len(storage.calls) == calls
    assert not mine.is_out


def test_a_damaged_entry_stops_the_task() -> None:
    """Nobody knows what is left."""
    storage, allowed = MemoryStorage(), allowance(slots=1)
    purse(storage, allowed).affords(1)
    (uri,) = storage.objects
    storage.objects[uri] = b"{}"
    with pytest.raises(LedgerDamagedError):
        purse(storage, allowed).affords(1)


def test_an_entry_of_another_run_stops_the_task() -> None:
    """A folder of the ledger was copied, or restored in the wrong place."""
    storage, allowed = MemoryStorage(), allowance(slots=1)
    assert Purse(account(storage, allowed, run="one"), allowed).affords(1)
    assert Purse(account(storage, allowed, "m", run="one"), allowed).affords(1)
    with pytest.raises(LedgerDamagedError, match="it belongs to another run"):
        Purse(account(storage, allowed, "m", run="other"), allowed).affords(1)


def test_an_entry_that_is_gone_when_it_is_read_stops_the_task() -> None:
    """Another driver has landed and swept, or somebody has deleted it."""

    class Swept(MemoryStorage):
        def get_many(self, uris: Sequence[str]) -> list[bytes | None]:
            return [None for _ in uris]

    storage, allowed = Swept(), allowance(slots=1)
    purse(storage, allowed).affords(1)
    with pytest.raises(LedgerDamagedError):
        purse(storage, allowed).affords(1)


def test_a_store_that_does_not_answer_lets_no_row_be_called_for() -> None:
    """The task fails, and is started again."""
    storage, allowed = MemoryStorage(), allowance(slots=1)
    storage.failures["folders"] = 1
    with pytest.raises(StoreUnavailableError):
        purse(storage, allowed).affords(1)


@pytest.mark.parametrize(
    ("amount", "row_cost", "pays"),
    [(0.0, 0.0, False), (-1.0, 0.0, False), (0.1, 0.0, True), (0.9, 1.0, False), (1.0, 1.0, True)],
)
def test_an_amount_that_pays_for_no_row_is_not_worth_a_pass(
    amount: float, row_cost: float, *, pays: bool
) -> None:
    """A pass reads the whole input."""
    assert allowance(amount, row_cost=row_cost).pays_for_a_row == pays


def test_money_of_an_account_that_was_swept_pays_for_nothing() -> None:
    """An entry that is created anew is one that had been there: its money may be spent."""
    storage, allowed = MemoryStorage(), allowance(4.0, slots=1, row_cost=1.0, is_exact=True)
    first = purse(storage, allowed)
    assert spend(first, lambda: 1.0) == 4.0
    late = Purse(account(storage, allowed, "late"), allowed, 1, has_ended=lambda: True)
    for uri in [uri for uri in storage.objects if "accounts" in uri]:
        del storage.objects[uri]
    assert (spend(late, lambda: 1.0), late.is_out) == (0.0, True)
