"""The guards of a commit that comes later: it lands what was looked at, or refuses."""

from __future__ import annotations

from tests.guards.guard import Guard

_LATER = "tests/unit/test_rehearsal_commit.py"
_ASKED = "tests/unit/test_rehearsal_asked.py"

LATER_GUARDS = (
    Guard(
        name="later: rows are looked at in the run's own table only",
        before="        self._refuse_other(run_file.identity, table_uuid=view.uuid, "
        "**self._version_now)\n",
        after="",
        test=f"{_LATER} -k only_looked_at",
    ),
    Guard(
        name="later: what another version staged is not committed",
        before="            self._refuse_other(identity, **self._version_now)\n",
        after="",
        test=f"{_LATER} -k another_version",
    ),
    Guard(
        name="later: what was staged for one branch is committed to no other",
        before="        self._refuse_other(identity, branch=target.branch)\n",
        after="",
        test=f"{_LATER} -k one_branch",
    ),
    Guard(
        name="later: a run is not aborted or swept with a look at another branch",
        before="            self._target_for(to, run_file.identity)\n",
        after="            pass\n",
        test=f"{_LATER} -k one_branch",
    ),
    Guard(
        name="failed rows are retried in the table that their run has written",
        before="        self._refuse_other(identity, table_uuid=self._open_sink(to)(identity)"
        ".load().uuid)\n",
        after="",
        test="tests/unit/test_run.py -k where_their_run_has_landed",
    ),
    Guard(
        name="later: a ledger alone chooses no table",
        before="        if to is not None and recorded == asked:\n",
        after="        if recorded == asked:\n",
        test=f"{_ASKED} -k needs_the_table",
    ),
    Guard(
        name="later: a ledger alone turns no append into an overwrite",
        before="        if to is not None and recorded == asked:\n",
        after="        if to is not None:\n",
        test=f"{_ASKED} -k called_for",
    ),
    Guard(
        name="later: a ledger alone chooses no branch",
        before='            self._refuse_other(identity, branch="main")\n',
        after="            pass\n",
        test=f"{_ASKED} -k choose_the_branch",
    ),
    Guard(
        name="later: a ledger that has changed since the write is refused",
        before="            self._refuse_other(identity, **own)\n",
        after="",
        test=f"{_ASKED} -k knows_what_it_was",
    ),
    Guard(
        name="failed rows are not retried as only a ledger says",
        before='        self._refuse_unasked("retry_quarantined", identity, to, now)\n',
        after="",
        test="tests/unit/test_run.py -k only_a_ledger",
    ),
    Guard(
        name="later: rows of an aborted run are not looked at",
        before="    if ledger.log.is_aborted and not or_landed:\n",
        after="    if False:\n",
        test=f"{_LATER} -k not_looked_at",
    ),
    Guard(
        name="later: nothing is posted by a write that is not to commit",
        before="        if options.commit:\n",
        after="        if True:\n",
        test=f"{_LATER} -k nothing_is_in_the_table",
    ),
    Guard(
        name="later: a driver that has left the commit to its user has ended",
        before="isinstance(record.body, Stop | Ready)",
        after="isinstance(record.body, Stop)",
        test=f"{_LATER} -k does_not_wait",
    ),
    Guard(
        name="later: rows that a dead start has computed since are not committed",
        before=" or book.seal().name != ready.work.name",
        after="",
        test=f"{_LATER} -k not_staged_as_a_whole",
    ),
    Guard(
        name="later: rows that a dead start has sealed since are not committed",
        before="body.covered == seal.covered",
        after="True",
        test=f"{_LATER} -k sealed_and_not_checked",
    ),
    Guard(
        name="later: copies of old files are what was ready",
        before="body.covered == seal.covered",
        after="False",
        test=f"{_LATER} -k copied_old_files",
    ),
    Guard(
        name="later: the table is that of the write",
        before="identity=replace(identity, table_uuid=view.uuid)",
        after="identity=identity",
        test=f"{_LATER} -k of_the_same_name",
    ),
    Guard(
        name="later: whether no rows may replace all is as the write was told",
        before='_KEPT = ("allow_empty", ',
        after="_KEPT = (",
        test=f"{_LATER} -k without_rows",
    ),
    Guard(
        name="later: the isolation is that of the write",
        before='"isolation_level", "write_mode")',
        after='"write_mode")',
        test=f"{_LATER} -k options_of_the_write",
    ),
    Guard(
        name="later: a filter that the log cannot keep is refused",
        before="        self._refuse_unkept()\n",
        after="",
        test=f"{_LATER} -k log_cannot_keep",
    ),
    Guard(
        name="later: what is ready has all its files",
        before="        self.sink.refuse_missing_files(view, change.adds)\n",
        after="",
        test=f"{_LATER} -k all_its_files",
    ),
    Guard(
        name="failed rows are retried under the version of their run",
        before="            version=self._version,\n            progress=",
        after="            progress=",
        test="tests/unit/test_run.py -k all_options_of",
    ),
)
