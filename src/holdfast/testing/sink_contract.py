"""The sink contract: what the engine's promises rest on, as tests for any table format.

Derive a class whose name begins with `Test`, give it `table`, and let pytest collect it. Each
case is a promise of `holdfast.sinks.base.Sink`; its docstring says which, and a failure says
what was expected instead.
"""

from __future__ import annotations

import json
import pickle
import sys
import uuid
from dataclasses import replace
from functools import partial

from holdfast.errors import LedgerDamagedError, StagedFileMissingError, TableChangedError
from holdfast.sinks.base import MarkFound
from holdfast.testing.expectations import expect, expect_error, expect_landed, our_rows
from holdfast.testing.mark_cases import MarkCases
from holdfast.testing.post_cases import PostCases
from holdfast.testing.table_under_test import IDS, OTHER_IDS, Attempt, Cases

# What a path can have between folder and name that a file system or a server resolves.
_WAYS_OUT = ("../", "../../", "./", "/", "%2e%2e/", "%252E%252e/", "..%2f", "x/../../", "..\\")


class _FileCases(Cases):
    """What writers, `missing_files`, `check`, `copy_groups` and `delete_files` must do."""

    def test_a_writer_spec_survives_the_way_to_an_executor(self) -> None:
        """What executors get is pickled; what they stage with it fits the table."""
        table = self.table()
        sink = table.sink()
        view = sink.load()
        spec = pickle.loads(pickle.dumps(sink.writer_spec(view)))  # noqa: S301 - our own bytes.
        groups = table.stage(IDS, spec)
        sink.check(view, [view.schema], groups)
        expect(sum(file.rows for group in groups for file in group.files), len(IDS), "staged rows")

    def test_a_task_without_rows_stages_nothing(self) -> None:
        """An empty task leaves no file, and a post of nothing but its mark lands."""
        table = self.table()
        attempt = table.attempt([])
        expect(attempt.groups, [], "what a task without rows has staged")
        expect_landed(attempt)
        expect(attempt.find(), MarkFound(mark=attempt.mark, present=True), "its mark")

    def test_each_missing_file_is_named_and_stops_the_commit(self) -> None:
        """A staged file that is gone is named; the check stops before anything is posted."""
        table = self.table()
        for index in range(len(table.attempt(IDS).paths)):
            attempt = table.attempt(IDS)
            sink, view, groups = attempt.sink, attempt.view, attempt.groups
            expect(sink.missing_files(view, groups), [], "missing files while all are there")
            sink.check(view, [view.schema], groups)
            table.remove_file(attempt.paths[index])
            expect(sink.missing_files(view, groups), [attempt.paths[index]], "missing files")
            error = expect_error(
                StagedFileMissingError,
                partial(sink.check, view, [view.schema], groups),
                "a check while a staged file is gone",
            )
            expect((error.path, error.count), (attempt.paths[index], 1), "what the error names")

    def test_a_file_of_another_size_counts_as_missing(self) -> None:
        """A file that somebody has overwritten or cut short is not the one that was staged."""
        table = self.table()
        attempt = table.attempt(IDS)
        group = attempt.groups[0]
        file = replace(group.files[0], size_bytes=group.files[0].size_bytes + 1)
        grown = replace(group, files=(file, *group.files[1:]))
        missing = attempt.sink.missing_files(attempt.view, [grown, *attempt.groups[1:]])
        expect(missing, [file.path], "files of another size")

    def test_a_changed_schema_stops_the_commit(self) -> None:
        """Files that were staged for another schema are not posted; the same schema passes."""
        table = self.table()
        attempt = table.attempt(IDS)
        began = json.loads(json.dumps(attempt.view.schema))  # The ledger keeps it as JSON.
        attempt.sink.check(attempt.sink.load(), [began], attempt.groups)
        table.change_schema()
        view = attempt.sink.load()
        expect_error(
            TableChangedError,
            lambda: attempt.sink.check(view, [began], attempt.groups),
            "a check after the schema has changed",
        )

    def test_a_copy_lands_in_the_place_of_what_was_copied(self) -> None:
        """Copies have other names, and need nothing of the originals once they are made."""
        table = self.table()
        attempt = table.attempt(IDS)
        sink, view, groups = attempt.sink, attempt.view, attempt.groups
        targets = [group.renamed(uuid.uuid4().hex) for group in groups]
        copies = sink.copy_groups(view, groups, targets)
        expect([one.paths for one in copies], [one.paths for one in targets], "the copies' names")
        _expect_missing(attempt, [], "files that were copied")
        sink.delete_files(view, attempt.paths)
        sink.check(view, [view.schema], copies)
        expect_landed(replace(attempt, groups=copies))
        expect(our_rows(table), IDS, "rows of copies")

    def test_a_copy_of_what_is_gone_is_refused(self) -> None:
        """Each staged object counts: rows would be left out without a word."""
        table = self.table()
        for index in range(len(table.attempt(IDS).paths)):
            attempt = table.attempt(IDS)
            sink, view, groups = attempt.sink, attempt.view, attempt.groups
            table.remove_file(attempt.paths[index])
            targets = [group.renamed(uuid.uuid4().hex) for group in groups]
            expect_error(
                StagedFileMissingError,
                partial(sink.copy_groups, view, groups, targets),
                "a copy of what is gone",
            )
            expect_error(
                StagedFileMissingError,
                partial(sink.old_groups, view, groups, 0.0),
                "a look at the age of what is gone",
            )

    def test_what_was_just_written_is_old_only_from_later_on(self) -> None:
        """Between two moments that are hours away, any clock will do."""
        attempt = self.table().attempt(IDS)
        sink, view, groups = attempt.sink, attempt.view, attempt.groups
        expect(sink.old_groups(view, groups, sys.float_info.min), [], "what is as old as time")
        expect(sink.old_groups(view, groups, sys.float_info.max), groups, "what is older than ever")

    def test_deleting_staged_files_is_safe_to_repeat(self) -> None:
        """A sweep that was cut short begins again; what has landed is left alone."""
        table = self.table()
        landed = table.attempt(IDS)
        expect_landed(landed)
        doomed = table.attempt(OTHER_IDS, number=2)
        for _ in range(2):
            doomed.sink.delete_files(doomed.sink.load(), doomed.paths)
        _expect_missing(landed, [], "files that have landed")
        expect(our_rows(table), IDS, "rows after others' files were deleted")

    def test_files_in_the_table_are_live_and_staged_ones_are_not(self) -> None:
        """Whatever a ledger says, a sweep deletes nothing that the table reaches."""
        table = self.table()
        landed = table.attempt(IDS)
        expect_landed(landed)
        staged = table.attempt(OTHER_IDS, number=2)
        sink = table.sink()
        found = sink.live_files(sink.load(), [*landed.paths, *staged.paths], "")
        expect(found, set(landed.paths), "the files that the table reaches")

    def test_deleted_files_are_missing(self) -> None:
        """What was swept cannot be posted any more: the check names every file of it."""
        table = self.table()
        doomed = table.attempt(IDS)
        doomed.sink.delete_files(doomed.sink.load(), doomed.paths)
        _expect_missing(doomed, doomed.paths, "files that were deleted")

    def test_a_path_outside_the_table_is_refused(self) -> None:
        """A ledger that names somebody else's file is damaged, and no file goes on its word."""
        table = self.table()
        attempt = table.attempt(IDS)
        outside = table.path_outside()
        expect_error(
            LedgerDamagedError,
            lambda: attempt.sink.delete_files(attempt.view, [outside]),
            "a path outside the table",
        )

    def test_a_path_that_has_to_be_resolved_is_refused(self) -> None:
        """Such a path can lead out of the table, and no writer makes one: nothing is deleted."""
        table = self.table()
        attempt = table.attempt(IDS)
        for path in attempt.paths:
            folder, _, name = path.rpartition("/")
            for way in _WAYS_OUT:
                expect_error(
                    LedgerDamagedError,
                    partial(
                        attempt.sink.delete_files,
                        attempt.view,
                        [*attempt.paths, f"{folder}/{way}{name}"],
                    ),
                    f"a list with a path that has {way!r} inside",
                )
        _expect_missing(attempt, [], "files that stand before such a path")

    def test_a_list_with_a_path_outside_deletes_nothing(self) -> None:
        """One foreign path makes the whole list worthless: the files before it stay as well."""
        table = self.table()
        attempt = table.attempt(IDS)
        paths = [*attempt.paths, table.path_outside()]
        expect_error(
            LedgerDamagedError,
            lambda: attempt.sink.delete_files(attempt.view, paths),
            "a list with a path outside the table",
        )
        _expect_missing(attempt, [], "files that stand before a path outside")
        expect_landed(attempt)
        expect(our_rows(table), IDS, "rows after a refused list")


def _expect_missing(attempt: Attempt, wanted: list[str], why: str) -> None:
    __tracebackhide__ = True
    missing = attempt.sink.missing_files(attempt.sink.load(), attempt.groups)
    expect(sorted(missing), sorted(wanted), f"missing among {why}")


class SinkContract(PostCases, MarkCases, _FileCases):
    """What every sink must do; each method is one case.

    A case fails with an AssertionError, and is skipped with a reason where the table under test
    cannot do what the case needs.
    """
