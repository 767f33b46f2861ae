"""Renew: copy staged files that have waited for long to new names, right before they are published.

Somebody's orphan removal reads which files the table refers to, and deletes the others hours
later, if they are some days old. A file that is published between the two would be taken, and its
rows with it. A copy is young: nobody takes it.

Which copies are to be made stands in the log before the first of them does, so a sweep finds them
wherever this ends. They count from the next seal on; until then the old names do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from holdfast.engine.commit import Commit
from holdfast.engine.prepare import Ledger
from holdfast.engine.workbook import Workbook
from holdfast.failpoints import failpoint
from holdfast.ledger.parts import write_work
from holdfast.model.records import Renewal
from holdfast.model.staged import StagedGroup
from holdfast.model.work import Work

# Orphan removals take nothing younger than a day, and by default nothing younger than three.
_OLD_AFTER_S = 48 * 3600.0


def renew(ledger: Ledger, commit: Commit, book: Workbook) -> None:
    """Copy what is old among the staged files, and seal the work under its new names.

    A young run makes no request. Nothing is deleted here: an intent with the old names may be
    about to land. Calling again is safe.

    Args:
        ledger: The run's ledger.
        commit: The run's commit step.
        book: What is to be published; it is complete.

    Raises:
        StagedFileMissingError: A staged file is gone.
        TableChangedError: The table no longer fits what is staged.
        RunFencedError: Another driver has claimed the run.
        StoreError: The ledger or the table's storage does not answer.
    """
    before = ledger.ports.now() - _OLD_AFTER_S
    if ledger.log.began_at >= before or not book.work.groups:
        return
    view = commit.load()
    if commit.look(view) is not None:
        return  # A post of an earlier start has arrived meanwhile; who publishes finds it too.
    commit.sink.check(view, book.schemas, [])
    old = commit.sink.old_groups(view, book.work.groups, before)
    if not old:
        return
    tag = ledger.ports.new_nonce()
    targets = [group.renamed(tag) for group in old]
    new = {group.path: target for group, target in zip(old, targets, strict=True)}
    part = write_work(
        ledger.storage, ledger.layout, f"renewal-{tag}.parquet", _only(book.work, new)
    )
    ledger.log.append(Renewal(work=part))
    failpoint("before-copies")
    copies = commit.sink.copy_groups(view, old, targets)
    failpoint("after-copies")
    book.rename(
        book.work.with_groups({group.path: copy for group, copy in zip(old, copies, strict=True)})
    )
    book.tally.copied_files += sum(len(group.files) for group in copies)
    book.seal()


def _only(work: Work, new: Mapping[str, StagedGroup]) -> Work:
    """Return the records with nothing but their new groups: what a sweep has to know."""
    found = [
        replace(one, groups=tuple(new[group.path] for group in one.groups if group.path in new))
        for one in work.records
    ]
    return Work(records=tuple(one for one in found if one.groups))
