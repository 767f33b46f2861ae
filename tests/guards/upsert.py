"""The guards of upserts: each key is in one row afterwards, and no other row goes."""

from __future__ import annotations

from tests.guards.guard import Guard

_UPSERT = "tests/unit/engine/test_commit_upsert.py"
_KEYS = "tests/unit/worker/test_key_index.py"
_BY_POSITION = "tests/unit/engine/test_commit_merge_on_read.py"
_LARGE = "tests/unit/worker/test_key_index_buckets.py"
_COUNTS = "tests/unit/engine/test_commit_upsert_large.py"
_DELETES = "tests/unit/engine/test_commit_upsert_deletes.py"
_FLAGS = "tests/unit/sinks/iceberg/test_deleted_keys.py"
_TASKS = "tests/unit/worker/test_task_rows_that_delete.py"

UPSERT_GUARDS = (
    Guard(
        name="upsert: deletes stay while a file of their path is listed",
        before="if file.content == _DATA and file.path in gone and ",
        after="if False and ",
        test=f"{_BY_POSITION} -k as_long_as_their_file_is_listed",
    ),
    Guard(
        name="upsert: a folder of indexes that was cleaned up is made again",
        before=" or not _private.is_dir()",
        after="",
        test=f"{_LARGE} -k own_folder",
    ),
    Guard(
        name="upsert: a machine without a temporary folder is not taken for a cleaned one",
        before=" and self._folder is not None:\n            return",
        after=":\n            return",
        test=f"{_LARGE} -k own_folder",
    ),
    Guard(
        name="upsert: what an executor's disk loses is not blamed on the ledger",
        before="        if batch is None:\n            raise self._unusable",
        after="        if False:\n            raise self._unusable",
        test=f"{_LARGE} -k always_cleaned_up",
    ),
    Guard(
        name="upsert: a suspended process holds up no other that needs a part of the index",
        before="wait_s=_WAIT_S",
        after="wait_s=3.0",
        test="tests/unit/worker/test_key_index_buckets.py -k suspended",
    ),
    Guard(
        name="upsert: an index is that of the work which is posted",
        before="if (known.work, known.meaning) == (work.name, meaning):\n",
        after="if known.meaning == meaning:\n",
        test=f"{_UPSERT} -k more_rows_get_another_index",
    ),
    Guard(
        name="upsert: an index is of the columns that rows were staged for",
        before="            self.sink.check(view, book.schemas, [])\n",
        after="",
        test=f"{_UPSERT} -k columns_that_rows_were_staged_for",
    ),
    Guard(
        name="upsert: a search is no attempt of its own",
        before="            attempt += not has_searched\n",
        after="            attempt += 1\n",
        test=f"{_UPSERT} -k as_documented",
    ),
    Guard(
        name="upsert: what was searched for other keys does not count",
        before="return f\"{self.key.meaning} in {self.keys.name if self.keys else ''}\"\n",
        after="return self.key.meaning\n",
        test=f"{_UPSERT} -k more_rows_get_another_index",
    ),
    Guard(
        name="upsert: an index holds the keys of all staged rows",
        before="if sum(file.rows for file in found) != rows:\n",
        after="if False:\n",
        test=f"{_UPSERT} -k lacks_keys",
    ),
    Guard(
        name="upsert: a row without a key is refused",
        before="        self._refuse_null_keys(rows)\n",
        after="",
        test=f"{_UPSERT} -k without_a_key",
    ),
    Guard(
        name="upsert: doubled keys are refused",
        before="        if doubled.num_rows:\n",
        after="        if False:\n",
        test=f"{_UPSERT} -k doubled",
    ),
    Guard(
        name="upsert: keys that share a hash are compared",
        before="        same = is_same(rows, at)\n",
        after="        same = np.ones(len(rows), dtype=bool)\n",
        test=f"{_KEYS} -k share_a_hash",
    ),
    Guard(
        name="upsert: a key with NULL is never found",
        before="            known &= column.is_valid().to_numpy(zero_copy_only=False)\n",
        after="            pass\n",
        test=f"{_KEYS} -k one_column",
    ),
    Guard(
        name="upsert: a file whose bound is a key is searched",
        before='"some" if at < len(firsts) and firsts[at] <= upper else "none"',
        after='"some" if at < len(firsts) and firsts[at] < upper else "none"',
        test=f"{_UPSERT} -k edge_of_a_file",
    ),
    Guard(
        name="upsert: stretches of decimals are in the order of their values",
        before='        order = order.set_column(0, "0", keys.column(0))\n',
        after="        pass\n",
        test=f"{_KEYS} -k in_order",
    ),
    Guard(
        name="position deletes: they have the spec of their file",
        before="        layout = Layout.of(*self._given.layouts[file.spec_id])\n",
        after="        layout = Layout.of(*self._given.layouts[max(self._given.layouts)])\n",
        test=f"{_BY_POSITION} -k share_a_manifest",
    ),
    Guard(
        name="position deletes: they have the partition of their file",
        before="        partition=of.partition,\n",
        after="        partition=Record(*[None for _ in range(len(of.partition))]),\n",
        test=f"{_BY_POSITION} -k get_deletes",
    ),
    Guard(
        name="position deletes: their bounds are the whole path",
        before="        upper_bounds={_PATH_ID: path, ",
        after='        upper_bounds={_PATH_ID: path[:15] + b"~", ',
        test=f"{_BY_POSITION} -k get_deletes",
    ),
    Guard(
        name="position deletes: what is deleted is not deleted again",
        before="stays, going = is_live & ~goes, is_live & goes\n",
        after="stays, going = is_live & ~goes, goes\n",
        test=f"{_BY_POSITION} -k not_deleted_again",
    ),
    Guard(
        name="position deletes: a file that loses rows by them stays",
        before="                    if known.group and is_of_deletes(known.group):\n",
        after="                    if False:\n",
        test=f"{_BY_POSITION} -k get_deletes",
    ),
    Guard(
        name="position deletes: what was found in one mode does not count in another",
        before='[*live, self.meaning, "merge-on-read", head.header if head else ""]',
        after="[*live, self.meaning]",
        test=f"{_BY_POSITION} -k another_mode",
    ),
    Guard(
        name="position deletes: entries of an old schema are not put under a new one",
        before='"merge-on-read", head.header if head else ""]',
        after='"merge-on-read"]',
        test=f"{_BY_POSITION} -k add_meanwhile",
    ),
    Guard(
        name="position deletes: a snapshot of them is no append",
        before="(removal.rewritten or deletes.files)",
        after="removal.rewritten",
        test=f"{_BY_POSITION} -k what_spark_says",
    ),
    Guard(
        name="position deletes: their manifest is listed as one of deletes",
        before="        content=ManifestContent(detail.content),\n",
        after="        content=ManifestContent.DATA,\n",
        test=f"{_BY_POSITION} -k get_deletes",
    ),
    Guard(
        name="position deletes: they are listed before they are posted",
        before="        writes |= sizes_of(manifests)\n",
        after="",
        test=f"{_BY_POSITION} -k listed_before",
    ),
    Guard(
        name="position deletes: a file without ids and names is refused",
        before="            if self._names is None and all(",
        after="            if False and all(",
        test="tests/unit/sinks/iceberg/test_position_deletes.py -k ids_and_names",
    ),
    Guard(
        name="position deletes: only the key's columns must be readable",
        before="self._own_schema(file, source, set(fit.wanted(source.own)))",
        after="self._own_schema(file, source)",
        test=f"{_BY_POSITION} -k could_not_be_rewritten",
    ),
    Guard(
        name="upsert: keys of a large index that share a hash are compared",
        before="        same = is_same(rows, at)\n",
        after="        same = np.ones(len(rows), dtype=bool)\n",
        test=f"{_LARGE} -k share_a_hash",
    ),
    Guard(
        name="upsert: keys that are doubled across pieces are refused",
        before="        if doubled := int(arranged.is_second.sum()):\n",
        after="        if doubled := 0:\n",
        test=f"{_LARGE} -k doubled_keys",
    ),
    Guard(
        name="upsert: slots of a piece are those that were written",
        before="            if sealed[:_DIGEST_BYTES] != _digest(part.name, slot, inner):\n",
        after="            if False:\n",
        test=f"{_LARGE} -k wrong_place",
    ),
    Guard(
        name="upsert: pieces that are lost are made again",
        before="            if not damaged:\n",
        after="            if True:\n",
        test=f"{_COUNTS} -k made_again",
    ),
    Guard(
        name="upsert: an index in pieces is not an index",
        before="            if known.is_in_pieces:\n",
        after="            if False:\n",
        test=f"{_COUNTS} -k goes_on_with_the_pieces",
    ),
    Guard(
        name="upsert: what an executor's disk has lost is fetched again",
        before="        if zlib.crc32(data) != expected:\n",
        after="        if False:\n",
        test=f"{_LARGE} -k flipped",
    ),
    Guard(
        name="upsert: a folder that others can write is not used",
        before="            if is_ours and not stat.S_IMODE(facts.st_mode) & 0o022:\n",
        after="            if is_ours:\n",
        test=f"{_LARGE} -k others_can_write",
    ),
    Guard(
        name="upsert: a row that a delete hides is not matched",
        before="            hits.append(numbers[goes[part] & is_live[part]])\n",
        after="            hits.append(numbers[goes[part]])\n",
        test=f"{_COUNTS} -k delete_hides",
    ),
    Guard(
        name="upsert: a search that did not note its keys is not counted",
        before="is_known = all(rewrite.hits or not rewrite.removed_rows for rewrite in used)",
        after="is_known = True",
        test=f"{_COUNTS} -k earlier_version",
    ),
    Guard(
        name="upsert: failed rows are merged when they are retried",
        before="        write = again.upsert if identity.on else again.append\n",
        after="        write = again.append\n",
        test="tests/unit/test_run.py -k verb_of_their_run",
    ),
    Guard(
        name="deletes: the index holds the keys of rows that delete",
        before="for group in groups for file in group.with_keys]\n",
        after="for group in groups for file in group.files]\n",
        test=f"{_DELETES} -k updated_deleted",
    ),
    Guard(
        name="deletes: a sweep takes the files of keys",
        before="landed.update(sizes_of(work.adds))",
        after="landed.update(sizes_of(work.groups))",
        test=f"{_DELETES} -k a_sweep_deletes",
    ),
    Guard(
        name="deletes: only groups of rows are merged and published",
        before="    groups = book.work.adds\n",
        after="    groups = book.work.groups\n",
        test=f"{_DELETES} -k updated_deleted",
    ),
    Guard(
        name="deletes: a flag that is NULL deletes nothing",
        before="pc.fill_null(column, fill_value=False)",
        after="pc.fill_null(column, fill_value=True)",
        test=f"{_FLAGS} -k null_does_not",
    ),
    Guard(
        name="deletes: a flag is boolean",
        before="        if not pa.types.is_boolean(column.type):\n",
        after="        column = column.cast(pa.bool_(), safe=False)\n        if False:\n",
        test=f"{_FLAGS} -k not_boolean",
    ),
    Guard(
        name="deletes: the output has the flag once",
        before="        if len(found) != 1:\n",
        after="        if not found:\n            return batch, batch[:0]\n        if False:\n",
        test=f"{_FLAGS} -k column_once",
    ),
    Guard(
        name="deletes: each answer says whether its row deletes",
        before="if deletes and any(deletes not in row for row in rows):\n",
        after="if False:\n",
        test=f"{_TASKS} -k does_not_say",
    ),
    Guard(
        name="deletes: a job without the flag is refused before it runs",
        before="pa.field(self.delete_column, pa.bool_(), nullable=False)",
        after="pa.field(self.delete_column, pa.bool_())",
        test=f"{_TASKS} -k before_a_task_starts",
    ),
    Guard(
        name="deletes: a row that deletes has a key",
        before="        self._refuse_null_keys(keys)\n",
        after="",
        test=f"{_FLAGS} -k has_a_key",
    ),
    Guard(
        name="deletes: a column of the table is no flag",
        before="        if delete_column and delete_column in names:\n",
        after="        if False:\n",
        test=f"{_DELETES} -k column_of_that_name",
    ),
    Guard(
        name="deletes: what a failed batch would delete is given up",
        before="            self._deleted.abandon()\n",
        after="            pass\n",
        test=f"{_FLAGS} -k gives_up",
    ),
    Guard(
        name="deletes: each cut has a file of keys of its own",
        before="            self._deleted_cuts += 1\n",
        after="            pass\n",
        test=f"{_FLAGS} -k file_of_its_own",
    ),
    Guard(
        name="deletes: files of keys are copied before they are old",
        before="zip(group.with_keys, target.with_keys, strict=True)",
        after="zip(group.files, target.files, strict=True)",
        test=f"{_DELETES} -k old_keys",
    ),
    Guard(
        name="deletes: the flag is part of what a run is",
        before='            if now == then or field.name == "table":\n',
        after='            if now == then or field.name in {"table", "delete_column"}:\n',
        test=f"{_DELETES} -k runs_identity",
    ),
    Guard(
        name="upsert: deleted keys are counted only if every task could",
        before="        raise_problems(reports)\n        texts = {",
        after="        texts = {",
        test=f"{_DELETES} -k by_halves",
    ),
)
