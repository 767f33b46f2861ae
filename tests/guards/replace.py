"""The guards of changes that remove rows: none may come back, double or vanish."""

from __future__ import annotations

from tests.guards.guard import Guard

_REWRITE = "tests/unit/sinks/iceberg/test_rewrite.py"
_LOSS = "tests/unit/sinks/iceberg/test_loss.py"
_LANCE_LOSS = "tests/unit/sinks/lance/test_loss.py"
_WHERE = "tests/unit/engine/test_commit_where.py"
_COMMIT = "tests/unit/engine/test_commit_replace.py"

REPLACE_GUARDS = (
    Guard(
        name="a refusal that only a later attempt proves is recorded",
        before="        for number, intent in self.log.doubtful.items():\n",
        after="        for number, intent in list(self.log.doubtful.items())[-1:]:\n",
        test="tests/unit/engine/test_commit_stops.py -k several_refusals",
    ),
    Guard(
        name="replace: a manifest names the oldest number that is left in it",
        before="min_sequence_number=min(numbers, default=UNASSIGNED_SEQ)",
        after="min_sequence_number=UNASSIGNED_SEQ",
        test=f"{_REWRITE} -k list_counts",
    ),
    Guard(
        name="replace: a removed file belongs to the snapshot that removes it",
        before="None if status == _DELETED else file.snapshot_id",
        after="file.snapshot_id",
        test=f"{_REWRITE} -k removed_file",
    ),
    Guard(
        name="replace: row ids count on from file to file",
        before="row_id, next_row_id = next_row_id, next_row_id + rows",
        after="row_id = next_row_id",
        test=f"{_REWRITE} -k row_ids",
    ),
    Guard(
        name="replace: an entry keeps the sequence number that it has inherited",
        before="            names[_SEQUENCE_NUMBER]: file.sequence_number,\n",
        after="",
        test=f"{_REWRITE} -k removed_file",
    ),
    Guard(
        name="replace: an old entry without a number is refused",
        before="if self._listed.sequence_number and entry[self._names[_STATUS]] != _ADDED:",
        after="if False:",
        test=f"{_REWRITE} -k without_numbers",
    ),
    Guard(
        name="replace: what was deleted before is not deleted again",
        before="            if status == _DELETED:\n",
        after="            if False:\n",
        test=f"{_REWRITE} -k deleted_before",
    ),
    Guard(
        name="replace: values are copied as they are stored",
        before=' if name != "logicalType"',
        after="",
        test=f"{_REWRITE} -k all_else",
    ),
    Guard(
        name="avro: a block has no more rows than bytes",
        before="        if not 0 <= rows <= len(block):",
        after="        if False:",
        test="tests/unit/sinks/iceberg/test_avro.py -k block_with_damaged",
    ),
    Guard(
        name="avro: a block ends with the file's marker",
        before="        if data[start:at] != sync:\n",
        after="        if False:\n",
        test="tests/unit/sinks/iceberg/test_avro.py -k block_with_damaged",
    ),
    Guard(
        name="avro: no stored length leads back",
        before="    if not 0 <= size <= len(data) - at:\n",
        after="    if not size <= len(data) - at:\n",
        test="tests/unit/sinks/iceberg/test_avro.py -k header_with_damaged",
    ),
    Guard(
        name="avro: whatever a decoder raises names the file",
        before="    except Exception as error:  # Damaged",
        after="    except KeyError as error:  # Damaged",
        test="tests/unit/sinks/iceberg/test_avro.py -k names_the_file",
    ),
    Guard(
        name="replace: a file that is cut short is refused",
        before="    if not 0 <= size <= len(data) - at:\n",
        after="    if False:\n",
        test=f"{_REWRITE} -k cannot_be_read",
    ),
    Guard(
        name="replace: NaN is one partition, and -0.0 is another than 0.0",
        before='_comparable(_typed(values[field["name"]], field["type"])) for',
        after='_typed(values[field["name"]], field["type"]) for',
        test=f"{_REWRITE} -k iceberg_compares",
    ),
    Guard(
        name="replace: a snapshot that removes files is called an overwrite",
        before="    if removal is not None and (removal.rewritten or deletes.files):\n",
        after="    if False:\n",
        test=f"{_LOSS} -k summary",
    ),
    Guard(
        name="replace: files of other specs are refused where partitions are replaced",
        before="            self._refuse_other_specs(table, listed, change.adds)\n",
        after="            pass\n",
        test=f"{_LOSS} -k another_spec",
    ),
    Guard(
        name="replace: what goes is computed for each look at the table",
        before="complete = replace(change, loss=self.sink.loss(view, change, name))",
        after="""if self.log.intents:
                return change
            complete = replace(change, loss=self.sink.loss(view, change, name))""",
        test=f"{_COMMIT} -k before_the_post",
    ),
    Guard(
        name="replace: what a post writes is listed before it is written",
        before="        if loss.writes:  # Listed",
        after="        if False:  # Listed",
        test=f"{_COMMIT} -k sweep",
    ),
    Guard(
        name="replace: a run that depends on rows looks at them before its post",
        before="self.replaced.refuse_changed(view)",
        after="pass",
        test=f"{_COMMIT} -k itself_binds",
    ),
    Guard(
        name="replace: a scan of the table itself depends on what it read",
        before="asked = options.based_on or self.snapshot_read()",
        after="asked = options.based_on",
        test=f"{_COMMIT} -k itself_binds",
    ),
    Guard(
        name="replace: a run depends on its rows from its first start, or not at all",
        before="if depends and not known.is_binding:",
        after="if False:",
        test=f"{_COMMIT} -k second_start_on",
    ),
    Guard(
        name="replace: no rows do not replace all unless the user says so",
        before="        if is_whole and not options.allow_empty and",
        after="        if False and",
        test=f"{_COMMIT} -k no_rows_replace",
    ),
    Guard(
        name="sweep: what the landed post has written is kept",
        before="        landed.update(written[number])\n",
        after="        pass\n",
        test=f"{_COMMIT} -k sweep",
    ),
    Guard(
        name="replace: what expires while it is read is looked for again",
        before="if self.load().parent_snapshot_id == view.parent_snapshot_id:",
        after="if True:",
        test=f"{_COMMIT} -k expire_while",
    ),
    Guard(
        name="replace: a store that does not answer is named",
        before="if self.load().parent_snapshot_id == view.parent_snapshot_id:",
        after="if False:",
        test=f"{_COMMIT} -k does_not_answer",
    ),
    Guard(
        name="replace: with snapshot isolation others' files stay",
        before="if change.base is None or _state(file) in change.base:",
        after="if True:",
        test=f"{_LOSS} -k others_have_added",
    ),
    Guard(
        name="replace: a rewritten file does not look added",
        before="if not gone and not deletes:",
        after="if not deletes:",
        test=f"{_LOSS} -k file_that_is_gone",
    ),
    Guard(
        name="replace: an updated row does not look added",
        before="if not gone and not deletes:",
        after="if not gone:",
        test=f"{_LOSS} -k a_delete_is_refused",
    ),
    Guard(
        name="replace: the base of snapshot isolation is that of the first start",
        before='elif options.isolation_level == "snapshot" and known.states is None:',
        after="elif False:",
        test=f"{_COMMIT} -k second_start_on",
    ),
    Guard(
        name="replace: on Lance each fragment of the look goes",
        before="self.changed.get(fragment.id, fragment)",
        after="fragment",
        test=f"{_LANCE_LOSS} -k all_rows_go",
    ),
    Guard(
        name="replace: on Lance the deletion file says what its count says",
        before="= all_rows(rows)",
        after="= all_rows(1)",
        test=f"{_LANCE_LOSS} -k covers_all_rows",
    ),
    Guard(
        name="replace: on Lance deletes are a part of a fragment's state",
        before="json.dumps(metadata.to_json(), sort_keys=True, default=str)",
        after="str([file.path for file in metadata.files])",
        test=f"{_LANCE_LOSS} -k stay_as_they_are",
    ),
    Guard(
        name="replace: on Lance others' fragments stay with snapshot isolation",
        before="found = {by_state[state]: found[by_state[state]] for state in change.base}",
        after="pass",
        test=f"{_LANCE_LOSS} -k others_add_stays",
    ),
    Guard(
        name="replace: rows that were staged by another spec are refused",
        before="if any(detail_of(group).spec_id != spec.spec_id for group in staged):",
        after="if False:",
        test=f"{_LOSS} -k staged_by_another",
    ),
    Guard(
        name="replace: a wider decimal is the same partition",
        before='_comparable(_typed(values[field["name"]], field["type"])) for',
        after='_comparable(values[field["name"]]) for',
        test=f"{_LOSS} -k wider_decimal",
    ),
    Guard(
        name="replace: posts before a staged file was gone are counted",
        before="        tally = _Tally()\n",
        after="        tally = _Tally()\n        self.posted.clear()\n",
        test=f"{_COMMIT} -k all_posts",
    ),
    Guard(
        name="replace: a file is posted as rewritten only while it is in that state",
        before="known = change.rewritten.get(searches.name(file, deletes))",
        after="known = next(iter(change.rewritten.values()), None)",
        test=f"{_WHERE} -k only_new_files",
    ),
    Guard(
        name="replace: a file that was just rewritten is asked for",
        before="self._known_there = Known()  # The new ones have not been asked for.",
        after="pass",
        test=f"{_WHERE} -k just_rewritten",
    ),
    Guard(
        name="replace: rows of a removed file that stay are added again",
        before="found.added.append(known.group)\n",
        after="pass\n",
        test=f"{_WHERE} -k other_rows_stay",
    ),
    Guard(
        name="replace: rows outside the filter are refused",
        before="        self._refuse_outside(rows)\n",
        after="",
        test=f"{_WHERE} -k null_is_outside",
    ),
    Guard(
        name="replace: the filter is a part of the run",
        before='            if now == then or field.name == "table":\n',
        after='            if now == then or field.name in {"table", "where"}:\n',
        test=f"{_WHERE} -k does_not_fit",
    ),
    Guard(
        name="replace: a rewritten file that is gone is written again",
        before="                del self._known[state]\n",
        after="                pass\n",
        test=f"{_WHERE} -k posted_with_a_file",
    ),
    Guard(
        name="replace: a rewritten file that is old is written again",
        before="usable = {group.path for group in here} - {group.path for group in old}",
        after="usable = {group.path for group in here}",
        test=f"{_WHERE} -k may_be_gone",
    ),
    Guard(
        name="replace: rewritten files are swept with the rest",
        before="yield from (rewrite.group for rewrite in found if rewrite.group is not None)",
        after="pass",
        test=f"{_WHERE} -k leaves_no_file",
    ),
    Guard(
        name="replace: what the post reaches of rewritten files is listed first",
        before="        writes |= sizes_of(manifests)\n",
        after="",
        test=f"{_WHERE} -k lists_what_it_reaches",
    ),
)
