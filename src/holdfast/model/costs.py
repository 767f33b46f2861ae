"""Costs: what a run has paid for answers, what killed tasks held besides, and words for both.

Only what a task has recorded is known to be paid. A killed task may have spent more: with a budget
at most what it had taken and not recorded, without one about half a checkpoint interval's worth.
That is a figure of its own everywhere; only a budget counts it as if it were spent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from holdfast.model.work import Work

# What may have become of an amount that is not recorded as paid.
HELD = "by killed tasks, perhaps spent"
# Sums of costs are rounded.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What a run has spent on answers."""

    # Recorded as paid; and of it, what was paid for rows that do not count.
    paid: float
    lost: float
    # What killed tasks may have spent besides.
    held: float

    @classmethod
    def of(
        cls, work: Work, *, dropped_cost: float, killed_seconds: float, killed_cost: float
    ) -> Spent:
        """Return what was spent: by the one rule for all reports.

        Args:
            work: The work that counts.
            dropped_cost: What was paid for rows that were left out.
            killed_seconds: How long tasks without a budget had worked since their last record when
                they were killed; priced at the average rate of this work.
            killed_cost: What killed tasks had taken of a budget, and not recorded.
        """
        lost = sum(record.lost_cost for record in work.records) + dropped_cost
        rate = work.cost / work.seconds if work.seconds else 0.0
        return cls(paid=work.cost + lost, lost=lost, held=killed_cost + killed_seconds * rate)

    @property
    def at_most(self) -> float:
        """What counts against a budget."""
        return self.paid + self.held


class Costs(Protocol):
    """What a run has cost: see `Report`."""

    @property
    def cost(self) -> float:
        """All that is recorded as paid."""

    @property
    def kept_cost(self) -> float:
        """Of it, what earlier starts had paid for rows that count."""

    @property
    def lost_cost(self) -> float:
        """Of it, what was paid for rows that do not count."""

    @property
    def held_cost(self) -> float:
        """What killed tasks may have spent besides."""

    @property
    def budget(self) -> float | None:
        """The most that all may be."""


def cost_lines(costs: Costs) -> list[tuple[str, str]]:
    """Return what a run has cost, and what is left of its budget, as names and values."""
    found = []
    if costs.cost:
        found.append(("cost", cost_text(costs.cost, costs.kept_cost, costs.lost_cost)))
    if costs.held_cost:
        found.append(("held", held_text(costs.held_cost)))
    if costs.budget is not None:
        found.append(("budget", budget_text(costs.budget, costs.cost, costs.held_cost)))
    return found


def cost_text(cost: float, kept: float, lost: float) -> str:
    """Say what a run has cost.

    Args:
        cost: All that is recorded as paid.
        kept: Of it, what earlier starts had paid for rows that count.
        lost: Of it, what was paid for rows that do not count.
    """
    parts = [f"{readable_amount(cost)} paid"]
    parts += [f"{readable_amount(lost)} of it lost"] if lost else []
    parts += [f"{readable_amount(kept)} saved by resuming"] if kept else []
    return ", ".join(parts)


def held_text(held: float) -> str:
    """Say what killed tasks may have spent beside what is recorded as paid."""
    return f"{readable_amount(held)} {HELD}"


def budget_text(budget: float, spent: float, held: float) -> str:
    """Say what is left of a budget.

    Args:
        budget: The budget.
        spent: What is recorded as paid.
        held: What killed tasks may have spent besides.
    """
    left = left_of(budget, spent, held)
    parts = [f"{readable_amount(spent)} of {readable_amount(budget)} spent"]
    parts += [f"{readable_amount(held)} held by killed tasks"] if held else []
    rest = f"{readable_amount(left)} left" if left >= 0 else f"{readable_amount(-left)} too much"
    return ", ".join([*parts, rest])


def left_of(budget: float, spent: float, held: float) -> float:
    """Return what is left of a budget; below 0 if what is paid exceeds it, not only by rounding."""
    left = budget - spent - held
    left = left if left >= 0 else min(0.0, budget - spent)
    return left if abs(left) > _ROUNDING * budget else 0.0


def readable_amount(value: float) -> str:
    """Return an amount of money in readable form: `1,234.5`, or three digits of a small one."""
    if abs(value) < 1:
        return f"{value:.3g}"
    return f"{value:,.2f}".rstrip("0").rstrip(".")
