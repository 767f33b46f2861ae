"""Start Dagster, launch the job, kill first its step and then its run, and see what happens.

Takes some minutes, and ends everything that it has started.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "scheduled_job"))

from job_scene import (  # noqa: E402 - found just above.
    check_table,
    kill_at,
    scene_folder,
    started,
    wait_for,
)
from product_job import run_of  # noqa: E402

# In this interpreter's folder, so that no environment need be active.
BIN = Path(sys.executable).parent
TIMEOUT_S = 900.0  # Per step. An idle machine needs far less.
CODE = ("-f", str(HERE / "definitions.py"))


def play(instance: Any, lake: Path, root: str, daemon: subprocess.Popen[bytes]) -> None:  # noqa: ANN401
    """Kill the step, kill the run, wait for the run that follows it, and check the table."""
    run = run_of(f"products-{root}", lake)
    print("the step is killed; the same run retries it")
    kill_at(run, 0.3, timeout_s=TIMEOUT_S, program=daemon)
    print("the run is killed, with its step; another run follows")
    kill_at(run, 0.6, timeout_s=TIMEOUT_S, program=daemon, levels=1)

    def ended() -> Any:  # noqa: ANN401 - Dagster is not installed where types are checked.
        runs = instance.get_runs()
        return runs if any(dagster_run.is_success for dagster_run in runs) else None

    for ended_run in reversed(wait_for(ended, what="the end", timeout_s=TIMEOUT_S, program=daemon)):
        print(f"run {ended_run.run_id}: {ended_run.status.value}, root {ended_run.root_run_id}")
        events = instance.all_logs(ended_run.run_id, of_type=_event_type("ASSET_MATERIALIZATION"))
        for event in events:
            metadata = event.asset_materialization.metadata
            kept, outcome = metadata["kept_rows"].value, metadata["outcome"].value
            print(f"{outcome}: {kept:,} rows were not computed again")
    print(run.status())
    check_table(lake)


def _event_type(name: str) -> Any:  # noqa: ANN401
    return importlib.import_module("dagster").DagsterEventType[name]


def main() -> None:
    """Run the scenario.

    Raises:
        SystemExit: The job could not be launched.
    """
    with scene_folder() as folder, contextlib.ExitStack() as stack:
        home, root = folder / "dagster", str(uuid.uuid4())
        home.mkdir(exist_ok=True)
        shutil.copy(HERE / "dagster.yaml", home)
        environment = {"DAGSTER_HOME": str(home), "EXAMPLE_LAKE": str(folder / "lake")}
        os.environ.update(environment)

        def start(program: str, *options: str) -> subprocess.Popen[bytes]:
            log = folder / f"{program}.log"
            command = [str(BIN / program), *options]
            return stack.enter_context(started(command, environment=environment, log=log))

        daemon = start("dagster-daemon", "run", *CODE)
        launch = ("job", "launch", *CODE, "-j", "describe", "--run-id", root)
        if start("dagster", *launch).wait(TIMEOUT_S):
            sys.exit((folder / "dagster.log").read_text())
        dagster = importlib.import_module("dagster")
        instance = stack.enter_context(dagster.DagsterInstance.get())
        play(instance, folder / "lake", root, daemon)


if __name__ == "__main__":
    main()
