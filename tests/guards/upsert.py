"""The guards of upserts: each key is in one row afterwards, and no other row goes."""

from __future__ import annotations

from tests.guards.guard import Guard

_INDEX, _MATCHING = "worker/key_index.py", "sinks/iceberg/matching.py"
_UPSERT = "tests/unit/engine/test_commit_upsert.py"
_KEYS = "tests/unit/worker/test_key_index.py"

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
        before="        if doubles.num_rows:\n",
        after="        if False:\n",
        test=f"{_UPSERT} -k doubled",
    ),
    Guard(
        name="upsert: keys that share a hash are compared",
        file=_INDEX,
        before="            same = self._same(columns, rows, self._order[at])\n",
        after="            same = np.ones(len(rows), dtype=bool)\n",
        test=f"{_KEYS} -k share_a_hash",
    ),
    Guard(
        name="upsert: a key with NULL is never found",
        file=_INDEX,
        before="                known &= column.is_valid().to_numpy(zero_copy_only=False)\n",
        after="                pass\n",
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
        file=_INDEX,
        before='        order = order.set_column(0, "0", keys.column(0))\n',
        after="        pass\n",
        test=f"{_KEYS} -k in_order",
    ),
    Guard(
        name="upsert: failed rows are merged when they are retried",
        file="run.py",
        before="        write = again.upsert if identity.on else again.append\n",
        after="        write = again.append\n",
        test="tests/unit/test_run.py -k verb_of_their_run",
    ),
)
