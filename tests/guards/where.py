"""The guards of filters that remove rows: none may go that the filter is not TRUE for."""

from __future__ import annotations

from tests.guards.guard import Guard

_WHERE = "tests/unit/sinks/iceberg/test_where.py"
_TEXT = "tests/unit/reading/test_filter_text.py"
_REWRITE_ROWS = "tests/unit/sinks/iceberg/test_rewrite_rows.py"

WHERE_GUARDS = (
    Guard(
        name="filter: NULL passes no operator",
        before="        if isinstance(predicate, NotEqualTo | NotIn | NotStartsWith | NotNaN):\n",
        after="        if False:\n",
        test=f"{_WHERE} -k rows_go_for_which",
    ),
    Guard(
        name="filter: a required field may be NULL in a struct that is",
        before="field.name, kind, required=False)\n",
        after="field.name, kind, required=field.required)\n",
        test=f"{_WHERE} -k rows_go_for_which",
    ),
    Guard(
        name="filter: -0.0 is in a set of 0.0",
        before="            given = _one_by_one(predicate)\n",
        after="            pass\n",
        test=f"{_WHERE} -k rows_go_for_which",
    ),
    Guard(
        name="filter: a file is rewritten again if the filter means another column",
        before='" ".join([*live, self.meaning])\n',
        after='" ".join(live)\n',
        test="tests/unit/engine/test_commit_where.py -k means_another_column",
    ),
    Guard(
        name="filter: what it says about a file does not count for another filter",
        before="        return (self.schema_json, self.text)\n",
        after="        return (self.schema_json,)\n",
        test="tests/unit/engine/test_commit_where.py -k another_verdict",
    ),
    Guard(
        name="filter: a rewritten file is posted without a pause",
        before="if not replaces or not (tally.is_conflict or tally.is_late):",
        after="if not replaces or not tally.is_conflict:",
        test="tests/unit/engine/test_commit_where.py -k no_pause",
    ),
    Guard(
        name="filter: a value is not rounded to the column's type",
        before="    if not is_same:\n",
        after="    if False:\n",
        test=f"{_WHERE} -k is_refused",
    ),
    Guard(
        name="filter text: it does not pass through the parser",
        before="_with_texts(parse(_QUOTED.sub(numbered, text)), texts)",
        after="(_QUOTED.sub(numbered, text), parse(text))[1]",
        test=f"{_TEXT} -k compared_as_it_is_written",
    ),
    Guard(
        name="filter text: a backslash is refused",
        before="""    if "\\\\" in text:\n""",
        after="    if False:\n",
        test=f"{_TEXT} -k reads_otherwise",
    ),
    Guard(
        name="filter text: a wildcard that the parser takes as itself is refused",
        before="""if "_" in pattern or""",
        after="if",
        test=f"{_TEXT} -k reads_otherwise",
    ),
    Guard(
        name="filter text: a number is no date",
        before="    if is_other:\n",
        after="    if False:\n",
        test=f"{_WHERE} -k is_refused",
    ),
    Guard(
        name="filter: a filter without a column is refused",
        before="        if not has_columns:\n",
        after="        if False:\n",
        test=f"{_WHERE} -k is_refused",
    ),
    Guard(
        name="filter: floats are not decided by metadata",
        before='        if isinstance(column.field_type, _FLOATS):\n            return "some"\n',
        after="",
        test=f"{_WHERE} -k values_of_floats",
    ),
    Guard(
        name="filter: without a count of NULL a file is read",
        before="if nulls is None or (file.value_counts or {}).get(field_id) != rows:\n"
        '        return "some"\n    if nulls == 0:\n',
        after="if not nulls:\n",
        test=f"{_WHERE} -k known_to_have_no_null",
    ),
    Guard(
        name="filter: a file with NULL does not go as a whole",
        before='return "some" if found == "all" and nulls != "none" else found',
        after="return found",
        test=f"{_WHERE} -k known_to_have_no_null",
    ),
    Guard(
        name="filter: times before 1970 are not decided by their partition",
        before="        return bool(value > 0)\n",
        after="        return True\n",
        test=f"{_WHERE} -k cannot_be_trusted",
    ),
    Guard(
        name="filter: a number that overflowed its partition decides nothing",
        before="        return value % transform.width == 0\n",
        after="        return True\n",
        test=f"{_WHERE} -k cannot_be_trusted",
    ),
    Guard(
        name="filter: a void partition says nothing about NULL",
        before="if not isinstance(field.transform, VoidTransform | UnknownTransform)",
        after="if True",
        test=f"{_WHERE} -k cannot_be_trusted",
    ),
    Guard(
        name="filter: rows under position deletes are not carried over",
        before="        found[deleted[start:stop] - first] = False\n",
        after="        pass\n",
        test=f"{_REWRITE_ROWS} -k under_position_deletes",
    ),
    Guard(
        name="filter: a rewritten file keeps its spec",
        before="        layout = Layout.of(*self._given.layouts[file.spec_id])\n",
        after="        layout = Layout.of(*self._given.layouts[max(self._given.layouts)])\n",
        test=f"{_REWRITE_ROWS} -k keeps_its_spec",
    ),
    Guard(
        name="filter: a rewritten file keeps its partition",
        before="        record = Record(*file.partition)\n"
        "        uri = data_location(self._locations, f",
        after="        record = Record(*[None for _ in file.partition])\n"
        "        uri = data_location(self._locations, f",
        test=f"{_REWRITE_ROWS} -k keeps_its_spec",
    ),
    Guard(
        name="filter: a spec whose column was dropped is written with an older schema",
        before="[schema for schema in schemas if sources <= index_by_id(schema).keys()]",
        after="schemas[:1]",
        test=f"{_REWRITE_ROWS} -k keeps_its_spec",
    ),
    Guard(
        name="filter: a file without a match is not written again",
        before="            if judged.removed and kept:\n",
        after="            if kept:\n",
        test=f"{_REWRITE_ROWS} -k without_a_match",
    ),
    Guard(
        name="filter: a column of the partition only has the partition's value",
        before="        if number is not None and number in self.constants:\n",
        after="        if False:\n",
        test=f"{_REWRITE_ROWS} -k name_mapping",
    ),
    Guard(
        name="filter: INT96 is not rewritten",
        before='any(leaf.physical_type == "INT96"',
        after='any(leaf.physical_type == "none"',
        test=f"{_REWRITE_ROWS} -k cannot_be_written_as_it_was",
    ),
    Guard(
        name="filter: a file of another type than the table is not rewritten",
        before="if now is not None and not reads_as(column.field_type, now.field_type):",
        after="if False:",
        test=f"{_REWRITE_ROWS} -k cannot_be_written_as_it_was",
    ),
    Guard(
        name="filter: files with equality deletes are refused",
        before="    if any(delete.content == _EQUALITY_DELETES for delete in deletes):\n",
        after="    if False:\n",
        test=f"{_REWRITE_ROWS} -k only_metadata",
    ),
    Guard(
        name="filter: deletes that are older than a file do not apply to it",
        before="return [delete for delete in found if _is_later(delete, file)]",
        after="return found",
        test=f"{_REWRITE_ROWS} -k by_path_partition_and_age",
    ),
)
