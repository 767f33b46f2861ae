"""More guards: of the commit, of the logs, and of which task records count."""

from __future__ import annotations

from tests.guards.guard import Guard

_COMMIT = "tests/unit/engine/test_commit.py -k empty"
_FAILED = "tests/unit/worker/test_quarantine.py"
_WORK = "tests/unit/model/test_work.py"
_LIVE = "tests/unit/engine/test_cleanup_live_files.py"
_OWNER = "tests/unit/model/test_records_of_a_run.py"

_REUSED = "tests/unit/engine/test_claim.py"

LEDGER_GUARDS = (
    Guard(
        name="a user is told of other code than what has landed",
        before="    if not worked or ledger.log.claims",
        after="    if not worked or ledger.log.receipt or ledger.log.claims",
        test="tests/unit/engine/test_takeover_drivers.py -k landed_run_warns",
    ),
    Guard(
        name="a report says when the post was made, not its receipt",
        before="return numbered.get(receipt.intent_number, ",
        after="return numbered.get(max(numbered), ",
        test="tests/unit/engine/test_takeover_drivers.py -k earlier_commit_says_when",
    ),
    Guard(
        name="reused id: a run that exists creates no table",
        before="    found = ledger.run_file()\n    if found is None:\n        return\n    try:",
        after="    found = ledger.run_file()\n    return\n    try:",
        test=_REUSED,
    ),
    Guard(
        name="reused id: a table that another start has just created is used",
        before="        sink.load()  # Another start",
        after='        raise TableMissingError(table="", what="")  # Another start',
        test=_REUSED,
    ),
    Guard(
        name="identity: two inputs that differ are never the same job",
        before="    return found or [",
        after="    return found and [",
        test="tests/unit/model/test_records.py",
    ),
    Guard(
        name="sweep: what the table reaches stays, whatever the log says",
        before="if path not in (live or ())}",
        after="}",
        test=_LIVE,
    ),
    Guard(
        name="abort: a landing that the log does not know of is looked for",
        before="    elif run_file is not None and (found := mark_in_view",
        after="    elif False and run_file is not None and (found := mark_in_view",
        test=_LIVE,
    ),
    Guard(
        name="sweep: only files with the run's own name are deleted",
        before='if run_nonce and not path.rsplit("/", 1)[-1].startswith(f"{run_nonce}-"):',
        after="if False:",
        test=_LIVE,
    ),
    Guard(
        name="live files: manifests that others have written anew are read",
        before="    if needles:\n",
        after="    if False:\n",
        test=_LIVE,
    ),
    Guard(
        name="live files: what cannot be searched is read",
        before="        return True  # Damaged",
        after="        return False  # Damaged",
        test=_LIVE,
    ),
    Guard(
        name="logs: a record of another run is refused",
        before="        if not is_own and not is_early:\n",
        after="        if not is_own and not is_early and False:\n",
        test=_OWNER,
    ),
    Guard(
        name="logs: only claims, seals, stops and aborts may come before run.json",
        before="not record.run and not named and isinstance(record.body, _EARLY)",
        after="not record.run",
        test=_OWNER,
    ),
    Guard(
        name="logs: a record follows the one that its writer saw",
        before="        if record.previous != follows and not (\n",
        after="        if record.previous != follows and not follows and not (\n",
        test=_OWNER,
    ),
    Guard(
        name="logs: a receipt names an intent of the log, and its files",
        before="        if isinstance(body, Receipt | Refused):\n",
        after="        if isinstance(body, Receipt | Refused) and False:\n",
        test=_OWNER,
    ),
    Guard(
        name="logs: an intent is for the run's table",
        before='isinstance(body, Intent) and self._table_uuid not in {"", body.table_uuid}',
        after="False",
        test=_OWNER,
    ),
    Guard(
        name="take-over: a driver gives signs of life",
        before="            heartbeat = Heartbeat(ledger, options.checkpoint_every_s)\n",
        after="            heartbeat = Heartbeat(ledger, options.checkpoint_every_s)\n"
        "            heartbeat.stop()\n",
        test="tests/unit/engine/test_takeover.py",
    ),
    Guard(
        name="take-over: a driver gives signs of life until its stop is recorded",
        before="            ledger.stop(error)\n            raise\n        finally:\n",
        after="            heartbeat and heartbeat.stop()\n            ledger.stop(error)\n"
        "            raise\n        finally:\n",
        test="tests/unit/engine/test_takeover.py",
    ),
    Guard(
        name="take-over: a beat is a sign of life",
        before="if has_recorded or has_beaten else",
        after="if has_recorded else",
        test="tests/unit/engine/test_takeover.py",
    ),
    Guard(
        name="take-over: a suspended start does not take the other for dead",
        before="        now = self._store_now()\n"
        "        self._beat = self._written(log.layout.beat(self._number))\n",
        after="        self._beat = self._written(log.layout.beat(self._number))\n"
        "        now = self._store_now()\n",
        test="tests/unit/engine/test_takeover.py -k suspended",
    ),
    Guard(
        name="take-over: a lost claim is waited for in its turn",
        before="            if ledger.log.try_claim(claim) is not None:",
        after="            if ledger.log.claim(claim) is not None:",
        test="tests/unit/engine/test_takeover.py",
    ),
    Guard(
        name="take-over: the store's clock tells how old a sign of life is",
        before="now = self._store_now()\n",
        after="now = ports.now()\n",
        test="tests/unit/engine/test_takeover.py",
    ),
    Guard(
        name="take-over: another thread of this process may be at work",
        before="driver.layout.folder == folder and thread != here",
        after="False",
        test="tests/unit/engine/test_takeover.py",
    ),
    Guard(
        name="take-over: a notebook that starts again does not wait for itself",
        before=" and thread != here",
        after="",
        test="tests/unit/engine/test_takeover.py",
    ),
    Guard(
        name="take-over: a lost beat is soon repeated",
        before="            return _BEAT_S_MIN  # Soon",
        after="            return every_s  # Soon",
        test="tests/unit/engine/test_takeover.py",
    ),
    Guard(
        name="take-over: a claim that is being made is seen by other threads",
        before="        with at_work(ledger):",
        after='        with __import__("contextlib").nullcontext():',
        test="tests/unit/engine/test_takeover.py",
    ),
    Guard(
        name="take-over: a refused append ends the heartbeat of remaining",
        before="                self.prepared.heartbeat.stop()",
        after="                pass",
        test="tests/unit/engine/test_takeover.py",
    ),
    Guard(
        name="take-over: a run that is only prepared is waited for an hour",
        before="        if ports.now() >= until:",
        after="        if False:",
        test="tests/unit/engine/test_takeover.py",
    ),
    Guard(
        name="take-over: the table is looked at again after a wait",
        before="ledger.ports.now() - began > _VIEW_S_MAX",
        after="False",
        test="tests/unit/engine/test_takeover.py",
    ),
    Guard(
        name="keys: NULL is no key that appears twice",
        before="    refuse_null_keys(book.input_sums)\n    is_quick",
        after="    is_quick",
        test="tests/unit/engine/test_input_check.py",
    ),
    Guard(
        name="logs: without run.json later records are refused",
        before="        elif self.log.follows_run_file:",
        after="        elif False:",
        test=_OWNER,
    ),
    Guard(
        name="logs: an intent or a receipt is later than run.json",
        before="        return posted or bool(_named_run(self._records))",
        after="        return bool(_named_run(self._records))",
        test="tests/unit/model/test_records_of_earlier_versions.py",
    ),
    Guard(
        name="abort: a receipt is believed only once it is known whose it is",
        before="    run_file = ledger.run_file()  # Before a receipt",
        after="    run_file = None if log.receipt else ledger.run_file()  # Before a receipt",
        test=_OWNER,
    ),
    Guard(
        name="remaining: run.json that was lost is missed",
        before="        if found is None and ledger.log.follows_run_file:\n",
        after="        if False:\n",
        test=_OWNER,
    ),
    Guard(
        name="logs: failed rows are the run's own",
        before="    ledger.run_file()  # Whose records these are.\n",
        after="",
        test=_OWNER,
    ),
    Guard(
        name="logs: a driver that finds the run made since names it",
        before="self._layout.nonce or _named_run(self._records)",
        after="self._layout.nonce",
        test=_OWNER,
    ),
    Guard(
        name="logs: a task record of another run is refused",
        before="    if not layout.owns(run):\n",
        after="    if False:\n",
        test=_OWNER,
    ),
    Guard(
        name="run file: a folder under another id is a copy",
        before='folder != layout.folder.rsplit("/", 1)[1]',
        after="False",
        test=_OWNER,
    ),
    Guard(
        name="tasks: a job's folder has a name of its own",
        before='f"{claim:08d}-{nonce[:12]}" if nonce else f"{claim:08d}"',
        after='f"{claim:08d}"',
        test=_OWNER,
    ),
    Guard(
        name="marks: copies of a ledger have intents of the same number",
        before="(intent.nonce, intent.sequence_number) != (nonce, sequence_number)",
        after="intent.sequence_number != sequence_number",
        test=_OWNER,
    ),
    Guard(
        name="commit: the table is looked at again after its empty snapshot",
        before="            landed = self.look(view)\n        if landed is None and self._check",
        after="        if landed is None and self._check",
        test=_COMMIT,
    ),
    Guard(
        name="commit: without the empty snapshot no rows are posted",
        before="        if landed is not None or view.parent_snapshot_id is None:\n",
        after="        if landed is not None:\n",
        test=_COMMIT,
    ),
    Guard(
        name="logs: a driver whose tasks were fenced looks whether it still has the run",
        before="        self.refresh()\n        self._stop_if_fenced()\n",
        after="        self.refresh()\n",
        test="tests/unit/ledger/test_run_log.py",
    ),
    Guard(
        name="logs: a claim fences the tasks of an older job",
        before='        return "stopped" if isinstance(body, Stop) else "fenced"\n',
        after='        return "stopped"\n',
        test="tests/unit/ledger/test_task_log.py",
    ),
    Guard(
        name="logs: an equal record of another attempt is not taken for one's own",
        before='{"run": self._layout.nonce, "nonce": self._nonce}',
        after='{"run": self._layout.nonce}',
        test="tests/unit/ledger/test_task_log.py",
    ),
    Guard(
        name="logs: records are put in the order of their numbers",
        before="    numbers.sort()\n",
        after="    numbers.sort(key=str)\n",
        test="tests/unit/ledger/test_task_log.py",
    ),
    Guard(
        name="checkpoints: rows without output are covered beside failed ones",
        before="        if self._keys.rows or any(where.values()) or not self._quarantine:\n",
        after="        if any(where.values()) or not self._quarantine:\n",
        test=_FAILED,
    ),
    Guard(
        name="checkpoints: files are named though only failed rows are beside them",
        before="        if self._keys.rows or any(where.values()) or not self._quarantine:\n",
        after="        if self._keys.rows or not self._quarantine:\n",
        test=_FAILED,
    ),
    Guard(
        name="checkpoints: files with rows of a failed batch are discarded",
        before=" and self._chunk.let_go and not self._has_uncounted:\n",
        after=" and self._chunk.let_go:\n",
        test="tests/unit/worker/test_checkpoints_records.py",
    ),
    Guard(
        name="work: ranges that share a row prove nothing",
        before="((start, stop - 1) for start, stop in coverage.ranges)",
        after="((start, stop - 2) for start, stop in coverage.ranges)",
        test=_WORK,
    ),
    Guard(
        name="work: files are never put into files again",
        before="if record.chunk is not None:\n                chunks.add(record.name)\n",
        after="chunks.add(record.name)\n",
        test=_WORK,
    ),
    Guard(
        name="work: a record counts once",
        before="            known.add(record.name)\n",
        after="",
        test=_WORK,
    ),
)
