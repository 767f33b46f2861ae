"""Reading ahead: what comes next is fetched while the current item is at work.

Work comes in bursts: rows pass quickly until a row group is full, and then it is encoded. A reader
that fetches several items meanwhile keeps the store busy, and never waits for the next one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

_Item = TypeVar("_Item")
_Answer = TypeVar("_Answer")

# What is fetched beyond the current item.
AHEAD_BYTES = 32 << 20


def read_ahead(
    items: Iterable[_Item],
    *,
    size_of: Callable[[_Item], int],
    ask: Callable[[_Item], _Answer],
    at_least: int,
) -> Iterator[tuple[_Item, _Answer]]:
    """Yield each item with what asking for it gave; those behind it are asked for already.

    Args:
        items: What to fetch, in order.
        size_of: How many bytes an item brings.
        ask: Begins to fetch one.
        at_least: How many items are asked for beyond the current one, however large they are.
    """
    ahead: deque[tuple[_Item, _Answer]] = deque()
    # Of the items behind the first one, which is current.
    ahead_bytes = 0
    for item in items:
        size = size_of(item)
        while len(ahead) > at_least and ahead_bytes + size > AHEAD_BYTES:
            yield ahead.popleft()
            ahead_bytes -= size_of(ahead[0][0]) if ahead else 0
        ahead_bytes += size if ahead else 0
        ahead.append((item, ask(item)))
    while ahead:
        yield ahead.popleft()
