"""A run that computes columns is killed at each of its steps, and its next start lands it once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PYTHON_PATH
from tests.crash.jobs.column_job import ROWS, rig_in

pytestmark = [pytest.mark.crash, pytest.mark.lance]

STEPS = (
    *("after-claim", "before-pins", "after-pins", "before-pinned", "after-pinned"),
    *("before-task", "after-batch", "before-chunk", "after-chunk", "after-chunk-record"),
    *("before-files-are-closed", "after-files-are-closed", "after-files-record", "after-job"),
    *("before-seal", "after-seal", "after-loss", "before-rewrite", "after-rewrite"),
    *("before-rewritten", "after-rewritten", "before-intent", "after-intent", "before-post"),
    *("before-lance-commit", "after-post", "before-receipt", "after-receipt"),
)


def start(folder: Path, armed: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Start the job."""
    env = {**os.environ, "PYTHONPATH": PYTHON_PATH}
    if armed is not None:
        env["HOLDFAST_FAILPOINTS"] = str(armed)
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.crash.jobs.column_job", str(folder)],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("step", STEPS)
def test_a_run_that_is_killed_at_a_step_lands_once(step: str, tmp_path: Path) -> None:
    """Each row has its own values, in one version, and rows in checkpoints are not done again.

    Method: SIGKILL of the process at the named step, and one more start.
    """
    rig, armed = rig_in(tmp_path), tmp_path / "armed"
    rig.make(rows=ROWS, per_file=30)
    rig.dataset().delete("id % 7 = 3")
    rows = rig.dataset().count_rows()
    armed.mkdir()
    (armed / step).write_text("kill", encoding="ascii")
    killed = start(tmp_path, armed)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    said: dict[str, Any] = json.loads(start(tmp_path).stdout.splitlines()[-1])
    rig.assert_filled(rows=rows)
    assert said["outcome"] in {"committed", "already_committed"}
    if said["outcome"] == "committed":
        # Deleted rows next to kept ones are counted with them.
        assert rows <= said["kept"] + said["computed"] <= ROWS
    assert rig.dataset().version == 3
    assert json.loads(start(tmp_path).stdout)["outcome"] == "already_committed"
