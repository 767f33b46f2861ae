"""The guards of changes that remove rows: none may come back, double or vanish."""

from __future__ import annotations

from tests.guards.guard import Guard

_REWRITE = "tests/unit/sinks/iceberg/test_rewrite.py"
_LOSS = "tests/unit/sinks/iceberg/test_loss.py"
_LANCE_LOSS = "tests/unit/sinks/lance/test_loss.py"
_COMMIT = "tests/unit/engine/test_commit_replace.py"

REPLACE_GUARDS = (
    Guard(
        name="replace: a manifest names the oldest number that is left in it",
        file="sinks/iceberg/rewrite.py",
        before="min_sequence_number=min(numbers, default=UNASSIGNED_SEQ)",
        after="min_sequence_number=UNASSIGNED_SEQ",
        test=f"{_REWRITE} -k list_counts",
    ),
    Guard(
        name="replace: a removed file belongs to the snapshot that removes it",
        file="sinks/iceberg/rewrite.py",
        before="None if status == _DELETED else file.snapshot_id",
        after="file.snapshot_id",
        test=f"{_REWRITE} -k removed_file",
    ),
    Guard(
        name="replace: row ids count on from file to file",
        file="sinks/iceberg/rewrite.py",
        before="row_id, next_row_id = next_row_id, next_row_id + rows",
        after="row_id = next_row_id",
        test=f"{_REWRITE} -k row_ids",
    ),
    Guard(
        name="replace: an entry keeps the sequence number that it has inherited",
        file="sinks/iceberg/rewrite.py",
        before="            names[_SEQUENCE_NUMBER]: file.sequence_number,\n",
        after="",
        test=f"{_REWRITE} -k removed_file",
    ),
    Guard(
        name="replace: an old entry without a number is refused",
        file="sinks/iceberg/rewrite.py",
        before="if self._listed.sequence_number and entry[self._names[_STATUS]] != _ADDED:",
        after="if False:",
        test=f"{_REWRITE} -k without_numbers",
    ),
    Guard(
        name="replace: what was deleted before is not deleted again",
        file="sinks/iceberg/rewrite.py",
        before="            if status == _DELETED:\n",
        after="            if False:\n",
        test=f"{_REWRITE} -k deleted_before",
    ),
    Guard(
        name="replace: values are copied as they are stored",
        file="sinks/iceberg/rewrite.py",
        before=' if name != "logicalType"',
        after="",
        test=f"{_REWRITE} -k all_else",
    ),
    Guard(
        name="replace: a file that is cut short is refused",
        file="sinks/iceberg/rewrite.py",
        before="        if at > len(data):\n",
        after="        if False:\n",
        test=f"{_REWRITE} -k cannot_be_read",
    ),
    Guard(
        name="replace: NaN is one partition, and -0.0 is another than 0.0",
        file="sinks/iceberg/rewrite.py",
        before='_comparable(_typed(values[field["name"]], field["type"])) for',
        after='_typed(values[field["name"]], field["type"]) for',
        test=f"{_REWRITE} -k iceberg_compares",
    ),
    Guard(
        name="replace: a snapshot that removes files is called an overwrite",
        file="sinks/iceberg/snapshots.py",
        before="    if removal is not None and removal.rewritten:\n",
        after="    if False:\n",
        test=f"{_LOSS} -k summary",
    ),
    Guard(
        name="replace: files of other specs are refused where partitions are replaced",
        file="sinks/iceberg/loss.py",
        before="            self._refuse_other_specs(table, listed, change.adds)\n",
        after="            pass\n",
        test=f"{_LOSS} -k another_spec",
    ),
    Guard(
        name="replace: what goes is computed for each look at the table",
        file="engine/commit.py",
        before="complete = replace(change, loss=self.sink.loss(view, change, name))",
        after="""if self.log.intents:
                return change
            complete = replace(change, loss=self.sink.loss(view, change, name))""",
        test=f"{_COMMIT} -k before_the_post",
    ),
    Guard(
        name="replace: what a post writes is listed before it is written",
        file="engine/commit.py",
        before="        if loss.writes:  # Listed",
        after="        if False:  # Listed",
        test=f"{_COMMIT} -k sweep",
    ),
    Guard(
        name="replace: a run that depends on rows looks at them before its post",
        file="engine/commit.py",
        before="self.replaced.refuse_changed(view)",
        after="pass",
        test=f"{_COMMIT} -k itself_binds",
    ),
    Guard(
        name="replace: a scan of the table itself depends on what it read",
        file="engine/base.py",
        before="asked = options.based_on or self.snapshot_read()",
        after="asked = options.based_on",
        test=f"{_COMMIT} -k itself_binds",
    ),
    Guard(
        name="replace: a run depends on its rows from its first start, or not at all",
        file="engine/base.py",
        before="if depends and not known.is_binding:",
        after="if False:",
        test=f"{_COMMIT} -k second_start_on",
    ),
    Guard(
        name="replace: no rows do not replace all unless the user says so",
        file="engine/drive.py",
        before='        if removes == "all" and not options.allow_empty and',
        after="        if False and",
        test=f"{_COMMIT} -k no_rows_replace",
    ),
    Guard(
        name="sweep: what the landed post has written is kept",
        file="engine/cleanup.py",
        before="        landed.update(written[number])\n",
        after="        pass\n",
        test=f"{_COMMIT} -k sweep",
    ),
    Guard(
        name="replace: what expires while it is read is looked for again",
        file="engine/commit.py",
        before="if self.load().parent_snapshot_id == view.parent_snapshot_id:",
        after="if True:",
        test=f"{_COMMIT} -k expire_while",
    ),
    Guard(
        name="replace: a store that does not answer is named",
        file="engine/commit.py",
        before="if self.load().parent_snapshot_id == view.parent_snapshot_id:",
        after="if False:",
        test=f"{_COMMIT} -k does_not_answer",
    ),
    Guard(
        name="replace: with snapshot isolation others' files stay",
        file="sinks/iceberg/loss.py",
        before="and (change.base is None or _state(file) in change.base)",
        after="",
        test=f"{_LOSS} -k others_have_added",
    ),
    Guard(
        name="replace: a rewritten file does not look added",
        file="sinks/iceberg/loss.py",
        before="if not gone and not deletes:",
        after="if not deletes:",
        test=f"{_LOSS} -k file_that_is_gone",
    ),
    Guard(
        name="replace: an updated row does not look added",
        file="sinks/iceberg/loss.py",
        before="if not gone and not deletes:",
        after="if not gone:",
        test=f"{_LOSS} -k a_delete_is_refused",
    ),
    Guard(
        name="replace: the base of snapshot isolation is that of the first start",
        file="engine/base.py",
        before='elif options.isolation_level == "snapshot" and known.states is None:',
        after="elif False:",
        test=f"{_COMMIT} -k second_start_on",
    ),
    Guard(
        name="replace: on Lance each fragment of the look goes",
        file="sinks/lance/post.py",
        before="self.removed.get(fragment.id, fragment)",
        after="fragment",
        test=f"{_LANCE_LOSS} -k all_rows_go",
    ),
    Guard(
        name="replace: on Lance the deletion file says what its count says",
        file="sinks/lance/loss.py",
        before="= all_rows(rows)",
        after="= all_rows(1)",
        test=f"{_LANCE_LOSS} -k covers_all_rows",
    ),
    Guard(
        name="replace: on Lance deletes are a part of a fragment's state",
        file="sinks/lance/loss.py",
        before="json.dumps(metadata.to_json(), sort_keys=True, default=str)",
        after="str([file.path for file in metadata.files])",
        test=f"{_LANCE_LOSS} -k stay_as_they_are",
    ),
    Guard(
        name="replace: on Lance others' fragments stay with snapshot isolation",
        file="sinks/lance/loss.py",
        before="found = {by_state[state]: found[by_state[state]] for state in change.base}",
        after="pass",
        test=f"{_LANCE_LOSS} -k others_add_stays",
    ),
    Guard(
        name="replace: rows that were staged by another spec are refused",
        file="sinks/iceberg/loss.py",
        before="if any(detail_of(group).spec_id != spec.spec_id for group in staged):",
        after="if False:",
        test=f"{_LOSS} -k staged_by_another",
    ),
    Guard(
        name="replace: a wider decimal is the same partition",
        file="sinks/iceberg/rewrite.py",
        before='_comparable(_typed(values[field["name"]], field["type"])) for',
        after='_comparable(values[field["name"]]) for',
        test=f"{_LOSS} -k wider_decimal",
    ),
    Guard(
        name="replace: posts before a staged file was gone are counted",
        file="engine/commit.py",
        before="        tally = _Tally()\n",
        after="        tally = _Tally()\n        self.posted.clear()\n",
        test=f"{_COMMIT} -k all_posts",
    ),
)
