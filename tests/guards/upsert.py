"""The guards of upserts: each key is in one row afterwards, and no other row goes."""

from __future__ import annotations

from tests.guards.guard import Guard

_INDEX, _MATCHING = "worker/key_index.py", "sinks/iceberg/matching.py"
_UPSERT = "tests/unit/engine/test_commit_upsert.py"
_KEYS = "tests/unit/worker/test_key_index.py"
_DELETED, _WRITER = "sinks/iceberg/deleted_keys.py", "sinks/iceberg/writer.py"
_DELETES = "tests/unit/engine/test_commit_upsert_deletes.py"
_FLAGS = "tests/unit/sinks/iceberg/test_deleted_keys.py"
_TASKS = "tests/unit/worker/test_task_rows_that_delete.py"

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
        name="deletes: the index holds the keys of rows that delete",
        file="engine/base.py",
        before="for group in groups for file in group.with_keys]\n",
        after="for group in groups for file in group.files]\n",
        test=f"{_DELETES} -k updated_deleted",
    ),
    Guard(
        name="deletes: a sweep takes the files of keys",
        file="engine/cleanup.py",
        before="landed.update(sizes_of(work.adds))",
        after="landed.update(sizes_of(work.groups))",
        test=f"{_DELETES} -k a_sweep_deletes",
    ),
    Guard(
        name="deletes: only groups of rows are merged and published",
        file="engine/resolve.py",
        before="    groups = book.work.adds\n",
        after="    groups = book.work.groups\n",
        test=f"{_DELETES} -k updated_deleted",
    ),
    Guard(
        name="deletes: a flag that is NULL deletes nothing",
        file=_DELETED,
        before="pc.fill_null(column, fill_value=False)",
        after="pc.fill_null(column, fill_value=True)",
        test=f"{_FLAGS} -k null_does_not",
    ),
    Guard(
        name="deletes: a flag is boolean",
        file=_DELETED,
        before="        if not pa.types.is_boolean(column.type):\n",
        after="        column = column.cast(pa.bool_(), safe=False)\n        if False:\n",
        test=f"{_FLAGS} -k not_boolean",
    ),
    Guard(
        name="deletes: the output has the flag once",
        file=_DELETED,
        before="        if len(found) != 1:\n",
        after="        if not found:\n            return batch, batch[:0]\n        if False:\n",
        test=f"{_FLAGS} -k column_once",
    ),
    Guard(
        name="deletes: each answer says whether its row deletes",
        file="worker/row_steps.py",
        before="if deletes and any(deletes not in row for row in rows):\n",
        after="if False:\n",
        test=f"{_TASKS} -k does_not_say",
    ),
    Guard(
        name="deletes: a job without the flag is refused before it runs",
        file=_WRITER,
        before="pa.field(self.delete_column, pa.bool_(), nullable=False)",
        after="pa.field(self.delete_column, pa.bool_())",
        test=f"{_TASKS} -k before_a_task_starts",
    ),
    Guard(
        name="deletes: a row that deletes has a key",
        file=_WRITER,
        before="        self._refuse_null_keys(keys)\n",
        after="",
        test=f"{_FLAGS} -k has_a_key",
    ),
    Guard(
        name="deletes: a column of the table is no flag",
        file="sinks/iceberg/sink.py",
        before="        if delete_column and delete_column in names:\n",
        after="        if False:\n",
        test=f"{_DELETES} -k column_of_that_name",
    ),
    Guard(
        name="deletes: what a failed batch would delete is given up",
        file=_WRITER,
        before="            self._deleted.abandon()\n",
        after="            pass\n",
        test=f"{_FLAGS} -k gives_up",
    ),
    Guard(
        name="deletes: each cut has a file of keys of its own",
        file=_WRITER,
        before="            self._deleted_cuts += 1\n",
        after="            pass\n",
        test=f"{_FLAGS} -k file_of_its_own",
    ),
    Guard(
        name="deletes: files of keys are copied before they are old",
        file="sinks/iceberg/snapshots.py",
        before="zip(group.with_keys, target.with_keys, strict=True)",
        after="zip(group.files, target.files, strict=True)",
        test=f"{_DELETES} -k old_keys",
    ),
    Guard(
        name="deletes: the flag is part of what a run is",
        file="model/records.py",
        before='            if now == then or field.name == "table":\n',
        after='            if now == then or field.name in {"table", "delete_column"}:\n',
        test=f"{_DELETES} -k runs_identity",
    ),
)
