"""The guards that exactly-once depends on where the table is an Iceberg table."""

from __future__ import annotations

from tests.guards.guard import Guard

_SINK = "tests/unit/sinks/iceberg/test_sink.py"
_DATA_FILE = "tests/unit/sinks/iceberg/test_data_file.py"
_STAGED = "tests/unit/sinks/test_staged.py"
_TRUST = "tests/unit/sinks/iceberg/test_file_io.py"
_MERGED = "tests/unit/sinks/iceberg/test_manifests_merged.py"
_HISTORY = "tests/unit/sinks/iceberg/test_catalog_long_history.py"
_PRESENCE = "tests/unit/sinks/iceberg/test_marks.py"


def _rule(name: str) -> Guard:
    """Return one retention rule of a branch, as a guard."""
    return Guard(
        name=f"Iceberg: a post keeps the {name} of its branch",
        before=f"            {name}=ref.{name} if ref else None,\n",
        after="",
        test=f"{_SINK} -k retention",
    )


ICEBERG_GUARDS = (
    Guard(
        name="Iceberg: a manifest that holds only existing files is kept",
        before="        if manifest.has_added_files() or manifest.has_existing_files()\n",
        after="        if manifest.has_added_files()\n",
        test=f"{_SINK} -k only_existing",
    ),
    _rule("max_ref_age_ms"),
    _rule("max_snapshot_age_ms"),
    _rule("min_snapshots_to_keep"),
    Guard(
        name="Iceberg: the oldest marks are dropped, in whatever order they come",
        before="    others = sorted(\n",
        after="    others = list(\n",
        test="tests/unit/sinks/iceberg/test_marks.py",
    ),
    Guard(
        name="Iceberg: a run is looked for under every id",
        before="        if name.startswith(MARK_PREFIX):\n            yield text\n",
        after="        pass\n",
        test=f"{_PRESENCE} -k under_the_id",
    ),
    Guard(
        name="Iceberg: a snapshot's summary tells whose it is",
        before="    for snapshot in metadata.snapshots:\n        if snapshot.summary",
        after="    for snapshot in ():\n        if snapshot.summary",
        test=f"{_PRESENCE} -k snapshot_proves",
    ),
    Guard(
        name="Iceberg: an intent whose number another snapshot has got is dead",
        before="        if doubted and doubted - _taken(metadata, io, branch):\n",
        after="        if doubted:\n",
        test=f"{_PRESENCE} -k dead",
    ),
    Guard(
        name="Iceberg: the numbers of expired snapshots are read from manifests",
        before="        taken |= {manifest.sequence_number for manifest in "
        "manifests_of(head, io)}\n",
        after="        pass\n",
        test=f"{_PRESENCE} -k dead",
    ),
    Guard(
        name="Iceberg: a run without rows is found at the head",
        before="        if mark.snapshot_id in (snapshot.snapshot_id, parent_id, ",
        after="        if mark.snapshot_id in (parent_id, ",
        test=f"{_PRESENCE} -k without_rows",
    ),
    Guard(
        name="Iceberg: a cherry-picked copy is found by the snapshot that it names",
        before=", parent_id, _picked(snapshot)):",
        after=", parent_id):",
        test=f"{_PRESENCE} -k cherry_picked",
    ),
    Guard(
        name="Iceberg: a horizon or count that is no number is an error",
        before="    if not text.isdecimal():\n",
        after="    if not text.isdecimal():\n        return 0\n    if False:\n",
        test="tests/unit/sinks/iceberg/test_marks.py",
    ),
    Guard(
        name="Iceberg: a partition spec that is gone stops the commit",
        before="        if number not in specs:\n",
        after="        if number not in specs:\n            continue\n        if False:\n",
        test=f"{_SINK} -k spec_that_is_gone",
    ),
    Guard(
        name="Iceberg: no request to a catalog follows a redirect",
        before="        if response.status_code in _REDIRECTS:\n",
        after="        if False:\n",
        test=f"{_HISTORY} -k redirect",
    ),
    Guard(
        name="Iceberg: an answer to a commit holds its snapshot",
        before="            if not wanted or not wanted <= {",
        after="            if False and not wanted <= {",
        test=f"{_HISTORY} -k only_the_catalogs_own",
    ),
    Guard(
        name="Iceberg: a server's configuration sets neither code nor logins",
        before="        self.properties = {**_from_server(self.properties), **own}\n",
        after="",
        test=f"{_HISTORY} -k neither_code",
    ),
    Guard(
        name="Iceberg: what comes beside a table names no code",
        before="        sent = _from_server(table_response.config)\n",
        after="        sent = table_response.config\n",
        test=f"{_HISTORY} -k beside_a_table",
    ),
    Guard(
        name="Iceberg: a partition spec whose number was given again stops the post",
        before="        if detail.has_sound_bounds and detail.spec != texts[number]:\n",
        after="        if False:\n",
        test=f"{_SINK} -k given_again",
    ),
    Guard(
        name="Iceberg: a snapshot is not older than the table's last change",
        before="    return max(time.time_ns() // 1_000_000, max(last) + 1)\n",
        after="    return time.time_ns() // 1_000_000\n",
        test=f"{_SINK} -k never_older",
    ),
    Guard(
        name="Iceberg: a snapshot is later than the table's last change, not of the same time",
        before="max(last) + 1)\n",
        after="max(last))\n",
        test=f"{_SINK} -k never_older",
    ),
    Guard(
        name="Iceberg: each post compares the partition specs, and the bounds",
        before='    refuse_unlistable(".".join(table.name()), table, listed)\n',
        after="",
        test=f"{_SINK} -k unsound",
    ),
    Guard(
        name="Iceberg: bounds without counts of NaN do not land",
        before="        if not detail_of(group).has_sound_bounds:\n",
        after="        if False:\n",
        test=f"{_SINK} -k unsound",
    ),
    Guard(
        name="Iceberg: NaN are counted",
        before="            self._nans[field_id] += _nans_in(rows, place)\n",
        after="            self._nans[field_id] += 0\n",
        test=f"{_DATA_FILE} -k nan",
    ),
    Guard(
        name="Iceberg: bounds without counts of NaN are not written",
        before="                    drop_unsound_bounds(file, schema)\n",
        after="                    pass\n",
        test=f"{_DATA_FILE} -k without_a_count",
    ),
    Guard(
        name="Iceberg: a manifest with another number of files is not merged",
        before="        if found != len(group.files):\n",
        after="        if False:\n",
        test=f"{_MERGED} -k not_what_was_staged",
    ),
    Guard(
        name="Iceberg: a manifest of another size is not merged",
        before="            if len(data) != fetched.size_bytes:\n",
        after="            if False:\n",
        test=f"{_MERGED} -k not_what_was_staged",
    ),
    Guard(
        name="Iceberg: a record's entries name the files that the ledger lists",
        before="            if (at := source.entries.find(file.path.encode(), at)) < 0:\n",
        after="            if False:\n",
        test=f"{_MERGED} -k entries_in_a_record",
    ),
    Guard(
        name="Iceberg: a merge stops if a file is gone",
        before="        refuse_missing(self._name, sorted(files.keys() - paths_there))\n",
        after="",
        test=f"{_MERGED} -k asked_for_while",
    ),
    Guard(
        name="Iceberg: the files of a merge are asked for again at the second check",
        before="        (until, there), self._there = self._there, (0.0, frozenset())\n",
        after="        until, there = self._there\n",
        test=f"{_MERGED} -k asked_for_while",
    ),
    Guard(
        name="Iceberg: what a merge has found counts for a minute",
        before="        if time.monotonic() < until:\n",
        after="        if there:\n",
        test=f"{_MERGED} -k asked_for_while",
    ),
    Guard(
        name="Iceberg: manifests with other headers are merged apart",
        before="        digest, entries = header_digest(header), ",
        after='        digest, entries = "", ',
        test=f"{_MERGED} -k other_headers",
    ),
    Guard(
        name="Iceberg: manifests of another spec are not merged",
        before=" if details[group.path].spec_id == spec.spec_id]\n",
        after="]\n",
        test=f"{_MERGED} -k another_spec",
    ),
    Guard(
        name="Iceberg: a merged manifest has the bounds of all",
        before='        "upper": max(upper, key=value, default=None),\n',
        after='        "upper": max(upper, default=None),\n',
        test=f"{_MERGED} -k what_the_others_say",
    ),
    Guard(
        name="Iceberg: only an answer about the table means that a commit landed",
        before="            if answer.metadata.uuid != table.metadata.table_uuid:\n",
        after="            if False:\n",
        test=f"{_HISTORY} -k own_answer",
    ),
    Guard(
        name="Iceberg: a page of a proxy does not mean that a commit landed",
        before="            answer = msgspec.json.decode(posted.answer, type=_Committed)\n",
        after="            return\n",
        test=f"{_HISTORY} -k own_answer",
    ),
    Guard(
        name="Iceberg: a table is not taken for another that was loaded before",
        before="known[1].name() == self.identifier_to_tuple(identifier):\n",
        after="True:\n",
        test=f"{_HISTORY} -k parsed_again",
    ),
    Guard(
        name="Iceberg: vended keys are asked for at each load",
        before="not expires and not table_response.storage_credentials\n",
        after="True\n",
        test=f"{_HISTORY} -k vends",
    ),
    Guard(
        name="Iceberg: metadata of another file is parsed",
        before="        if last and last[0][0] == facts:\n",
        after="        if last:\n",
        test=f"{_HISTORY} -k sql_catalogs",
    ),
    Guard(
        name="trust: a table's properties are no storage options, in SQL and Glue catalogs",
        before="    return HoldfastFileIO(catalog.properties)\n",
        after="    return HoldfastFileIO({**catalog.properties, **properties})\n",
        test=f"{_TRUST} -k endpoint",
    ),
    Guard(
        name="trust: a table's properties are no storage options, in a REST catalog",
        before="        sent = _from_server(table_response.config)\n",
        after="        sent = _from_server({**table_response.metadata.properties, "
        "**table_response.config})\n",
        test="tests/unit/sinks/iceberg/test_catalog_vended_credentials.py -k servers_config",
    ),
    Guard(
        name="trust: what PyIceberg mixes for a REST catalog's table is not used",
        before="        return HoldfastFileIO(self.properties)\n",
        after="        return HoldfastFileIO({**self.properties, **properties})\n",
        test="tests/unit/sinks/iceberg/test_file_io.py -k rest_catalog",
    ),
    Guard(
        name="trust: a commit imports no code that a table names",
        before='"properties": without_code(metadata.properties),',
        after="",
        test=f"{_TRUST} -k never_imported",
    ),
    Guard(
        name="trust: a commit keeps the table's properties that name code",
        before="{**staged.metadata.properties, **code}",
        after="{**staged.metadata.properties}",
        test=f"{_TRUST} -k never_imported",
    ),
    Guard(
        name="trust: no property hides a commit from Glue",
        before="        if names := pointers_among(self._catalog, table.properties):\n",
        after="        if names := []:\n",
        test=f"{_TRUST} -k hide_a_commit",
    ),
    Guard(
        name="trust: no property that comes late hides a commit from Glue",
        before="    if pointers_among(catalog, metadata.properties):\n",
        after="    if False:\n",
        test=f"{_TRUST} -k hide_a_commit",
    ),
    Guard(
        name="trust: an executor imports no code that a table names",
        before="spec.location, without_code(self._properties)",
        after="spec.location, self._properties",
        test=f"{_TRUST} -k never_imported",
    ),
    Guard(
        name="trust: no table is created with the name of code",
        before="    if named := [name for name in CODE_PROPERTIES if name in properties]:\n",
        after="    if named := []:\n",
        test=f"{_TRUST} -k not_created",
    ),
    Guard(
        name="trust: a PyIceberg that goes past our overrides is refused",
        before="    _refuse_unguarded(kind, type(catalog))\n",
        after="",
        test=f"{_TRUST} -k bypasses_our_guards",
    ),
    Guard(
        name="trust: a PyIceberg that has renamed what we override is refused",
        before=" and any(hook in names for names in theirs)",
        after="",
        test=f"{_TRUST} -k a_hook_that",
    ),
    Guard(
        name="trust: nothing is deleted in a folder that a property names",
        before=" or not path.startswith(prefix)]",
        after="]",
        test=f"{_STAGED} -k nothing_is_deleted_in",
    ),
    Guard(
        name="trust: a table whose location is a root owns nothing there",
        before=" if is_root(own) or not",
        after=" if not",
        test=f"{_STAGED} -k is_a_root",
    ),
    Guard(
        name="trust: a path through a symbolic link is not deleted",
        before=" or _has_link(path, max(depths), links)",
        after="",
        test=_STAGED,
    ),
    Guard(
        name="trust: a sweep ends though it must leave files",
        before="    except UnsupportedTableError as error:  # Upgraded since, or files in a folder "
        "of others.\n",
        after="    except ZeroDivisionError as error:\n",
        test=f"{_STAGED} -k says_so",
    ),
)
