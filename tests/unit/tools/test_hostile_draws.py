"""What CI leaves out of the hostile-table tests: all catalogs but one for each action."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from tests.integration.hostile_catalogs import left_out

SEEDS = [str(seed) for seed in range(40)]


@dataclass(frozen=True)
class Item:
    """A collected test, as far as the draw looks at it."""

    nodeid: str
    marks: tuple[str, ...] = ("hostile",)

    def get_closest_marker(self, name: str) -> str | None:
        """Return a mark, if the test has it."""
        return name if name in self.marks else None


def kept(items: list[Any], seed: str) -> list[str]:
    """Return the tests that are run."""
    others = left_out(items, seed)
    return [item.nodeid for item in items if item.nodeid not in others]


@pytest.mark.parametrize("name", ["t.py::drop[{}]", "t.py::alter[{}-column-rest added]"])
def test_each_action_is_tested_on_one_catalog_and_over_time_on_all(name: str) -> None:
    """A seed draws one catalog; the same seed draws the same one, whatever other tests exist."""
    items = [Item(name.format(catalog)) for catalog in ("rest", "sql", "nessie")]
    drawn = [kept(items, seed) for seed in SEEDS]
    assert {len(names) for names in drawn} == {1}
    assert {names[0] for names in drawn} == {item.nodeid for item in items}
    more = [Item("t.py::other[sql]"), *items]
    assert [kept(more, seed)[1:] for seed in SEEDS] == drawn


def test_a_catalog_that_does_not_support_an_action_is_not_drawn() -> None:
    """Otherwise the action would be tested on no catalog."""
    items = [Item("t[rest]"), Item("t[nessie]", ("hostile", "skip"))]
    assert {kept(items, seed)[0] for seed in SEEDS} == {"t[rest]"}


def test_a_test_selected_by_name_and_all_unmarked_tests_are_run() -> None:
    """There is only one catalog, or no mark, so nothing is drawn."""
    items = [Item("t[sql]"), Item("u[rest]", ()), Item("u[sql]", ())]
    assert all(kept(items, seed) == [item.nodeid for item in items] for seed in SEEDS)
