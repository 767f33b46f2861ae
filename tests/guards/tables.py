"""Guards against what others do to a table while a run is under way."""

from __future__ import annotations

from tests.guards.guard import Guard

_SCHEMAS = "tests/unit/engine/test_drive_schema_changes.py"
_DOUBT = "tests/unit/engine/test_cleanup_in_doubt.py"
_LANDS_ONCE = "tests/unit/engine/test_commit.py"

_MISSING = "tests/unit/sinks/test_conform_missing_columns.py"

TABLE_GUARDS = (
    Guard(
        name="table: a partition field of a dropped column is refused at the start",
        before="        self._refuse_lost_sources(table)\n",
        after="",
        test="tests/unit/sinks/iceberg/test_sink.py -k column_that_was_dropped",
    ),
    Guard(
        name="a start that waited refuses a name that became another column's",
        before="self.sink.check(view, [began_with, *book.schemas], book.work.adds)\n",
        after="self.sink.check(view, book.schemas, book.work.adds)\n",
        test="tests/unit/engine/test_drive_schema_changes.py -k while_a_start_waits",
    ),
    Guard(
        name="a column that the output lacks is not filled with NULL",
        before="        if self._may_lack is not None and path not in self._may_lack:\n",
        after="        if False:\n",
        test=_MISSING,
    ),
    Guard(
        name="a key that an answer lacks is not filled with NULL",
        before="        if self._may_lack is None:\n",
        after="        if True:\n",
        test=_MISSING,
    ),
    Guard(
        name="what may be lacking came after the run began",
        before="self.sink.columns_since(view, first.schema)",
        after="None",
        test=_SCHEMAS,
    ),
    Guard(
        name="tasks of a job that cannot end well pay for no row",
        before="        if self.transform is not None and ledger.is_hopeless():\n",
        after="        if False:\n",
        test=_MISSING,
    ),
    Guard(
        name="each schema that rows were staged for is held against the table",
        before="        return list(found.values())\n",
        after="        return list(found.values())[:1]\n",
        test=_SCHEMAS,
    ),
    Guard(
        name="a chunk is replayed by the numbers of columns",
        before="        if numbers.get(path) != number:\n",
        after="        if False:\n",
        test="tests/unit/worker/test_replay_into_iceberg.py",
    ),
    Guard(
        name="Lance: a column that was dropped and added again is another one",
        before="            if began < version and (found := schema_changes(schema, between)):\n",
        after="            if False and (found := schema_changes(schema, between)):\n",
        test=_SCHEMAS,
    ),
    Guard(
        name="Lance: a number with another name is another column",
        before="        if path_now != path:\n",
        after="        if False:\n",
        test=_SCHEMAS,
    ),
    Guard(
        name="an abort with a post in doubt needs the run's own table",
        before="    if sight.out_of_sight and not table_is_gone:\n",
        after="    if False:\n",
        test=_DOUBT,
    ),
    Guard(
        name="a branch that is gone proves nothing",
        before="    if view.parent_snapshot_id is None and branch != _MAIN:\n",
        after="    if False:\n",
        test=_DOUBT,
    ),
    Guard(
        name="a sweep asks for the table's UUID",
        before="    if view.uuid != run_file.identity.table_uuid:\n",
        after="    if False:\n",
        test="tests/unit/engine/test_cleanup_races.py",
    ),
    Guard(
        name="a sweep keeps the files of a post that is in doubt",
        before="    doubtful = sight.doubtful.values()\n",
        after="    doubtful = {}.values()\n",
        test=_DOUBT,
    ),
    Guard(
        name="a start of a run that was given up in doubt does not say aborted",
        before="    if sight.doubtful and not is_gone:\n",
        after="    if False:\n",
        test=_DOUBT,
    ),
    Guard(
        name="a post that lands after an abort gets its receipt",
        before="        ledger.log.append_after_abort(receipt_of(found.mark, intent))\n",
        after="        pass\n",
        test=f"{_DOUBT} tests/unit/engine/test_cleanup_races.py",
    ),
    Guard(
        name="a conflict is recorded as a refusal only after a look",
        before="        if outcome is Outcome.UNSENT:\n            self.log.append",
        after="        if outcome is not Outcome.UNKNOWN:\n            self.log.append",
        test=_LANDS_ONCE,
    ),
    Guard(
        name="a refusal is recorded only once the table has moved past the post",
        before="            if view.settled_below > intent.sequence_number:\n",
        after="            if view:\n",
        test="tests/unit/engine/test_commit_stops.py",
    ),
    Guard(
        name="an abort records which posts it has proved to be refused",
        before="        ledger.log.append_after_abort(Refused(intent_number=number))\n",
        after="        pass\n",
        test=_DOUBT,
    ),
    Guard(
        name="a refusal that only a later look proves is recorded",
        before="            self._record_refusals(view)\n",
        after="            pass\n",
        test="tests/unit/engine/test_commit_stops.py -k second_look",
    ),
    Guard(
        name="a post that was never sent is recorded before the next look",
        before="        if outcome is Outcome.UNSENT:\n            self.log.append",
        after="        if False:\n            self.log.append",
        test=_DOUBT,
    ),
    Guard(
        name="nothing is appended to a log that cannot be read",
        before="            self._damage = error\n",
        after="            pass\n",
        test="tests/unit/ledger/test_run_log.py",
    ),
    Guard(
        name="a refusal for good is looked up before it is believed",
        before="                if (landed := self.look()) is not None:\n",
        after="                if False:\n",
        test="tests/unit/engine/test_commit_stops.py",
    ),
    Guard(
        name="a complete run is compared with its input before it is published",
        before="            book.reopen()",
        after="            pass",
        test="tests/unit/engine/test_input_check.py",
    ),
    Guard(
        name="an older post that lands in between is compared with the input",
        before="            self._compare(book, done.receipt.staged, options)\n        return",
        after="            pass\n        return",
        test="tests/unit/engine/test_input_check.py",
    ),
    Guard(
        name="a start that fails before its claim writes nothing",
        before="        if not self.log.own_claim:\n",
        after="        if False:\n",
        test="tests/unit/ledger/test_run_log.py",
    ),
    Guard(
        name="a receipt is written for the very intent that landed",
        before="    return intent if is_counted or intent.snapshot_id == snapshot_id else None\n",
        after="    return intent\n",
        test="tests/unit/model/test_records_of_a_run.py",
    ),
    Guard(
        name="a sweep keeps the files of every post that is in doubt, not of one",
        before="intent.staged for intent in doubtful}.values())\n",
        after="intent.staged for intent in doubtful}.values())[-1:]\n",
        test=f"{_DOUBT} -k each_post_that_may_still_land",
    ),
    Guard(
        name="a sweep keeps names apart that end alike",
        before='.replace(f"/{name}/", "/")',
        after='.replace(f"{name}/", "")',
        test="tests/unit/ledger/test_store.py -k end_or_begin",
    ),
)
