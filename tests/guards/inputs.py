"""Guards of what is read of an input: its values, its keys, and the rows that are left."""

from __future__ import annotations

from tests.guards.guard import Guard

_ROWS = "tests/unit/engine/test_input_check_rows.py"
_HASH = "tests/unit/spark/test_dataframe.py"
_LEFT = "tests/spark/test_rows_left.py"

INPUT_GUARDS = (
    Guard(
        name="other values under the same keys are another input",
        before="        return (self.row_low, self.row_high) == (other.row_low, other.row_high)\n",
        after="        return True\n",
        test=_ROWS,
    ),
    Guard(
        name="sums of rows are known only if every record has them",
        before="        is_known = not self.rows_without_sums\n",
        after="        is_known = True\n",
        test=_ROWS,
    ),
    Guard(
        name="tasks sum the hash of each whole row",
        before="        if ROW_HASH in hashed:\n",
        after="        if False:\n",
        test=_ROWS,
    ),
    Guard(
        name="rows that were done without sums are not taken for compared",
        before="        if self._options.compares_rows and book.work.rows_without_sums:\n",
        after="        if False:\n",
        test=_ROWS,
    ),
    Guard(
        name="rows that landed without sums are not taken for compared",
        before="        if options.compares_rows and not covered.has_row_sums:\n",
        after="        if False:\n",
        test=_ROWS,
    ),
    Guard(
        name="rows of run.remaining are not compared by values",
        before="    if options.compares_rows:\n",
        after="    if False:\n",
        test=_ROWS,
    ),
    Guard(
        name="a NULL has a hash of its own",
        before='    return [f"{value} IS NULL", *_inner(value, kind, depth)]\n',
        after="    return _inner(value, kind, depth)\n",
        test=_HASH,
    ),
    Guard(
        name="an array is hashed with its length",
        before="        return [_size(value), *_elements(value, kind.elementType, depth)]\n",
        after="        return [*_elements(value, kind.elementType, depth)]\n",
        test=_HASH,
    ),
    Guard(
        name="where a NULL is in an array matters",
        before='    return [f"if(exists({array}, {is_null}), {where}, 0L)", array]\n',
        after="    return [array]\n",
        test=_HASH,
    ),
    Guard(
        name="a map is hashed whatever the order of its entries",
        before='    return f"sort_array(transform(map_entries({value}), '
        "{entry} -> xxhash64({', '.join(parts)})))\"\n",
        after='    return f"transform(map_entries({value}), '
        "{entry} -> xxhash64({', '.join(parts)}))\"\n",
        test=_HASH,
    ),
    Guard(
        name="another column or type is another hash",
        before="    parts = [f\"{int.from_bytes(salt, 'big') >> _SALT_SHIFT}L\"]\n",
        after="    parts: list[str] = []\n",
        test=_HASH,
    ),
    Guard(
        name="the order of columns is not hashed",
        before="sorted(found, key=lambda pair: pair[0].name):\n",
        after="found:\n",
        test=_HASH,
    ),
    Guard(
        name="finished keys are broadcast only if they fit into the heap",
        before="        self._is_small = self._fits(finished.rows)\n",
        after="        self._is_small = True\n",
        test=f"{_LEFT}::test_rows_left_are_exact_and_stay_where_they_are",
    ),
    Guard(
        name="keys left are found without a broadcast of all finished keys",
        before='found = keys.join(self._done().hint("merge"), same, "left_anti")',
        after='found = keys.join(self._done(), same, "left_anti")',
        test=f"{_LEFT}::test_too_many_finished_keys_are_not_broadcast_to_find_the_keys_left",
    ),
    Guard(
        name="a finished key that passes a filter by mistake is not done again",
        before='return found.join(sf.broadcast(mistaken), _same(self._key), "left_anti")',
        after="return found",
        test=f"{_LEFT}::test_keys_with_the_same_hash_are_told_apart",
    ),
    Guard(
        name="a key left that passes a filter by mistake is not lost",
        before="        sure = sf.col(_MARK).isNull()\n",
        after="        sure = sf.lit(True)\n",
        test=f"{_LEFT}::test_keys_with_the_same_hash_are_told_apart",
    ),
    Guard(
        name="rows without a key are not lost in a join with the keys left",
        before="        if sums.null_keys:  # No join would find them.\n",
        after="        if False:\n",
        test=f"{_LEFT}::test_rows_without_a_key_are_refused_before_they_could_be_lost",
    ),
    Guard(
        name="what is kept for a resume is freed",
        before="            frame.unpersist()\n",
        after="            pass\n",
        test=f"{_LEFT}::test_what_executors_keep_is_freed",
    ),
    Guard(
        name="the smallest heap decides what is broadcast",
        before="    return int(min(heaps) * _BROADCAST_SHARE)\n",
        after="    return int(max(heaps) * _BROADCAST_SHARE)\n",
        test="tests/unit/spark/test_session.py",
    ),
    Guard(
        name="a text is hashed from the hash of the column before it",
        before="= _striped(hashes[rows], data, at[rows], sizes[rows])\n",
        after="= _striped(hashes[rows] * 0 + 42, data, at[rows], sizes[rows])\n",
        test="tests/unit/worker/test_coverage.py",
    ),
    Guard(
        name="a value that its column cannot hold is an error, not another value",
        before="    return column.cast(kind)\n",
        after="    return column.cast(kind, safe=False)\n",
        test="tests/unit/sources/test_iceberg_rows.py -k cannot_hold_is_an",
    ),
)
