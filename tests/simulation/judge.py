"""Judge: run one history, report what is wrong with it, and shrink a failure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.simulation.history import History
from tests.simulation.invariants import violations
from tests.simulation.lance_others import LANCE_OTHERS
from tests.simulation.others import OTHERS
from tests.simulation.setting import TableFormat

_TRIALS_MAX = 3_000
KINDS_OF_OTHERS: dict[TableFormat, dict[str, Callable[[History], None]]] = {
    "iceberg": OTHERS,
    "lance": LANCE_OTHERS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The outcome of one history."""

    seed: int
    wrong: tuple[str, ...]
    counts: Counter[str]
    decisions: tuple[int, ...]
    trace: tuple[str, ...] = ()


def judged(seed: int, given: Sequence[int] | None = None, *, is_traced: bool = False) -> Verdict:
    """Run one history and check what is left of it.

    Args:
        seed: Where its decisions come from.
        given: Decisions to follow instead.
        is_traced: Whether to record each step.
    """
    history = History(seed, KINDS_OF_OTHERS, given, is_traced=is_traced)
    try:
        history.run()
        wrong = violations(history)
    except Exception as error:  # noqa: BLE001 - whatever it is, it must not have happened.
        wrong = [f"the history broke off: {error!r}"]
    counts = history.world.counts
    counts["histories"] = 1
    counts["calls"] = history.world.steps
    counts["landed"] = len(history.table.ever)
    counts["on lance"] = int(history.setting.format == "lance")
    counts["by a filter"] = int(history.setting.has_filter)
    counts["by a key"] = int(history.setting.is_keyed)
    counts["with deletes"] = int(bool(history.setting.deleting))
    counts["by a large index"] = int(history.setting.has_large_index)
    counts["starts"] = len(history.starts)
    return Verdict(
        seed=seed,
        wrong=tuple(wrong),
        counts=counts,
        decisions=tuple(history.world.chance.taken),
        trace=tuple(history.world.trace),
    )


def shrunk(seed: int, decisions: Sequence[int]) -> tuple[int, ...]:
    """Return fewer and simpler decisions that still end in a violation.

    First the end is cut off, then ever smaller stretches of decisions are set to "nothing special".
    """
    best, trials = list(decisions), 0
    size = max(1, len(best) // 2)
    while size and trials < _TRIALS_MAX:
        changed = False
        for start in range(0, len(best), size):
            end = min(start + size, len(best))
            if not any(best[start:end]):
                continue
            trial = [*best[:start], *[0] * (end - start), *best[end:]]
            trials += 1
            if judged(seed, trial).wrong:
                best, changed = trial, True
        if not changed or size > 1:
            size //= 2
    while best and not best[-1]:
        best.pop()
    return tuple(best)
