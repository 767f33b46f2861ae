"""Guards of the budget: what keeps the bill below it, and counts what was paid."""

from __future__ import annotations

from tests.guards.guard import Guard

_RUNS = "tests/unit/engine/test_passes_budget.py"
_PURSES = "tests/unit/worker/test_budget.py"

BUDGET_GUARDS = (
    Guard(
        name="budget: an answer without a price is not set aside",
        before="isinstance(failure.error, CostError) and self._purse.is_limited",
        after="False",
        test=f"{_RUNS} -k without_a_price",
    ),
    Guard(
        name="budget: a negative price does not fill it up",
        before="if not 0 <= cost <= _ANSWER_COST_MAX:",
        after="if not abs(cost) <= _ANSWER_COST_MAX:",
        test="tests/unit/model/test_stored.py -k not_negative",
    ),
    Guard(
        name="budget: a guess of what was lost is not money",
        before="    is_capped = any(claim.budget is not None",
        after="    is_capped = any(False",
        test=f"{_RUNS} -k guess",
    ),
    Guard(
        name="budget: an entry of another run is no entry",
        before="if not self._layout.owns(entry.run):",
        after="if False:",
        test=f"{_PURSES} -k another_run",
    ),
    Guard(
        name="budget: what is taken after the run has ended pays for nothing",
        before="self._is_over = self._has_ended()",
        after="self._is_over = False",
        test="tests/unit/worker/test_budget.py -k swept",
    ),
    Guard(
        name="budget: a task that cannot pay for a row of a batch ends",
        before="    count = affords(rows.num_rows) if rows.num_rows else 0\n",
        after="    count = rows.num_rows\n",
        test=f"{_RUNS} -k batch_transform",
    ),
    Guard(
        name="budget: a row function's call is paid for before it starts",
        before=" and self._purse.affords(1, in_flight) > 0",
        after="",
        test=f"{_RUNS} -k row_function",
    ),
    Guard(
        name="budget: calls in flight are paid from what a task has",
        before="self._slack) / each) - in_flight if each else wanted\n",
        after="self._slack) / each) if each else wanted\n",
        test=_PURSES,
    ),
    Guard(
        name="budget: before the first answer one row is called for",
        before="        if each is None and in_flight:\n            return 0\n",
        after="        if each is None and in_flight:\n            return wanted\n",
        test=_PURSES,
    ),
    Guard(
        name="budget: an entry that others have created first is theirs",
        before="            if found == data:\n",
        after="            if found:\n",
        test=_PURSES,
    ),
    Guard(
        name="budget: a task's own earlier entry is not a new one",
        before="        self._appended += 1\n",
        after="",
        test=_PURSES,
    ),
    Guard(
        name="budget: a closed account gives nothing",
        before="            if last.is_closed or last.balance <= self._slack:\n",
        after="            if last.balance <= self._slack:\n",
        test=_PURSES,
    ),
    Guard(
        name="budget: the account of a dead driver's tasks is closed",
        before="            account.close()\n",
        after="            account.taken()\n",
        test=f"{_RUNS} -k driver_counts",
    ),
    Guard(
        name="budget: what killed tasks had taken counts as spent",
        before="        self.tally.killed_cost += killed_cost(accounts, found)\n",
        after="",
        test=f"{_RUNS} -k any_write",
    ),
    Guard(
        name="budget: what killed tasks held is not reported as paid",
        before="        return cls(paid=work.cost + lost, lost=",
        after="        return cls(paid=work.cost + lost + killed_cost, lost=",
        test=f"{_RUNS} -k large_budget",
    ),
    Guard(
        name="budget: what killed tasks held counts against it",
        before="        return self.paid + self.held\n",
        after="        return self.paid\n",
        test=f"{_RUNS} -k any_write",
    ),
    Guard(
        name="budget: what killed tasks had taken is carried across seals",
        before="            self.tally.killed_cost = last.killed_cost\n",
        after="",
        test=f"{_RUNS} -k any_write",
    ),
    Guard(
        name="budget: a stale listing does not hide what was taken",
        before="        return known[1] if known and known[1].is_closed else self",
        after="        return self",
        test=_PURSES,
    ),
    Guard(
        name="budget: what earlier starts have spent counts",
        before="            max(0.0, options.budget - book.spent.at_most),\n",
        after="            options.budget,\n",
        test=f"{_RUNS} -k higher",
    ),
    Guard(
        name="budget: a task that ended for want of money is not complete",
        before="        if self._purse.is_out:\n",
        after="        if False:\n",
        test=f"{_RUNS} -k many_more",
    ),
    Guard(
        name="budget: an answer is paid for whatever becomes of it",
        before="        lost = spent - self._counted + given_up\n",
        after="        lost = 0.0\n",
        test="tests/unit/model/test_costs.py -k did_not_fit",
    ),
    Guard(
        name="budget: needs a cost",
        before="        options.refuse_unpriced()\n",
        after="",
        test="tests/unit/test_run.py -k budget",
    ),
    Guard(
        name="budget: what a failed task has paid since its last record is lost, not saved",
        before="lost = spent - self._counted + given_up\n",
        after="lost = spent - self._counted - given_up\n",
        test="tests/unit/worker/test_checkpoints_records.py -k failed_task_has_paid",
    ),
)
