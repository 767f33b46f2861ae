"""Scale: a history has a handful of rows, and no threads besides its actors.

What the product does only for large jobs or after days happens in small jobs and within minutes.
"""

from __future__ import annotations

import contextlib
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from holdfast.engine import (
    base,
    commit,
    input_check,
    large_index,
    passes,
    resolve,
    takeover,
)
from holdfast.ledger import parts, row_files
from holdfast.storage.runtime import IoRuntime
from holdfast.worker import checkpoints, key_index, key_search, replay
from tests.simulation.setting import Setting

_INLINE = IoRuntime(is_inline=True)
# Sizes that no history reaches.
_BOUNDS: tuple[tuple[Any, str], ...] = (
    (row_files, "_ROW_GROUP_BYTES"),
    (parts, "_PORTION_BYTES"),
    (passes, "_REPLAY_ITEM_BYTES_MIN"),
    (resolve, "_MERGED_FROM"),
    (input_check, "_ROWS_MAX"),
    (input_check, "_COMPARED_ROWS_MAX"),
)


@contextlib.contextmanager
def scaled_down(setting: Setting) -> Iterator[None]:
    """Give the product the sizes of a history while it runs."""
    values: list[tuple[Any, str, Any]] = [
        (passes, "_REPLAY_ITEM_BYTES", setting.replay_bytes),
        (resolve, "_OLD_AFTER_S", setting.old_after_s),
        (replay, "io_runtime", lambda: _INLINE),
        (key_index, "io_runtime", lambda: _INLINE),
        (key_search, "io_runtime", lambda: _INLINE),
        # What another history has read does not count.
        (key_index, "_last_read", ((), None)),
        # An actor that waits for another one's lock would wait for ever.
        (key_search, "_locked", lambda *_args, **_named: contextlib.nullcontext(enter_result=True)),
        (takeover, "_POLL_S", 5.0),
        (takeover, "_LATER_POLL_S", 20.0),
    ]
    if setting.low_bounds:
        values += [(module, name, 1) for module, name in _BOUNDS]
        values.append((checkpoints, "_RECENT_MAX", 2))  # Of the first two, one covers no rows.
    if setting.is_filtered:
        values.append((base, "_OLD_AFTER_S", setting.old_after_s))
        values += [(base, "_FILES_OF_A_JOB", 1)] if setting.low_bounds else []
    if setting.has_large_index:
        values += [(base, "SMALL_ROWS", 0), (large_index, "_ITEM_ROWS_MIN", 1)]
        values += [(large_index, "_BUCKET_BYTES", 16), (key_index, "_PIECE_BYTES", 16)]
    if "catalog outage" in setting.others:  # Otherwise no outage is long enough to give up.
        values.append((commit, "_UNKNOWN_MAX", 3))
    with contextlib.ExitStack() as patches, warnings.catch_warnings():
        if setting.has_large_index:  # A disk of its own.
            folder = patches.enter_context(tempfile.TemporaryDirectory())
            values.append((key_search, "_private", Path(folder)))
        for module, name, value in values:
            patches.enter_context(mock.patch.object(module, name, value))
        warnings.simplefilter("ignore")
        yield
