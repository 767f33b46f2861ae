"""Guards of columns that are computed for rows that are there."""

from __future__ import annotations

from tests.guards.guard import Guard

_RUNS = "tests/unit/engine/test_columns.py -k"
_MOVED = "tests/unit/engine/test_columns_moved.py -k"
_FILES = "tests/unit/sinks/lance/test_column_files.py -k"
_PAGES = "tests/unit/sinks/lance/test_pages.py -k"
_INDICES = "tests/unit/engine/test_columns_indices.py -k"

COLUMN_GUARDS = (
    Guard(
        name="columns: JSON, which no start could put together, is refused at the beginning",
        before="        if is_json(column):\n",
        after="        if False:\n",
        test="tests/unit/engine/test_columns_types.py -k json",
    ),
    Guard(
        name="columns: no index covers fragments whose columns are computed again",
        before="        if self._work.is_update and not self._is_uncovered(fill):\n",
        after="        if False:\n",
        test=f"{_INDICES} nested_column",
    ),
    Guard(
        name="columns: an index that was built since covers them again",
        before="        return not History(self._place.open()).has_new_index(done.version)\n",
        after="        return True\n",
        test=f"{_INDICES} between_look_and_post",
    ),
    Guard(
        name="columns: a version that takes fragments out of indices may undo what was cleaned up",
        before="is_whole=History(landed).shows(self._base.version)",
        after="is_whole=True",
        test=f"{_INDICES} does_not_see",
    ),
    Guard(
        name="columns: an update in place leaves no trace unless it changes no fragment",
        before="_fragments(self.opened(version)) == _fragments(self.opened(version - 1))\n",
        after="True\n",
        test=f"{_MOVED} proves_nothing",
    ),
    Guard(
        name="columns: a new column gets a number that no dropped one had",
        before="            used.update(file.fields)\n",
        after="            pass\n",
        test=f"{_RUNS} leaves_no_values_behind",
    ),
    Guard(
        name="columns: rows that a restore brings back have no value",
        before="        if parts and not len(lacks := self._revived(fragment, parts)):\n",
        after="        if parts:\n",
        test=f"{_RUNS} restore_brings_back",
    ),
    Guard(
        name="columns: a fragment that was not appended may hold old rows",
        before="            if files & self._appended:\n",
        after="            if files:\n",
        test=f"{_RUNS} compacted_rows_are_computed_again",
    ),
    Guard(
        name="columns: ids prove nothing if values may have changed without a trace",
        before=" or not self.history.traces_rows_since(self._first):",
        after=":",
        test=f"{_MOVED} proves_nothing",
    ),
    Guard(
        name="columns: a row that was updated is another row under the same id",
        before="        changed = np.maximum(rows.created, rows.updated) > versions[owner]\n",
        after="        changed = np.zeros(len(owner), dtype=bool)\n",
        test=f"{_MOVED} changed_rows_are_computed_again",
    ),
    Guard(
        name="columns: an assembler takes no value of a row that was updated since",
        before="        is_same = (found >= 0) & ids.unchanged_since(part.version)\n",
        after="        is_same = found >= 0\n",
        test=f"{_MOVED} changed_rows_are_computed_again",
    ),
    Guard(
        name="columns: an assembler finds a value for each live row",
        before="        if not work.keeps and not has_value[live].all():\n",
        after="        if False:\n",
        test=f"{_FILES} live_row_without_a_value",
    ),
    Guard(
        name="columns: an assembler finds one value for a row",
        before="    if np.any(positions[1:] == positions[:-1]):\n",
        after="    if False:\n",
        test=f"{_FILES} row_with_two_values",
    ),
    Guard(
        name="columns: values in a file that is used as it is are in order",
        before="            is_whole = file.is_in_order and (file",
        after="            is_whole = (file",
        test=f"{_FILES} other_files_are_not_whole",
    ),
    Guard(
        name="columns: a file has as many rows as its fragment",
        before="        if staged.physical_rows != metadata.physical_rows:\n",
        after="        if False:\n",
        test=f"{_FILES} file_with_other_rows",
    ),
    Guard(
        name="columns: a fragment without values has no row that is to have one",
        before="        if rows.any():\n",
        after="        if False:\n",
        test=f"{_FILES} fragment_without_values",
    ),
    Guard(
        name="columns: a column of the same name is another writer's",
        before="        if taken := [name for name in work.schema.names if name in there]:\n",
        after="        if taken := []:\n",
        test=f"{_RUNS} same_name_is_not_overwritten",
    ),
    Guard(
        name="columns: columns that the transform gets are still there",
        before="if lacks := [name for name in work.pins.schema.names if name not in there]:",
        after="if lacks := []:",
        test=f"{_MOVED} may_not_be_dropped",
    ),
    Guard(
        name="columns: kept values depend on which rows are live",
        before="str(metadata.deletion_file)] if keeps",
        after='""] if keeps',
        test=f"{_RUNS} restored_rows_are_right",
    ),
    Guard(
        name="columns: output has a row for each input row",
        before="    if at != len(numbers):\n",
        after="    if False:\n",
        test=f"{_RUNS} other_rows_is_refused",
    ),
    Guard(
        name="columns: a fragment's state says where the values are that are read",
        before="    facts = [fragment.id, fragment.physical_rows, found]\n",
        after="    facts = [fragment.id, fragment.physical_rows]\n",
        test=f"{_MOVED} changes_in_place_is_computed_again",
    ),
    Guard(
        name="columns: a later start computes the columns of the first",
        before="            self._refuse_other_columns(ledger)\n",
        after="",
        test=f"{_RUNS} columns_are_those_of_the_first_start",
    ),
    Guard(
        name="columns: pages are copied only if rows are in order",
        before="        if not np.array_equal(found, np.arange(work.rows)):\n",
        after="        if False:\n",
        test=f"{_FILES} pages_of_other_files",
    ),
    Guard(
        name="columns: a file of copied pages is read before it is used",
        before="        if not self._is_right(path, part.base, ordered):\n",
        after="        if False:\n",
        test=f"{_FILES} copy_that_is_not_right",
    ),
    Guard(
        name="columns: rows that are known by ids are never copied as pages",
        before="        if not work.like or work.since or len(work.parts) > 1:\n",
        after="        if not work.like or len(work.parts) > 1:\n",
        test=f"{_FILES} rows_known_by_ids",
    ),
    Guard(
        name="columns: a copied page says which row is its first",
        before="first=page.first + by_rows",
        after="first=page.first",
        test=f"{_PAGES} joined_again",
    ),
    Guard(
        name="columns: a copied page says where its bytes are now",
        before="(start + by_bytes, size)",
        after="(start, size)",
        test=f"{_PAGES} types_are_those",
    ),
    Guard(
        name="columns: pages of other columns are not put together",
        before="        if not _are_alike(pages, like):\n",
        after="        if False:\n",
        test=f"{_PAGES} other_columns",
    ),
    Guard(
        name="columns: a page whose encoding is not known is not copied",
        before=" or not set(layouts) <= _LAYOUTS:",
        after=":",
        test=f"{_PAGES} blobs",
    ),
)
