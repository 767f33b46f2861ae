"""The guards of upserts: each key is in one row afterwards, and no other row goes."""

from __future__ import annotations

from tests.guards.guard import Guard

_INDEX, _MATCHING = "worker/key_index.py", "sinks/iceberg/matching.py"
_VALUES, _SEARCH, _BUCKETS = "worker/key_values.py", "worker/key_search.py", "worker/key_buckets.py"
_UPSERT = "tests/unit/engine/test_commit_upsert.py"
_KEYS = "tests/unit/worker/test_key_index.py"
_LARGE = "tests/unit/worker/test_key_buckets.py"
_COUNTS = "tests/unit/engine/test_commit_upsert_large.py"

UPSERT_GUARDS = (
    Guard(
        name="upsert: an index is that of the work which is posted",
        file="engine/base.py",
        before="if (known.work, known.meaning) == (work.name, meaning):\n",
        after="if known.meaning == meaning:\n",
        test=f"{_UPSERT} -k more_rows_get_another_index",
    ),
    Guard(
        name="upsert: what was searched for other keys does not count",
        file=_MATCHING,
        before="return f\"{self.key.meaning} in {self.keys.name if self.keys else ''}\"\n",
        after="return self.key.meaning\n",
        test=f"{_UPSERT} -k more_rows_get_another_index",
    ),
    Guard(
        name="upsert: an index holds the keys of all staged rows",
        file="engine/base.py",
        before="if sum(file.rows for file in found) != rows:\n",
        after="if False:\n",
        test=f"{_UPSERT} -k lacks_keys",
    ),
    Guard(
        name="upsert: a row without a key is refused",
        file="sinks/iceberg/writer.py",
        before="        self._refuse_null_keys(rows)\n",
        after="",
        test=f"{_UPSERT} -k without_a_key",
    ),
    Guard(
        name="upsert: doubled keys are refused",
        file=_INDEX,
        before="        if doubled.num_rows:\n",
        after="        if False:\n",
        test=f"{_UPSERT} -k doubled",
    ),
    Guard(
        name="upsert: keys that share a hash are compared",
        file=_VALUES,
        before="        same = is_same(rows, at)\n",
        after="        same = np.ones(len(rows), dtype=bool)\n",
        test=f"{_KEYS} -k share_a_hash",
    ),
    Guard(
        name="upsert: a key with NULL is never found",
        file=_VALUES,
        before="            known &= column.is_valid().to_numpy(zero_copy_only=False)\n",
        after="            pass\n",
        test=f"{_KEYS} -k one_column",
    ),
    Guard(
        name="upsert: a file whose bound is a key is searched",
        file=_MATCHING,
        before='"some" if at < len(firsts) and firsts[at] <= upper else "none"',
        after='"some" if at < len(firsts) and firsts[at] < upper else "none"',
        test=f"{_UPSERT} -k edge_of_a_file",
    ),
    Guard(
        name="upsert: stretches of decimals are in the order of their values",
        file=_VALUES,
        before='        order = order.set_column(0, "0", keys.column(0))\n',
        after="        pass\n",
        test=f"{_KEYS} -k in_order",
    ),
    Guard(
        name="upsert: keys of a large index that share a hash are compared",
        file=_VALUES,
        before="        same = is_same(rows, at)\n",
        after="        same = np.ones(len(rows), dtype=bool)\n",
        test=f"{_LARGE} -k share_a_hash",
    ),
    Guard(
        name="upsert: keys that are doubled across pieces are refused",
        file=_BUCKETS,
        before="        if doubled := int(arranged.is_second.sum()):\n",
        after="        if doubled := 0:\n",
        test=f"{_LARGE} -k doubled_keys",
    ),
    Guard(
        name="upsert: slots of a piece are those that were written",
        file=_BUCKETS,
        before="            if sealed[:_DIGEST_BYTES] != _digest(part.name, slot, inner):\n",
        after="            if False:\n",
        test=f"{_LARGE} -k wrong_place",
    ),
    Guard(
        name="upsert: pieces that are lost are made again",
        file="engine/large_index.py",
        before="            if not damaged:\n",
        after="            if True:\n",
        test=f"{_COUNTS} -k made_again",
    ),
    Guard(
        name="upsert: an index in pieces is not an index",
        file="engine/base.py",
        before="            if known.is_in_pieces:\n",
        after="            if False:\n",
        test=f"{_COUNTS} -k goes_on_with_the_pieces",
    ),
    Guard(
        name="upsert: what an executor's disk has lost is fetched again",
        file=_SEARCH,
        before="        if zlib.crc32(data) != expected:\n",
        after="        if False:\n",
        test=f"{_LARGE} -k flipped",
    ),
    Guard(
        name="upsert: a folder that others can write is not used",
        file=_SEARCH,
        before="            if is_ours and not stat.S_IMODE(facts.st_mode) & 0o022:\n",
        after="            if is_ours:\n",
        test=f"{_LARGE} -k others_can_write",
    ),
    Guard(
        name="upsert: a row that a delete hides is not matched",
        file="sinks/iceberg/rewrite_rows.py",
        before="            hits.append(numbers[goes[part] & is_live[part]])\n",
        after="            hits.append(numbers[goes[part]])\n",
        test=f"{_COUNTS} -k delete_hides",
    ),
    Guard(
        name="upsert: a search that did not note its keys is not counted",
        file="engine/commit.py",
        before="is_known = all(rewrite.hits or not rewrite.removed_rows for rewrite in used)",
        after="is_known = True",
        test=f"{_COUNTS} -k earlier_version",
    ),
)
