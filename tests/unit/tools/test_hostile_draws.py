"""What CI leaves out of the tests of hostile tables: all catalogs but one, for each thing done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from tests.integration.hostile_catalogs import left_out

SEEDS = [str(seed) for seed in range(40)]


@dataclass(frozen=True)
class Item:
    """What is known of a collected test."""

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
def test_each_thing_is_done_on_one_catalog_and_in_time_on_all(name: str) -> None:
    """A seed draws one; the same seed the same one, whatever else is there."""
    items = [Item(name.format(catalog)) for catalog in ("rest", "sql", "nessie")]
    drawn = [kept(items, seed) for seed in SEEDS]
    assert {len(one) for one in drawn} == {1}
    assert {one[0] for one in drawn} == {item.nodeid for item in items}
    more = [Item("t.py::other[sql]"), *items]
    assert [kept(more, seed)[1:] for seed in SEEDS] == drawn


def test_a_catalog_on_which_a_thing_cannot_be_done_is_not_drawn() -> None:
    """Else the thing would be done on none."""
    items = [Item("t[rest]"), Item("t[nessie]", ("hostile", "skip"))]
    assert {kept(items, seed)[0] for seed in SEEDS} == {"t[rest]"}


def test_what_was_asked_for_by_name_and_all_other_tests_are_run() -> None:
    """There is nothing to draw from."""
    items = [Item("t[sql]"), Item("u[rest]", ()), Item("u[sql]", ())]
    assert all(kept(items, seed) == [item.nodeid for item in items] for seed in SEEDS)
