"""Indices of a dataset: a search finds new rows without them, but more slowly."""

from __future__ import annotations

import logging

from holdfast.errors import HoldfastError
from holdfast.plain_text import printable, told
from holdfast.sinks.lance.dataset import DatasetPlace

_log = logging.getLogger(__name__)


def unindexed_rows(place: DatasetPlace) -> dict[str, int]:
    """Return how many rows each index does not know yet; an index that knows all is left out.

    What cannot be found out is left out as well: the rows have landed, whatever an index says.
    """
    found: dict[str, int] = {}
    try:
        dataset = place.open()
        names = [one.name for one in dataset.describe_indices()]
        for name in names:
            left = int(dataset.stats.index_stats(name).get("num_unindexed_rows") or 0)
            if left:
                found[name] = left
    except (HoldfastError, ValueError, OSError, KeyError, NotImplementedError) as error:
        reason = printable(told(error, place.options)[0])
        _log.warning("the state of the indices of %s is not known: %s", place.uri, reason)
    return found
