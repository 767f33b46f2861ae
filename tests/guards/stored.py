"""The guards that reject what a ledger holds beyond what was declared."""

from __future__ import annotations

from tests.guards.guard import Guard

_STORED = "tests/unit/model/test_stored.py"
_CHUNKS = "tests/unit/ledger/test_row_files.py"
_KEYS = "tests/unit/ledger/test_row_files.py"

STORED_GUARDS = (
    Guard(
        name="a footer that hides pages of keys is damage",
        before="        _refuse_other(seen, facts.num_rows)\n",
        after="",
        test="tests/unit/ledger/test_row_files.py -k flipped_bit",
    ),
    Guard(
        name="stored: JSON of any size is refused before it is parsed",
        before="    if len(data) > JSON_BYTES_MAX:\n",
        after="    if False:\n",
        test=f"{_STORED} -k any_size",
    ),
    Guard(
        name="stored: a count is neither negative nor of more than 64 bits",
        before="Count = Annotated[int, msgspec.Meta(ge=0, le=_INT64_MAX)]",
        after="Count = int",
        test=f"{_STORED} -k out_of_bounds",
    ),
    Guard(
        name="stored: the name of a task record stays in its folder",
        before="TaskName = Annotated[\n",
        after="TaskName = str\n_ = Annotated[\n",
        test=f"{_STORED} -k out_of_bounds",
    ),
    Guard(
        name="stored: the name of a part stays in its folder",
        before="    name: Segment\n    digest: str\n    records",
        after="    name: str\n    digest: str\n    records",
        test=f"{_STORED} -k elsewhere",
    ),
    Guard(
        name="stored: a record with unknown parts is refused",
        before="    _refuse_unknown(found, value)\n    return found\n",
        after="    return found\n",
        test=f"{_STORED} -k elsewhere",
    ),
    Guard(
        name="stored: a record of a newer version is not called damaged",
        before="    if isinstance(error, RecordNewerError):\n",
        after="    if False:\n",
        test="tests/unit/cli/test_runs_and_status.py -k newer_version",
    ),
    Guard(
        name="stored: nor is a kind of record that is not known",
        before='        raise RecordNewerError(f"unknown content: a record of kind',
        after='        raise RecordDamagedError(f"unknown content: a record of kind',
        test="tests/unit/model/test_records.py -k newer_version",
    ),
    Guard(
        name="stored: a sink's own JSON is not nested without end",
        before="        refuse_deep(self.detail)\n",
        after="",
        test=f"{_STORED} -k out_of_bounds",
    ),
    Guard(
        name="stored: nor is a schema",
        before="        refuse_deep(body.schema)\n",
        after="        pass\n",
        test=f"{_STORED} -k schema",
    ),
    Guard(
        name="stored: a record was written at a moment that can be shown",
        before="    refuse_no_moment(found.written_at)\n",
        after="",
        test=f"{_STORED} -k moment",
    ),
    Guard(
        name="stored: a run has a nonce",
        before="    nonce: Segment\n",
        after="    nonce: str\n",
        test=f"{_STORED} -k nonce",
    ),
    Guard(
        name="stored: no record is written to the run log that cannot be read",
        before="    with must_be_readable():\n        decode_record(data)\n",
        after="",
        test=f"{_STORED} -k not_written_to_the_run_log",
    ),
    Guard(
        name="stored: no record is written to a task log that cannot be read",
        before="            TaskRecord.from_json(open_json(data))\n",
        after="            pass\n",
        test=f"{_STORED} -k not_written_to_a_task_log",
    ),
    Guard(
        name="stored: a part has as many records as its reference says",
        before="rows=reference.records, ",
        after="",
        test=f"{_STORED} -k other_columns",
    ),
    Guard(
        name="stored: Arrow is looked at value by value before it is used",
        before="            batch.validate(full=True)\n            batches.append(batch)\n",
        after="            batches.append(batch)\n",
        test=f"{_CHUNKS} -k leads_out",
    ),
    Guard(
        name="stored: Arrow is unpacked only by the codec that it is written with",
        before="        _refuse_other_codecs(data)\n",
        after="",
        test=f"{_CHUNKS} -k codec",
    ),
    Guard(
        name="stored: a chunk unpacks into no more than LZ4 can pack",
        before="            _refuse_over(size_max, max(size, batch.nbytes))\n",
        after="",
        test=f"{_CHUNKS} -k unpacks",
    ),
    Guard(
        name="stored: the footer of Parquet does not promise more than memory holds",
        before="_refuse_over(DECODED_BYTES_MAX, max(promised, facts",
        after="_refuse_over(DECODED_BYTES_MAX, min(0, facts",
        test=f"{_KEYS} -k promise",
    ),
    Guard(
        name="stored: pages of Parquet do not hold more than memory does",
        before="            _refuse_over(DECODED_BYTES_MAX, found)\n",
        after="",
        test=f"{_KEYS} -k pages",
    ),
    Guard(
        name="sweep: a link inside a run's folder is not followed",
        before="        if os.path.islink(",
        after="        if False and os.path.islink(",
        test="tests/unit/engine/test_cleanup_live_files.py -k link",
    ),
    Guard(
        name="stored: a schema of an Iceberg table is one",
        before="    old, new = _read(began), Schema.model_validate(now)\n",
        after="    old, new = Schema.model_validate(began), Schema.model_validate(now)\n",
        test="tests/unit/sinks/iceberg/test_sink.py -k no_table_has",
    ),
    Guard(
        name="stored: what a ledger says of a manifest has its declared types",
        before="        return typed(group.detail, Detail)\n",
        after="        return msgspec.convert(group.detail, Detail, strict=False)\n",
        test="tests/unit/sinks/iceberg/test_sink.py -k no_writer",
    ),
    Guard(
        name="stored: a manifest has as many partitions as its spec",
        before="        if len(detail.partitions) != len(specs[number].fields):\n",
        after="        if False:\n",
        test="tests/unit/sinks/iceberg/test_sink.py -k no_writer",
    ),
    Guard(
        name="stored: a schema of a Lance dataset is one",
        before="        typed(schema, _SchemaJson)\n",
        after="        pass\n",
        test="tests/unit/sinks/lance/test_post_hostile.py -k no_dataset",
    ),
    Guard(
        name="stored: what a ledger says of a fragment is looked at before the intent",
        before="        for group in groups:\n            self._fragment(group)\n"
        "        if changes:",
        after="        if changes:",
        test="tests/unit/sinks/lance/test_post_hostile.py -k fragment",
    ),
    Guard(
        name="stored: a fragment is in the file that the ledger lists",
        before="        if own != group.path:\n",
        after="        if False:\n",
        test="tests/unit/sinks/lance/test_post_hostile.py -k fragment",
    ),
)
