"""The guards that exactly-once depends on where the table is a Lance dataset."""

from __future__ import annotations

from tests.guards.guard import Guard

_HOSTILE = "tests/unit/sinks/lance/test_post_hostile.py"
_CLEANED = "tests/unit/sinks/lance/test_post.py"
_ANSWERS = "tests/unit/sinks/lance/test_post.py"
_CONTRACT = "tests/contract/test_lance_tables.py -k LocalFiles"

_NAMESPACES = "tests/unit/sinks/lance/test_namespaces.py"

LANCE_GUARDS = (
    Guard(
        name="Lance: a pylance that no post can be made with is refused at the beginning",
        before="    if problem:\n",
        after="    if False:\n",
        test="tests/unit/sinks/lance/test_fields.py",
    ),
    Guard(
        name="lance: the first file format, which loses NULLs, is refused",
        before="        refuse_first_format(self.name, dataset)\n",
        after="",
        test="tests/unit/sinks/lance/test_writer.py -k first_file_format",
    ),
    Guard(
        name="lance: a struct that is NULL is refused where files cannot hold it",
        before="            if _has_null_struct(rows.column(name)):\n",
        after="            if False:\n",
        test="tests/unit/sinks/lance/test_writer.py -k struct_that_is_null",
    ),
    Guard(
        name="Lance: a namespace that keeps a table's versions itself is not passed by",
        before="if found.managed_versioning:",
        after="if False:",
        test=_NAMESPACES,
    ),
    Guard(
        name="Lance: keys of a namespace that expire are not taken for lasting ones",
        before="if _EXPIRES in vended:",
        after="if False:",
        test=_NAMESPACES,
    ),
    Guard(
        name="Lance: a refused start makes no name known to a namespace",
        before="        before_create(_Unplaced(named))\n",
        after="",
        test=_NAMESPACES,
    ),
    Guard(
        name="Lance: a post names all fragments, so nothing else may have come since",
        before="        landed = self._commit(merge)\n",
        after="        landed = self._commit(LanceOperation.Append(list(self.fragments)))\n",
        test=_CONTRACT,
    ),
    Guard(
        name="Lance: a dataset that was made again takes no post",
        before=" or read_identity(self.place) != self.view.uuid:\n            return Outcome",
        after=":\n            return Outcome",
        test=_HOSTILE,
    ),
    Guard(
        name="Lance: a post into a dataset made again at the last moment is told",
        before="if read_identity(self.place) != self.view.uuid:\n            raise TableChanged",
        after="if False:\n            raise TableChanged",
        test=_HOSTILE,
    ),
    Guard(
        name="Lance: versions that were cleaned away since the look stop a post",
        before="if not self._lets_pass(base.version) or ",
        after="if ",
        test=_CLEANED,
    ),
    Guard(
        name="Lance: a version below younger ones that know nothing of it has not landed",
        before="        if is_stray:\n",
        after="        if False:\n",
        test=_CLEANED,
    ),
    Guard(
        name="Lance: where the mark is gone, the versions since tell",
        before="        return _unmarked(history, table=table",
        after="        return None and _unmarked(history, table=table",
        test=_HOSTILE,
    ),
    Guard(
        name="Lance: a version that was cleaned away proves nothing",
        before="    if gone:\n        raise CommitU",
        after="    if False:\n        raise CommitU",
        test=_HOSTILE,
    ),
    Guard(
        name="Lance: a dataset whose versions went back is not believed",
        before="    if mark.sequence_number > history.dataset.version:\n",
        after="    if False:\n",
        test=_HOSTILE,
    ),
    Guard(
        name="Lance: rows that were overwritten and restored are there",
        before="present.get(step.restored, False)\n",
        after="False\n",
        test=_HOSTILE,
    ),
    Guard(
        name="Lance: what Lance refuses as a conflict is one",
        before="        except CommitConflictError:\n            return Outcome.CONFLICT\n",
        after="        except CommitConflictError:\n            return Outcome.UNKNOWN\n",
        test=_ANSWERS,
    ),
    Guard(
        name="Lance: a post onto a version that was cleaned away is a conflict",
        before="            return Outcome.CONFLICT  # The version",
        after="            return Outcome.UNKNOWN  # The version",
        test=_ANSWERS,
    ),
    Guard(
        name="Lance: a refusal of a dataset that has changed proves nothing",
        before="        if isinstance(error, ValueError) and not self._has_changed():\n",
        after="        if isinstance(error, ValueError):\n",
        test=_ANSWERS,
    ),
    Guard(
        name="Lance: a setting or an index does not settle an older post",
        before="            while version > 0 and self.step(version).lets_pass:\n",
        after="            while False:\n",
        test=_HOSTILE,
    ),
    Guard(
        name="Lance: a mark that was copied elsewhere with the rows is nobody's",
        before="        return mark if _is_of(identity, text) else None\n",
        after="        return mark\n",
        test=_HOSTILE,
    ),
    Guard(
        name="Lance: a run is looked for under every id",
        before="    return mark_of_run((text for text",
        after="    return None and mark_of_run((text for text",
        test="tests/contract/test_lance_tables.py -k copied_to_another_id",
    ),
    Guard(
        name="Lance: a schema keeps the numbers of its fields",
        before="    return rebuild(json.dumps(metadata), *fields)\n",
        after=(
            "    arrow = schema.to_pyarrow().with_metadata("
            "{name: bytes(value) for name, value in metadata.items()})\n"
            "    return type(schema).from_pyarrow(arrow)\n"
        ),
        test=_HOSTILE,
    ),
    Guard(
        name="Lance: of two that create, one does",
        before="            max_retries=0,\n",
        after="",
        test="tests/integration/test_lance_races.py::test_a_dataset_is_created_once[local]",
    ),
    Guard(
        name="Lance: no path outside the dataset is deleted",
        before="refuse_outside(self.name, [self._place.data, self._place.deletions], paths)",
        after="pass",
        test=_CONTRACT,
    ),
    Guard(
        name="Lance: a changed schema stops the commit",
        before="            changes = changes_since(view.handle, schemas, view.schema)\n",
        after="            changes: list[str] = []\n",
        test=_CONTRACT,
    ),
    Guard(
        name="Lance: what its Python has no class for settles nothing",
        before='    "UpdateBases",\n    "BaseOperation",\n',
        after='    "UpdateBases",\n',
        test="tests/unit/sinks/lance/test_history.py",
    ),
    Guard(
        name="trust: no dataset gets an id on a ledger's word",
        before='                if self._without_id == "refuse":\n',
        after="                if False:\n",
        test="tests/unit/sinks/test_staged.py -k forged_run_file",
    ),
    Guard(
        name="Lance: some files in common with newer versions prove no landing",
        before="        if not files <= _files(after):\n",
        after="        if not files & _files(after):\n",
        test=f"{_CLEANED} -k others_kept_the_base",
    ),
    Guard(
        name="Lance: every schema that files were staged for is compared",
        before="    for schema in schemas:\n        if found := schema_changes(schema, now):\n",
        after="    for schema in schemas[-1:]:\n        if found := schema_changes(schema, now):\n",
        test=f"{_HOSTILE} -k files_of_each_start",
    ),
    Guard(
        name="Lance: pages are put together only if they are encoded alike",
        before="    if (one.version, one.encodings) != (other.version, other.encodings):\n",
        after="    if one.version != other.version:\n",
        test="tests/unit/sinks/lance/test_pages.py -k another_end_describes",
    ),
    Guard(
        name="Lance: copies that the store failed to make are not posted",
        before="  # Storage did answer: an object is missing.\n            raise\n",
        after="\n",
        test="tests/unit/sinks/test_staged.py -k copies_that_were_not_made",
    ),
)
