"""More guards of the commit, of the logs, and of which task records count."""

from __future__ import annotations

from tests.guards.guard import Guard

_COMMIT = "tests/unit/test_commit_lands_once.py -k empty"
_FAILED = "tests/unit/test_quarantine_records.py"
_WORK = "tests/unit/test_work_superseding.py"
_LIVE = "tests/unit/test_live_files.py"
_OWNER = "tests/unit/test_records_of_a_run.py"

_REUSED = "tests/unit/test_reused_ids.py"

LEDGER_GUARDS = (
    Guard(
        name="reused id: a run that exists creates no table",
        file="engine/prepare.py",
        before="    found = ledger.run_file()\n    if found is None:\n        return\n    try:",
        after="    found = ledger.run_file()\n    return\n    try:",
        test=_REUSED,
    ),
    Guard(
        name="reused id: a table that another start has just created is used",
        file="engine/prepare.py",
        before="        sink.load()  # Another start",
        after='        raise TableMissingError(table="", what="")  # Another start',
        test=_REUSED,
    ),
    Guard(
        name="identity: two inputs that differ are never the same job",
        file="model/identity.py",
        before="    return found or [",
        after="    return found and [",
        test="tests/unit/test_identity_and_report.py",
    ),
    Guard(
        name="sweep: what the table reaches stays, whatever the log says",
        file="engine/sweep.py",
        before="if path not in (live or ())}",
        after="}",
        test=_LIVE,
    ),
    Guard(
        name="abort: a landing that the log does not know of is looked for",
        file="engine/abort.py",
        before="    elif run_file is not None and (found := mark_in_view",
        after="    elif False and run_file is not None and (found := mark_in_view",
        test=_LIVE,
    ),
    Guard(
        name="sweep: only files with the run's own name are deleted",
        file="sinks/staged_files.py",
        before='if run_nonce and not path.rsplit("/", 1)[-1].startswith(f"{run_nonce}-"):',
        after="if False:",
        test=_LIVE,
    ),
    Guard(
        name="live files: manifests that others have written anew are read",
        file="sinks/iceberg/live_files.py",
        before="    if needles:\n",
        after="    if False:\n",
        test=_LIVE,
    ),
    Guard(
        name="live files: what cannot be searched is read",
        file="sinks/iceberg/live_files.py",
        before="        return True  # Packed",
        after="        return False  # Packed",
        test=_LIVE,
    ),
    Guard(
        name="logs: a record of another run is refused",
        file="ledger/run_log.py",
        before="        if not is_own and not is_early:\n",
        after="        if not is_own and not is_early and False:\n",
        test=_OWNER,
    ),
    Guard(
        name="logs: only claims, seals, stops and aborts may come before run.json",
        file="ledger/run_log.py",
        before="not record.run and not named and isinstance(record.body, _EARLY)",
        after="not record.run",
        test=_OWNER,
    ),
    Guard(
        name="logs: a record follows the one that its writer saw",
        file="ledger/run_log.py",
        before="        if record.previous != follows and not (\n",
        after="        if record.previous != follows and not follows and not (\n",
        test=_OWNER,
    ),
    Guard(
        name="logs: a receipt names an intent of the log, and its files",
        file="ledger/run_log.py",
        before="        if isinstance(body, Receipt | Refused):\n",
        after="        if isinstance(body, Receipt | Refused) and False:\n",
        test=_OWNER,
    ),
    Guard(
        name="logs: an intent is for the run's table",
        file="ledger/run_log.py",
        before='isinstance(body, Intent) and self._table_uuid not in {"", body.table_uuid}',
        after="False",
        test=_OWNER,
    ),
    Guard(
        name="logs: without run.json records that name a run are refused",
        file="engine/prepare.py",
        before="        elif self.log.names_a_run:",
        after="        elif False:",
        test=_OWNER,
    ),
    Guard(
        name="abort: a receipt is believed only once it is known whose it is",
        file="engine/abort.py",
        before="    run_file = ledger.run_file()  # Before a receipt",
        after="    run_file = None if log.receipt else ledger.run_file()  # Before a receipt",
        test=_OWNER,
    ),
    Guard(
        name="remaining: run.json that was lost is missed",
        file="engine/prepare.py",
        before="        if found is None and ledger.log.names_a_run:\n",
        after="        if False:\n",
        test=_OWNER,
    ),
    Guard(
        name="logs: failed rows are the run's own",
        file="engine/quarantined.py",
        before="    ledger.run_file()  # Whose records these are.\n",
        after="",
        test=_OWNER,
    ),
    Guard(
        name="logs: a driver that finds the run made since names it",
        file="ledger/run_log.py",
        before="self._layout.nonce or _named_run(self._records)",
        after="self._layout.nonce",
        test=_OWNER,
    ),
    Guard(
        name="logs: a task record of another run is refused",
        file="ledger/task_log.py",
        before="    if not layout.owns(run):\n",
        after="    if False:\n",
        test=_OWNER,
    ),
    Guard(
        name="run file: a folder under another id is a copy",
        file="ledger/run_file.py",
        before='folder != layout.folder.rsplit("/", 1)[1]',
        after="False",
        test=_OWNER,
    ),
    Guard(
        name="tasks: a job's folder has a name of its own",
        file="ledger/layout.py",
        before='f"{claim:08d}-{nonce[:12]}" if nonce else f"{claim:08d}"',
        after='f"{claim:08d}"',
        test=_OWNER,
    ),
    Guard(
        name="marks: copies of a ledger have intents of the same number",
        file="model/records.py",
        before="(intent.nonce, intent.sequence_number) != (nonce, sequence_number)",
        after="intent.sequence_number != sequence_number",
        test=_OWNER,
    ),
    Guard(
        name="commit: the table is looked at again after its empty snapshot",
        file="engine/commit.py",
        before="            landed = self.look(view)\n        if landed is not None or",
        after="        if landed is not None or",
        test=_COMMIT,
    ),
    Guard(
        name="commit: without the empty snapshot no rows are posted",
        file="engine/commit.py",
        before="        if landed is not None or view.parent_snapshot_id is None:\n",
        after="        if landed is not None:\n",
        test=_COMMIT,
    ),
    Guard(
        name="logs: a driver whose tasks were fenced looks whether it still has the run",
        file="ledger/run_log.py",
        before="        self.refresh()\n        self._stop_if_fenced()\n",
        after="        self.refresh()\n",
        test="tests/unit/test_run_log.py",
    ),
    Guard(
        name="logs: a claim fences the tasks of an older job",
        file="ledger/task_log.py",
        before='        return "stopped" if isinstance(body, Stop) else "fenced"\n',
        after='        return "stopped"\n',
        test="tests/unit/test_task_log.py",
    ),
    Guard(
        name="logs: an equal record of another attempt is not taken for one's own",
        file="ledger/task_log.py",
        before='{"run": self._layout.nonce, "nonce": self._nonce}',
        after='{"run": self._layout.nonce}',
        test="tests/unit/test_task_log.py",
    ),
    Guard(
        name="logs: records are put in the order of their numbers",
        file="ledger/task_log.py",
        before="key=lambda record: (record.log, record.number)",
        after="key=lambda record: record.name",
        test="tests/unit/test_task_log.py",
    ),
    Guard(
        name="checkpoints: rows without output are covered beside failed ones",
        file="worker/checkpoints.py",
        before="        if self._keys.rows or any(where.values()) or not self._quarantine:\n",
        after="        if any(where.values()) or not self._quarantine:\n",
        test=_FAILED,
    ),
    Guard(
        name="checkpoints: files are named though only failed rows came after their chunk",
        file="worker/checkpoints.py",
        before="        if self._keys.rows or any(where.values()) or not self._quarantine:\n",
        after="        if self._keys.rows or not self._quarantine:\n",
        test=_FAILED,
    ),
    Guard(
        name="work: ranges that share a row prove nothing",
        file="model/work.py",
        before="((start, stop - 1) for start, stop in coverage.ranges)",
        after="((start, stop - 2) for start, stop in coverage.ranges)",
        test=_WORK,
    ),
    Guard(
        name="work: files are never put into files again",
        file="model/work.py",
        before="if record.chunk is not None:\n                chunks.add(record.name)\n",
        after="chunks.add(record.name)\n",
        test=_WORK,
    ),
    Guard(
        name="work: a record counts once",
        file="model/work.py",
        before="            known.add(record.name)\n",
        after="",
        test=_WORK,
    ),
)
