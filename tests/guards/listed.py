"""Every guard that exactly-once depends on: where it is, how it is removed, and which test notices.

`before` must occur once in its file; with `after` in its place the named test must fail.
"""

from __future__ import annotations

from tests.guards.budget import BUDGET_GUARDS
from tests.guards.columns import COLUMN_GUARDS
from tests.guards.guard import Guard
from tests.guards.iceberg import ICEBERG_GUARDS
from tests.guards.inputs import INPUT_GUARDS
from tests.guards.lance import LANCE_GUARDS
from tests.guards.later import LATER_GUARDS
from tests.guards.ledger import LEDGER_GUARDS
from tests.guards.replace import REPLACE_GUARDS
from tests.guards.shown import SHOWN_GUARDS
from tests.guards.storage import STORAGE_GUARDS
from tests.guards.stored import STORED_GUARDS
from tests.guards.tables import TABLE_GUARDS
from tests.guards.upsert import UPSERT_GUARDS
from tests.guards.values import VALUE_GUARDS
from tests.guards.where import WHERE_GUARDS

_MERGES = "tests/unit/engine/test_resolve_merge.py"


def _requirement(name: str, line: str, test: str) -> Guard:
    """Return one requirement of the post, as a guard."""
    return Guard(
        name=f"a post asserts the {name}",
        before=f"        {line},\n",
        after="",
        test=test,
    )


_POSTS = "tests/contract/test_post_requirements.py -k"
_REPLACING = "tests/unit/worker/test_checkpoints_records.py"

GUARDS = (
    Guard(
        name="an unclear create is read back, and the nonce decides",
        before="            return storage.get(uri)\n",
        after="            return data\n",
        test="tests/unit/ledger/test_store.py",
    ),
    Guard(
        name="a later claim fences",
        before="            if isinstance(record.body, Claim):\n                raise RunFenced",
        after="            if False:\n                raise RunFenced",
        test="tests/unit/ledger/test_run_log.py",
    ),
    Guard(
        name="an abort fences",
        before="            if isinstance(record.body, Abort):\n                reason =",
        after="            if False:\n                reason =",
        test="tests/unit/ledger/test_run_log.py",
    ),
    Guard(
        name="no key is covered twice",
        before="    if not work.with_keys or all_differ(work, finished):\n",
        after="    if True:\n",
        test="tests/unit/engine/test_input_check.py",
    ),
    Guard(
        name="keys that stand twice are found before rows are paid for",
        before="            if self._options.is_priced and not book.keys_differ:",
        after="            if False:",
        test="tests/unit/engine/test_input_check.py",
    ),
    Guard(
        name="a few keys are compared before rows are computed",
        before="doubled or (is_quick and book.input_sums.rows <= _COMPARED_ROWS_MAX)",
        after="doubled",
        test="tests/unit/engine/test_input_check.py",
    ),
    Guard(
        name="a sample of many keys is compared before rows are computed",
        before="doubled or (is_quick and",
        after="(is_quick and",
        test="tests/unit/engine/test_input_check.py",
    ),
    Guard(
        name="all keys are compared beside a long job",
        before="            beside.callback(self._check.compare_beside(ask_to_stop))\n",
        after="",
        test="tests/unit/engine/test_input_check.py",
    ),
    Guard(
        name="a double that was found beside a job ends the run",
        before="            self._input.refuse_found()\n",
        after="",
        test="tests/unit/engine/test_input_check.py",
    ),
    Guard(
        name="finished and remaining rows are the input",
        before="_options.verify_input and not book.work.sums.matches(self.measured()):\n",
        after="_options.verify_input and False:\n",
        test="tests/unit/engine/test_input_check.py",
    ),
    Guard(
        name="a chunk is put into files once",
        before="or named - chunks or named & taken:",
        after="or named - chunks:",
        test="tests/unit/model/test_work.py",
    ),
    Guard(
        name="who holds dropped rows is dropped as well",
        before="            if not holders:\n",
        after="            if True:\n",
        test="tests/unit/model/test_work.py",
    ),
    Guard(
        name="per place one log counts",
        before="for name in sorted(best.values()) for record in logs[name]]",
        after="for name in sorted(logs) for record in logs[name]]",
        test="tests/unit/engine/test_workbook.py",
    ),
    Guard(
        name="a log counts up to its first gap",
        before="enumerate(numbers) if number != at), len(numbers))\n",
        after="enumerate(numbers) if at < 0), numbers[-1] + 1)\n",
        test="tests/unit/ledger/test_task_log.py",
    ),
    Guard(
        name="a replaced record does not count beside the one that replaced it",
        before="for number in self._counts if number not in record.replaces)\n",
        after="for number in self._counts)\n",
        test=_REPLACING,
    ),
    Guard(
        name="an earlier version refuses a record that replaces others",
        before='            named["format"] = _REPLACING_FORMAT\n',
        after="            pass\n",
        test="tests/unit/model/test_records_of_earlier_versions.py -k refuses",
    ),
    Guard(
        name="a cut covers the keys of the records that it replaces",
        before="                    self._file.add(batch.schema.names, batch.columns)\n",
        after="                    pass\n",
        test=_REPLACING,
    ),
    Guard(
        name="a cut does not replace a record whose keys are gone",
        before="                if data is None:\n"
        '                    raise LedgerDamagedError(uri=uri, reason="missing")\n',
        after="                if data is None:\n                    continue\n",
        test=_REPLACING,
    ),
    Guard(
        name="keys that are replaced have a span only if they grow from record to record",
        before="len(known) == len(spans) and all(a[1] < b[0] for a, b in pairwise(known))\n",
        after="bool(known)\n",
        test=_REPLACING,
    ),
    Guard(
        name="a task's records are bounded between two cuts",
        before=" or len(self._recent) >= _RECENT_MAX:\n",
        after=":\n",
        test=_REPLACING,
    ),
    Guard(
        name="failed rows keep a record of their own",
        before="[record for record in written if record.quarantine is None]\n",
        after="written\n",
        test="tests/unit/worker/test_quarantine.py",
    ),
    Guard(
        name="what a lost record had replaced counts again",
        before="return with_replaced(ledger.storage, ledger.layout, work, work.without(lost))\n",
        after="return work.without(lost)\n",
        test="tests/unit/engine/test_passes.py",
    ),
    Guard(
        name="what a record that shares keys had replaced counts again",
        before="        whole = with_replaced(self._storage, self._log.layout, self.work, kept)\n",
        after="        whole = kept\n",
        test="tests/unit/engine/test_input_check.py",
    ),
    Guard(
        name="chunks that wait are put into files before the commit",
        before="        return bool(self._start.book.work.waiting)\n",
        after="        return False\n",
        test="tests/unit/engine/test_passes.py",
    ),
    Guard(
        name="the input is gone through again when work was left out",
        before="        self.all_rows_seen = False\n        self._replace(kept)\n",
        after="        self._replace(kept)\n",
        test="tests/unit/engine/test_passes.py",
    ),
    _requirement("table", "AssertTableUUID(uuid=metadata.table_uuid)", f"{_POSTS} table"),
    _requirement(
        "branch's snapshot",
        "AssertRefSnapshotId(ref=branch, snapshot_id=ref.snapshot_id if ref else None)",
        f"{_POSTS} branch",
    ),
    _requirement(
        "schema",
        "AssertCurrentSchemaId(current_schema_id=metadata.current_schema_id)",
        f"{_POSTS} schema",
    ),
    _requirement(
        "spec",
        "AssertDefaultSpecId(default_spec_id=metadata.default_spec_id)",
        f"{_POSTS} spec",
    ),
    _requirement(
        "sort order",
        "AssertDefaultSortOrderId(default_sort_order_id=metadata.default_sort_order_id)",
        f"{_POSTS} sort",
    ),
    Guard(
        name="the mark's snapshot is looked for in the branch's history",
        before="    return None if ended else False\n",
        after="    return True\n",
        test="tests/unit/sinks/iceberg/test_marks.py",
    ),
    Guard(
        name="below the horizon a missing mark proves nothing",
        before="        if doubted and doubted - _taken(metadata, io, branch):\n",
        after="        if False:\n",
        test="tests/unit/sinks/iceberg/test_marks.py",
    ),
    Guard(
        name="a mark that somebody has removed is missed",
        before="    return max(0, _number(properties, COUNT) - found)\n",
        after="    return 0\n",
        test="tests/unit/sinks/iceberg/test_marks.py",
    ),
    Guard(
        name="the table is looked at before each post",
        before="        landed = self.look(view)\n        if landed is None and view.parent",
        after="        landed = None\n        if landed is None and view.parent",
        test="tests/unit/engine/test_commit.py",
    ),
    Guard(
        name="each post has an intent of its own",
        before="        number, intent = self._write_intent(view, complete, reference, nonce)\n",
        after="        number, intent = next(iter(self.log.intents.items()), (0, None))\n"
        "        if intent is None:\n"
        "            number, intent = self._write_intent(view, complete, reference, nonce)\n",
        test="tests/unit/engine/test_commit.py",
    ),
    Guard(
        name="a data snapshot has a parent",
        before="        if landed is None and view.parent_snapshot_id is None:\n",
        after="        if False:\n",
        test="tests/unit/engine/test_commit.py",
    ),
    Guard(
        name="the receipt follows the mark",
        before="        log.intents,\n        mark.intent_number,\n",
        after="        log.intents,\n        max(log.intents),\n",
        test="tests/unit/engine/test_commit.py",
    ),
    Guard(
        name="staged files are looked for before the post",
        before="        self.sink.refuse_missing_files(view, groups)\n        ended = ",
        after="        ended = ",
        test="tests/unit/engine/test_commit_stops.py",
    ),
    Guard(
        name="staged files are looked for again after some minutes",
        before="        if began < tally.staged_files.until:\n",
        after="        if tally.staged_files.until:\n",
        test="tests/unit/engine/test_commit_stops.py -k minutes",
    ),
    Guard(
        name="staged files are looked for once, however many posts are refused",
        before="        tally.staged_files.answered(began, ended)\n",
        after="",
        test="tests/unit/engine/test_commit_stops.py -k asked_for_once",
    ),
    Guard(
        name="staged files that were all there are not taken to be there for ever",
        before="min(FILES_KNOWN_S, _TIMES_AS_LONG * (ended - began))\n",
        after="_TIMES_AS_LONG * (ended - began)\n",
        test="tests/unit/engine/test_commit_stops.py -k minutes",
    ),
    Guard(
        name="merged groups are listed before they are written",
        before='        _record(ledger, f"merging-{tag}.parquet", planned, is_written=False)\n',
        after="",
        test=_MERGES,
    ),
    Guard(
        name="merged groups are used again after a kill",
        before="    if not written:\n        return [], None\n",
        after="    if True:\n        return [], None\n",
        test=f"{_MERGES} -k uses_what_was_merged",
    ),
    Guard(
        name="a merged group is used only if all it stands for is staged",
        before=" if staged.keys() >= set(merge.sources)]\n",
        after=" if staged.keys() & set(merge.sources)]\n",
        test=f"{_MERGES} -k withdrawn",
    ),
    Guard(
        name="a merged group that is gone is not used",
        before="    there = [merge for merge in known if merge.group.path not in gone]\n",
        after="    there = known\n",
        test=f"{_MERGES} -k vanished",
    ),
    Guard(
        name="a sweep keeps the merged groups that have landed",
        before="        found.update(merge.group.path for merge in merges)\n",
        after="",
        test=f"{_MERGES} -k in_doubt",
    ),
    Guard(
        name="a sweep keeps small groups that a post in doubt lists",
        before="        unneeded &= {path for merge in merges for path in merge.sources}\n",
        after="        unneeded &= {p for merge in merges for p in merge.sources} or unneeded\n",
        test=f"{_MERGES} -k in_doubt",
    ),
    Guard(
        name="a look at the table is repeated after a long look at files",
        before="        return ended - began > _LOOK_S_MAX\n",
        after="        return False\n",
        test="tests/unit/engine/test_commit_stops.py -k long_look",
    ),
    Guard(
        name="every attempt checks whether staged files fit the table",
        before="        self.sink.check(view, schemas, change.adds)\n        nonce",
        after="        if not tally.posts:\n"
        "            self.sink.check(view, schemas, change.adds)\n        nonce",
        test="tests/unit/engine/test_commit_stops.py -k between_two_posts",
    ),
    Guard(
        name="what was rolled back is not posted again",
        before="        if found.present is False:\n",
        after="        if False:\n",
        test="tests/unit/engine/test_commit_stops.py",
    ),
    Guard(
        name="nothing is deleted before every post is resolved",
        before="    return resolve(ledger, run_file, open_sink, is_gone=_is_gone(ledger))\n",
        after="    return Sight(doubtful={})\n",
        test="tests/unit/engine/test_cleanup_races.py",
    ),
    Guard(
        name="a dry sweep posts nothing to the table",
        before="    looks = open_sink if given.yes else _looking_only(ledger, open_sink)\n",
        after="    looks = open_sink\n",
        test="tests/unit/cli/test_abort_and_sweep.py",
    ),
    Guard(
        name="a sweep waits for the end of the run",
        before="    if log.receipt is None and not log.is_aborted:\n        raise RunUnf",
        after="    if False:\n        raise RunUnf",
        test="tests/unit/engine/test_cleanup_races.py",
    ),
    Guard(
        name="nobody is told aborted of a run that landed",
        before="            refuse_doubt(ledger, lambda _identity: self.sink)\n",
        after="",
        test="tests/unit/engine/test_cleanup_races.py",
    ),
    Guard(
        name="work that lost an object is withdrawn",
        before="        if not lost:\n",
        after="        if True:\n",
        test="tests/unit/engine/test_passes.py",
    ),
    Guard(
        name="rows out of a derived input's reach are an error",
        before="        if gone:\n            self._book.seal_changes()",
        after="        if False:\n            self._book.seal_changes()",
        test="tests/unit/engine/test_input_check_derived.py",
    ),
    Guard(
        name="rows of a damaged chunk that are out of a derived input's reach are an error",
        before="without(damaged))\n            self._input.stop_if_out_of_reach()\n",
        after="without(damaged))\n",
        test="tests/unit/engine/test_input_check_derived.py",
    ),
    Guard(
        name="an object is what its digest says",
        before="    if hashlib.sha256(data).hexdigest() != digest:\n",
        after="    if False:\n",
        test="tests/unit/engine/test_drive.py",
    ),
    Guard(
        name="old staged files are copied before an intent",
        before="        renew(self.ledger, commit, book)\n",
        after="",
        test="tests/unit/engine/test_resolve.py",
    ),
    Guard(
        name="copies stand in the log before they are made",
        before="    ledger.log.append(Renewal(work=part))\n",
        after="",
        test="tests/unit/engine/test_resolve.py",
    ),
    Guard(
        name="copies count once a seal says so",
        before="    book.seal()\n",
        after="    book._changed = False\n",
        test="tests/unit/engine/test_resolve.py",
    ),
    Guard(
        name="a sweep takes copies that did not land",
        before="    references = list(log.renewals)\n",
        after="    references = []\n",
        test="tests/unit/engine/test_resolve.py",
    ),
    Guard(
        name="a scan reads the files of its first start",
        before="    if known is not None:\n",
        after="    if False:\n",
        test="tests/unit/engine/test_scan_input.py",
    ),
    Guard(
        name="a scan of other files is refused",
        before="        if compare and (difference := scan.compare(pins)):\n",
        after="        if False and (difference := scan.compare(pins)):\n",
        test="tests/unit/engine/test_scan_input.py",
    ),
    Guard(
        name="finished ranges of a scan are left out",
        before="        return self.pins.whole.minus(_finished(finished))\n",
        after="        return self.pins.whole\n",
        test="tests/unit/engine/test_scan_input.py",
    ),
    Guard(
        name="a pinned file that was rewritten is not taken for the one that was pinned",
        before='            raise InputChangedError(what=f"{file.uri} was rewritten',
        after='            str(f"{file.uri} was rewritten',
        test="tests/unit/sources/test_find.py",
    ),
    Guard(
        name="a worker reads only the very object that was pinned",
        before='        options["if_match"] = tag\n',
        after="        pass\n",
        test="tests/unit/storage/test_port.py",
    ),
    Guard(
        name="a file of a scan is pinned row group by row group",
        before='        raise ObjectChangedError(f"{file.uri} has different row groups")\n',
        after="        pass\n",
        test="tests/unit/sources/test_parquet.py",
    ),
    Guard(
        name="no path outside the table is deleted",
        before="        refuse_outside(self._name, folders, paths)\n",
        after="",
        test="tests/contract/test_iceberg_tables.py -k Sqlite",
    ),
    Guard(
        name="no path that leads out of the table is deleted",
        before=' if all(map(_is_plain, rest.split("/")))]',
        after="]",
        test="tests/contract/test_iceberg_tables.py -k Sqlite",
    ),
    Guard(
        name="no path beside the table is deleted",
        before="    prefixes = [f\"{folder.rstrip('/')}/\" for folder in folders]\n",
        after="    prefixes = [folder.rstrip('/') for folder in folders]\n",
        test="tests/contract/test_iceberg_tables.py -k Sqlite",
    ),
    Guard(
        name="a store without create-if-absent is refused",
        before="            if storage.get(uri) != first or refused is False:\n",
        after="            if False:\n",
        test="tests/unit/ledger/test_store.py",
    ),
    *ICEBERG_GUARDS,
    *INPUT_GUARDS,
    *LANCE_GUARDS,
    *LATER_GUARDS,
    *REPLACE_GUARDS,
    *LEDGER_GUARDS,
    *STORAGE_GUARDS,
    *STORED_GUARDS,
    *TABLE_GUARDS,
    *SHOWN_GUARDS,
    *VALUE_GUARDS,
    *WHERE_GUARDS,
    *COLUMN_GUARDS,
    *BUDGET_GUARDS,
    *UPSERT_GUARDS,
)
