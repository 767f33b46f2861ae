"""Ranges: exactly the rows that sets of row numbers would give."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.coverage import Ranges, Span

SPANS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=8)


def numbers(ranges: Ranges) -> set[int]:
    """Return the rows one by one."""
    return {number for start, stop in ranges for number in range(start, stop)}


def of(spans: list[Span]) -> set[int]:
    """Return the rows of spans that may be empty or overlap."""
    return {number for start, stop in spans for number in range(start, stop)}


@given(SPANS)
def test_spans_are_in_order_and_never_touch(spans: list[Span]) -> None:
    """So equal rows are equal ranges, however they were given."""
    found = Ranges.of(spans)
    assert numbers(found) == of(spans)
    assert found.rows == len(of(spans))
    assert bool(found) == bool(of(spans))
    edges = [edge for span in found for edge in span]
    assert edges == sorted(set(edges))


@given(SPANS, SPANS)
def test_plus_minus_and_overlap_are_those_of_sets(some: list[Span], others: list[Span]) -> None:
    """Nothing is lost and nothing counted twice."""
    a, b = Ranges.of(some), Ranges.of(others)
    assert a.plus(b) == Ranges.of([*some, *others])
    assert numbers(a.minus(b)) == of(some) - of(others)
    assert numbers(a.overlap(b)) == of(some) & of(others)
    assert a.minus(b) == Ranges.of(a.minus(b).spans)
    assert a.minus(b).rows + a.overlap(b).rows == a.rows
