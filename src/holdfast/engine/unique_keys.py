"""Unique keys: a quick proof on the driver that no key is covered twice.

Equal keys have equal hashes, so hashes that all differ prove it. Sorting sixteen million of them
takes a second; for more, and for keys whose hash is not computed here, Spark is asked. So is it
when two hashes are equal, which two different keys may have.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa

from holdfast.errors import LedgerDamagedError, StoreUnavailableError
from holdfast.ledger.key_files import KeyFiles, read_key_table
from holdfast.model.work import TaskRecord, Work
from holdfast.storage.port import StorageError
from holdfast.worker.key_hash import hash_sums, hashable, key_hashes

_ROWS_MAX = 16_000_000
_READS_AT_ONCE = 8


def all_differ(work: Work, finished: KeyFiles) -> bool:
    """Whether it is proven that no key is covered twice; False if that is not known.

    Raises:
        LedgerDamagedError: A key file is not as it was written.
        StoreUnavailableError: The store did not answer.
    """
    if work.proves_unique():
        return True
    records = work.with_keys
    if work.sums.rows > _ROWS_MAX:
        return False
    with ThreadPoolExecutor(max_workers=_READS_AT_ONCE) as pool:
        parts = list(pool.map(lambda record: _hashes(record, finished), records))
    found = [part for part in parts if part is not None]
    if len(found) < len(parts):
        return False
    hashes = np.concatenate(found)
    hashes.sort()
    return not bool(np.any(hashes[1:] == hashes[:-1]))


def _hashes(record: TaskRecord, finished: KeyFiles) -> np.ndarray | None:
    """Return the hashes of one record's keys; None if they are not computed here.

    Raises:
        LedgerDamagedError: The key file is not as it was written.
        StoreUnavailableError: The store did not answer.
    """
    uri = finished.uris[record.name]
    try:
        keys = read_key_table(finished.storage, uri)
    except (FileNotFoundError, pa.ArrowException) as error:
        raise LedgerDamagedError(uri=uri, reason=str(error)) from error
    except StorageError as error:
        raise StoreUnavailableError(uri=uri, reason=str(error)) from error
    if keys.num_rows != record.coverage.rows:
        raise LedgerDamagedError(
            uri=uri, reason=f"{keys.num_rows} keys, and {record.coverage.rows} were covered"
        )
    if not all(hashable(field.type) for field in keys.schema):
        return None
    hashes = key_hashes(_arrays(keys))
    if hash_sums(hashes) != (record.coverage.low, record.coverage.high):
        raise LedgerDamagedError(uri=uri, reason="other keys than were covered")
    return hashes


def _arrays(keys: pa.Table) -> Sequence[pa.Array]:
    return [column.combine_chunks() for column in keys.columns]
