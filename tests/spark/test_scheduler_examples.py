"""The scenes of the scheduler examples: killed half way, retried, every row in the table once."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import PYTHON_PATH
from tests.crash.started_jobs import kill_process, processes_of_session
from tests.spark.example_scripts import EXAMPLES, INSTALLED


def python_of(scheduler: str) -> Path:
    """Return the interpreter of a scheduler's own environment, as `make example-envs` makes it."""
    named = os.environ.get(f"HOLDFAST_{scheduler.upper()}_PYTHON")
    return Path(named) if named else INSTALLED / scheduler / "bin" / "python"


PYTHONS = {
    "cron": Path(sys.executable),
    "airflow": python_of("airflow"),
    "dagster": python_of("dagster"),
}
TIMEOUT_S = 900.0

pytestmark = [pytest.mark.spark, pytest.mark.crash, pytest.mark.slow, pytest.mark.timeout(1000)]


@pytest.mark.parametrize("scheduler", PYTHONS)
def test_a_killed_job_is_retried_and_lands_once(scheduler: str, tmp_path: Path) -> None:
    """The retry keeps what the killed start had done, and each row is in the table once."""
    python = PYTHONS[scheduler]
    if not python.exists():
        pytest.skip(f"{scheduler} is not installed; run: make example-envs")
    with subprocess.Popen(
        [str(python), str(EXAMPLES / scheduler / "kill_and_retry.py"), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": PYTHON_PATH, "EXAMPLE_ROWS": "4000"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as started:
        try:
            said, _ = started.communicate(timeout=TIMEOUT_S)
        finally:
            for process_id in processes_of_session(started.pid):
                kill_process(process_id)
    assert started.returncode == 0, said
    kept = re.search(r"kept +([\d,]+) rows|([\d,]+) rows were not computed again", said)
    assert kept is not None, said
    assert 2000 <= int((kept[1] or kept[2]).replace(",", "")) < 4000
    assert "4,000 rows in the table, 4,000 different ids" in said
