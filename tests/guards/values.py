"""Guards of single values: readers find what a row holds."""

from __future__ import annotations

from tests.guards.guard import Guard

_READS = "tests/unit/sinks/iceberg/test_manifests.py"
_FILTERS = "tests/unit/sources/test_iceberg_rows.py"
_VALUES = "tests/unit/sinks/iceberg/test_writer_values.py"

_LARGE = "tests/unit/worker/test_batch_steps_large_cells.py"

VALUE_GUARDS = (
    Guard(
        name="output is taken in pieces of bounded size",
        before="        for piece in pieces(output, self._batch_bytes):\n",
        after="        for piece in (output,):\n",
        test=_LARGE,
    ),
    Guard(
        name="a piece of large output has offsets of its own",
        before="        yield copied(batch.slice(start, stop - start))\n",
        after="        yield batch.slice(start, stop - start)\n",
        test=_LARGE,
    ),
    Guard(
        name="no finite number becomes infinite",
        before="    if size > _FLOAT_MAX[kind.bit_width] and size != math.inf:\n",
        after="    if False:\n",
        test="tests/unit/worker/test_python_values.py -k infinite",
    ),
    Guard(
        name="no number of an array becomes infinite",
        before="    if beyond.any():\n",
        after="    if False:\n",
        test="tests/unit/worker/test_python_values.py -k infinite",
    ),
    Guard(
        name="nanoseconds are not dropped",
        before='    if (lost := nanoseconds_of(value)) and unit != "ns":\n',
        after="    if False:\n",
        test="tests/unit/worker/test_python_values.py -k fraction_of_a_second",
    ),
    Guard(
        name="nanoseconds of objects in a batch are not dropped",
        before="        if (lost := with_nanoseconds(column)) is not None:\n",
        after="        if (lost := None) is not None:\n",
        test="tests/unit/worker/test_transforms.py -k nanoseconds",
    ),
    Guard(
        name="a text that is not UTF-8 does not fit",
        before="                refuse_broken_text(array)\n",
        after="",
        test="tests/unit/worker/test_quarantine.py -k is_quarantined",
    ),
    Guard(
        name="a failed row's text can be read back",
        before="self._described(_readable(rows), held)",
        after="self._described(rows, held)",
        test="tests/unit/worker/test_quarantine.py -k is_quarantined",
    ),
    Guard(
        name="a key that could not be read back is refused",
        before="            _refuse_broken_key(name, column)\n",
        after="            pass\n",
        test="tests/unit/worker/test_quarantine.py -k refused_by_name",
    ),
    Guard(
        name="doubles in manifests are not read through a float",
        before="value: float = _DOUBLE.unpack(decoder.read(_DOUBLE.size))[0]",
        after="value = super().read(decoder)",
        test=_READS,
    ),
    Guard(
        name="scans of a loaded table are planned by exact values",
        before="[_exact(manifest) for manifest in manifests_of(snapshot, self.io)]",
        after="manifests_of(snapshot, self.io)",
        test=_READS,
    ),
    Guard(
        name="a copied manifest has the values of its original",
        before="manifest_entries(listed_manifest(group, _NO_SNAPSHOT), table.io)",
        after=(
            "listed_manifest(group, _NO_SNAPSHOT).fetch_manifest_entry("
            "table.io, discard_deleted=False)"
        ),
        test="tests/unit/sinks/iceberg/test_manifests.py",
    ),
    Guard(
        name="deletes in the partition of NaN are found",
        before="return _NAN if math.isnan(value) else value",
        after="return value",
        test=_READS,
    ),
    Guard(
        name="the upper bound of a text is no surrogate",
        before="if code == _SURROGATES.start:",
        after="if False:",
        test=_VALUES,
    ),
    Guard(
        name="bounds of times do not go through Python's dates",
        before=(
            "stats_columns=plan\n"
            "        | {field_id: replace(plan[field_id], mode=counted) for field_id in temporal},"
        ),
        after="stats_columns=plan,",
        test=_VALUES,
    ),
    Guard(
        name="partition values of times do not go through Python's dates",
        before="return value.value if pa.types.is_temporal(value.type) else value.as_py()",
        after="return value.as_py()",
        test=_VALUES,
    ),
    Guard(
        name="a decimal that truncate has no room for is refused before it is written",
        before="        self._limits.check(rows)\n",
        after="",
        test=_VALUES,
    ),
    Guard(
        name="both zeros are within the bounds of a manifest",
        before="    if isinstance(kind, FloatType | DoubleType):\n",
        after="    if False:\n",
        test=_VALUES,
    ),
    Guard(
        name="a partition's text makes no name that stores refuse",
        before="    if len(folder) <= _FOLDER_MAX:\n",
        after="    if True:\n",
        test=_VALUES,
    ),
    Guard(
        name="a row that the table cannot take is set aside, not the job",
        before="return halving_steps(keyed, fitting,",
        after="return halving_steps(keyed, apply,",
        test="tests/unit/worker/test_batch_steps.py",
    ),
    Guard(
        name="a row that Python cannot hold is set aside, not the job",
        before="except (OverflowError, ValueError) as error:  # For example",
        after="except ZeroDivisionError as error:  # For example",
        test="tests/unit/worker/test_task_row_functions.py",
    ),
    Guard(
        name="a float column is compared with floats, for files as for rows",
        before="return FloatLiteral(_FLOAT.unpack(_FLOAT.pack(float(number)))[0])",
        after="return value",
        test=_FILTERS,
    ),
    Guard(
        name="files are found by the values that columns can hold",
        before="for_columns(self._where, schema) if is_current",
        after="self._where if is_current",
        test=_FILTERS,
    ),
    Guard(
        name="a filter on a uuid is refused, and does not find nothing",
        before="        if isinstance(kind, UUIDType):\n",
        after="        if False:\n",
        test=_FILTERS,
    ),
    Guard(
        name="values: a large NumPy number does not become negative",
        before=" and value > _INT64_MAX:",
        after=" and False:",
        test="tests/unit/worker/test_python_values.py -k negative",
    ),
    Guard(
        name="values: a broken text changes no other failed row",
        before="        if len(column) > 1:\n            halves",
        after="        if False:\n            halves",
        test="tests/unit/worker/test_quarantine.py -k no_other_failed_row",
    ),
    Guard(
        name="filters: a scan reads what a filter is true for, as an overwrite does",
        before="    return visit(only_true(where, schema), _ForColumns(schema))\n",
        after="    return visit(where, _ForColumns(schema))\n",
        test="tests/unit/sources/test_iceberg_rows.py -k however_they_lie",
    ),
)
