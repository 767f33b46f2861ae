"""Budget: what the tasks of one job may spend together, and what one task has taken of it.

The driver opens an account with what is left of the run's budget. A task takes money before it
calls the transform, a little at a time, and gives back what it has not spent. So the account says
how much the job has spent at most, whatever Spark starts twice and whatever is killed.

An account is a few chains of create-once entries, each with the balance after it. Money is taken by
creating the next entry. There is more than one chain only so that many tasks need not queue.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter

import msgspec

from holdfast.errors import LedgerDamagedError, StoreUnavailableError
from holdfast.failpoints import failpoint
from holdfast.ledger.layout import RunLayout
from holdfast.ledger.store import answers, create_once, list_objects
from holdfast.model.records import open_json, seal_json
from holdfast.model.stored import CHAINS_MAX, Cost, Count, RecordDamagedError, damaged, typed
from holdfast.storage.port import Storage

# ---- The allowance: how the tasks of a job divide what is left

# A chain that pays for fewer rows than this is not worth having.
_ROWS_A_CHAIN = 64
# A task holds about this part of what its slot could spend: it may be lost in a kill.
_PART = 32
# Sums of costs are rounded.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """What the tasks of a job may spend together. Pickled with the plan."""

    amount: float
    chains: int
    # How much a task takes at a time, unless its next row needs more.
    unit: float
    # What a row costs: exactly, or on average so far; 0 if that is not known.
    row_cost: float
    is_exact: bool

    @classmethod
    def of(cls, amount: float, *, slots: int, row_cost: float, is_exact: bool) -> Allowance:
        """Return how tasks divide an amount.

        Args:
            amount: What is left of the budget.
            slots: How many tasks run at a time.
            row_cost: What a row costs, as far as known.
            is_exact: Whether each row costs exactly that.
        """
        chains = min(CHAINS_MAX, slots)
        if row_cost > 0:
            chains = min(chains, int(amount / (row_cost * _ROWS_A_CHAIN)))
        return cls(
            amount=amount,
            chains=max(1, chains),
            unit=max(row_cost, amount / (_PART * slots)),
            row_cost=row_cost,
            is_exact=is_exact,
        )

    @property
    def pays_for_a_row(self) -> bool:
        """Whether it pays for one more row."""
        return self.amount > 0 and self.amount * (1 + _ROUNDING) >= self.row_cost


# ---- The account: chains of entries in the ledger

_TRIES_MAX = 10_000
# After so many entries of others in a row, a listing shows the last one sooner.
_TRIES_A_LOOK = 4


class Entry(msgspec.Struct, frozen=True):
    """The last entry of a chain: its balance, and what tasks have reported."""

    balance: Cost
    # What answers have cost, and how many rows they were for.
    cost: Cost = 0.0
    rows: Count = 0
    is_closed: bool = False
    # The run's nonce, once written.
    run: str = ""


Change = Callable[[Entry], Entry | None]


class Account:
    """The account of one job, for one task or for the driver."""

    def __init__(  # noqa: PLR0913 - what an account is made of, and its ports.
        self,
        storage: Storage,
        layout: RunLayout,
        tasks: str,
        *,
        amount: float,
        chains: int,
        nonce: str,
        sleep: Callable[[float], None],
    ) -> None:
        """Name the account; nothing is read yet.

        Args:
            storage: How the store is reached.
            layout: Where the run's objects are.
            tasks: The folder of the job's task logs.
            amount: What it was opened with.
            chains: How many chains it has.
            nonce: Tells its user's entries from others'.
            sleep: How to pause between attempts.
        """
        self._storage = storage
        self._layout = layout
        self._folder = layout.account(tasks)
        self._first = Entry(balance=amount / chains)
        self.amount = amount
        self.chains = chains
        self._nonce = nonce
        self._appended = 0
        self._sleep = sleep
        # The last entry of each chain that is known, with its number.
        self._known: dict[int, tuple[int, Entry]] = {}

    def append(self, chain: int, change: Change) -> tuple[Entry, Entry] | None:
        """Append what `change` makes of a chain's last entry; return both.

        None if it makes nothing of the last entry there is.

        Raises:
            LedgerDamagedError: An entry is not as it was written.
            StoreUnavailableError: The store gave no definite answer.
        """
        is_fresh = chain not in self._known
        number, last = self._known.get(chain) or self._look(chain)
        for tries in range(1, _TRIES_MAX):
            entry = change(last)
            if entry is None and is_fresh:
                return None
            if entry is None:  # Others may have added since.
                is_fresh = True
                number, last = self._look(chain)
                continue
            uri, data = self._uri(chain, number + 1), self._encoded(entry)
            failpoint("before-entry")
            found = create_once(self._storage, uri, data, sleep=self._sleep)
            failpoint("after-entry")
            if found == data:
                self._known[chain] = number + 1, entry
                return last, entry
            number, last = number + 1, self._decoded(uri, found)
            self._known[chain] = number, last
            if tries % _TRIES_A_LOOK == 0:
                number, last = max((number, last), self._look(chain), key=itemgetter(0))
        raise StoreUnavailableError(uri=self._folder, reason="other tasks took every entry")

    def close(self) -> None:
        """Let no task take any more.

        Raises:
            StoreError: The ledger is damaged or does not answer.
        """
        for chain in range(self.chains):
            self.append(chain, _closed)

    def taken(self) -> float:
        """Return what tasks have taken and not given back; only reads.

        Raises:
            StoreError: The ledger is damaged or does not answer.
        """
        left = sum(self._last(chain).balance for chain in range(self.chains))
        return _rounded(self.amount - left, self.amount)

    def killed_cost(self, recorded: float) -> float:
        """Return what tasks have taken and neither recorded as spent nor given back.

        They were killed, and may have spent it.

        Args:
            recorded: What all records of the job's tasks say was spent.

        Raises:
            StoreError: The ledger is damaged or does not answer.
        """
        return max(0.0, _rounded(self.taken() - recorded, self.amount))

    def _last(self, chain: int) -> Entry:
        # Nothing follows an entry that closes a chain. A listing may be stale.
        known = self._known.get(chain)
        return known[1] if known and known[1].is_closed else self._look(chain)[1]

    def _look(self, chain: int) -> tuple[int, Entry]:
        folder = f"{self._folder}/{chain:02d}"
        with answers(folder):
            hundreds = self._storage.folders(folder)
        uris = list_objects(self._storage, f"{folder}/{hundreds[-1]}") if hundreds else []
        if not uris:
            return 0, self._first
        with answers(uris[-1]):
            (data,) = self._storage.get_many(uris[-1:])
        if data is None:
            raise LedgerDamagedError(uri=uris[-1], reason="listed, but gone when read")
        entry = self._decoded(uris[-1], data)
        self._known[chain] = int(uris[-1].rpartition("/")[2]), entry
        return self._known[chain]

    def _uri(self, chain: int, number: int) -> str:
        # In folders of a hundred, so that the last one is found in short listings.
        return f"{self._folder}/{chain:02d}/{number // 100:06d}/{number:08d}"

    def _encoded(self, entry: Entry) -> bytes:
        # No two are equal: after a stale listing its user meets its own earlier entries.
        self._appended += 1
        nonce = f"{self._nonce}-{self._appended}"
        run = self._layout.nonce
        return seal_json({**msgspec.structs.asdict(entry), "run": run, "nonce": nonce})

    def _decoded(self, uri: str, data: bytes) -> Entry:
        try:
            entry = typed(open_json(data), Entry)
        except RecordDamagedError as error:
            raise damaged(uri, error) from error
        if not self._layout.owns(entry.run):
            raise LedgerDamagedError(uri=uri, reason="it belongs to another run")
        return entry


def _closed(entry: Entry) -> Entry | None:
    return None if entry.is_closed else msgspec.structs.replace(entry, is_closed=True)


def _rounded(value: float, whole: float) -> float:
    """Return a difference, or 0 if it is only due to rounding."""
    return 0.0 if abs(value) <= _ROUNDING * abs(whole) else value


# ---- The purse: what one task has taken and spent


class Purse:
    """What one task has spent, and how many more rows it can pay for."""

    def __init__(
        self,
        account: Account | None = None,
        allowance: Allowance | None = None,
        place: int = 0,
        has_ended: Callable[[], bool] = lambda: False,
    ) -> None:
        """Start with nothing taken.

        Args:
            account: Where money is taken from; None if rows are not limited.
            allowance: How the job's tasks divide it.
            place: The task's position in the job.
            has_ended: Whether the run has gone on without the job.
        """
        self._has_ended = has_ended
        self._is_over = False
        self._account = account
        self._allowance = allowance
        self._chain = place
        self._held = 0.0
        self._is_dry = False
        self.spent = 0.0
        self._rows = 0
        # What its entries have said of that; and the last entry that it has seen.
        self._said = (0.0, 0)
        self._seen = Entry(balance=0.0)
        # Whether it could not pay for a row that was there.
        self.is_out = False

    def pay(self, cost: float, rows: int) -> None:
        """Pay for the answer of some rows.

        Raises:
            StoreError: The ledger is damaged or does not answer.
        """
        self.spent += cost
        self._rows += rows
        if self._left < -self._slack:  # At once, so that a kill does not hide it.
            self._take(-self._left)

    def affords(self, wanted: int, in_flight: int = 0) -> int:
        """Return for how many of some more rows it can pay; takes what they need, if it is there.

        Before the first answer the cost of a row is unknown: then one row is called for.

        Args:
            wanted: How many rows are to be called for.
            in_flight: For how many others there is no answer yet.

        Raises:
            StoreError: The ledger is damaged or does not answer.
        """
        if self._allowance is None:
            return wanted
        if self._row_cost() is None and not self._is_enough(0.0):
            self._take(0.0)  # The entry says what rows have cost others.
        each = self._row_cost()
        if each is None and in_flight:
            return 0
        if each is None:
            wanted, each = 1, 0.0
        if self._left < each * (in_flight + wanted):
            self._take(each * (in_flight + wanted) - self._left)
        while not self._is_enough(each * (in_flight + 1)) and not self._is_dry:
            self._take(each * (in_flight + 1) - self._left)
        found = 0
        if self._is_enough(each) and not self._is_over:
            rows = int((self._left + self._slack) / each) - in_flight if each else wanted
            found = max(0, min(wanted, rows))
        self.is_out |= not found and not in_flight
        return found

    def settle(self) -> None:
        """Give back what is left.

        Raises:
            StoreError: The ledger is damaged or does not answer.
        """
        if self._account is None or (not self._left and self._said == (self.spent, self._rows)):
            return

        def change(last: Entry) -> Entry | None:
            return None if last.is_closed else self._entry(last, -self._left)

        if self._account.append(self._chain % self._account.chains, change):
            self._held, self._said = self.spent, (self.spent, self._rows)

    @property
    def is_limited(self) -> bool:
        """Whether rows must be paid for."""
        return self._allowance is not None

    @property
    def _left(self) -> float:
        return self._held - self.spent

    @property
    def _slack(self) -> float:
        return _ROUNDING * self._allowance.amount if self._allowance else 0.0

    def _is_enough(self, needed: float) -> bool:
        return self._left > self._slack and self._left + self._slack >= needed

    def _row_cost(self) -> float | None:
        """Return what a row costs at most, on average; None if that is not known."""
        allowance, seen = self._allowance, self._seen
        if allowance is None or allowance.is_exact:
            return allowance.row_cost if allowance else 0.0
        found = [allowance.row_cost] if allowance.row_cost > 0 else []
        found += [self.spent / self._rows] if self._rows else []
        found += [seen.cost / seen.rows] if seen.rows else []
        return max(0.0, *found) if found else None

    def _take(self, needed: float) -> None:
        """Take some more from the first chain that has it."""
        account, allowance = self._account, self._allowance
        if account is None or allowance is None or self._is_dry:
            return

        def change(last: Entry) -> Entry | None:
            if last.is_closed or last.balance <= self._slack:
                return None
            amount = max(allowance.unit, min(needed, last.balance / 4))
            # A rest that is too small for anything is taken, too.
            return self._entry(last, amount if amount < last.balance * 0.999 else last.balance)

        for _ in range(account.chains):
            if found := account.append(self._chain % account.chains, change):
                before, self._seen = found
                self._held += before.balance - self._seen.balance
                self._said = (self.spent, self._rows)
                # A sweep deletes entries, but not before the run has ended. So what was taken
                # counts only if it had not: else it may be money that was taken before.
                self._is_over = self._has_ended()
                return
            self._chain += 1
        self._is_dry = True

    def _entry(self, last: Entry, amount: float) -> Entry:
        """Return the entry after one, by which an amount is taken."""
        cost, rows = self._said
        return Entry(
            balance=last.balance - amount,
            cost=last.cost + self.spent - cost,
            rows=last.rows + self._rows - rows,
        )
