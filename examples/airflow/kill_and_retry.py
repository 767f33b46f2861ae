"""Start Airflow, trigger the DAG, kill its task half way, and see what the retry does.

Takes some minutes, and ends everything that it has started. The parts of Airflow are started one by
one: `airflow standalone` would also start a log server that listens on all network interfaces.
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import urllib.request
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
AIRFLOW = str(Path(sys.executable).parent / "airflow")
DAG = "products"
TIMEOUT_S = 900.0  # Per step. An idle machine needs far less.


def settings(folder: Path, port: int) -> dict[str, str]:
    """Return an environment that isolates Airflow."""
    server = f"http://127.0.0.1:{port}"
    given = {
        "CORE__DAGS_FOLDER": str(HERE / "dags"),
        "CORE__LOAD_EXAMPLES": "False",
        "CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "CORE__EXECUTOR": "LocalExecutor",
        "CORE__PARALLELISM": "1",
        "CORE__EXECUTION_API_SERVER_URL": f"{server}/execution/",
        # No password: only this machine can reach the server, and it soon ends.
        "CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        "API__HOST": "127.0.0.1",
        "API__PORT": str(port),
        "API__BASE_URL": server,
        "API__WORKERS": "1",
        "DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "600",
        # On a busy machine everything takes longer.
        "WORKERS__EXECUTION_API_TIMEOUT": "60",
        "CORE__DAGBAG_IMPORT_TIMEOUT": "120",
        "DAG_PROCESSOR__DAG_FILE_PROCESSOR_TIMEOUT": "300",
    }
    environment = {f"AIRFLOW__{name}": value for name, value in given.items()}
    environment["AIRFLOW_HOME"] = str(folder / "airflow")
    environment["EXAMPLE_LAKE"] = str(folder / "lake")
    return environment


class Api:
    """Airflow's REST API."""

    def __init__(self, port: int) -> None:
        """Keep the address; the server need not answer yet."""
        self._server = f"http://127.0.0.1:{port}"
        self._token = ""

    def get(self, path: str) -> dict[str, Any] | None:
        """Return the answer; None while there is none, or while the object does not exist."""
        # A broken connection, a refused one and a status code are all errors of this kind.
        with contextlib.suppress(OSError):
            if not self._token:
                self._token = self._send("/auth/token", None)["access_token"]
            return self._send(f"/api/v2{path}", None)
        return None

    def post(self, path: str, **body: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON.
        """Send something, once, and return the answer.

        Raises:
            OSError: There was no answer, or it was an error.
        """
        return self._send(f"/api/v2{path}", json.dumps(body).encode())

    def _send(self, path: str, body: bytes | None) -> dict[str, Any]:
        request = urllib.request.Request(  # noqa: S310 - always http, on this machine.
            f"{self._server}{path}",
            data=body,
            headers={"Content-Type": "application/json", "Authorization": f"Bearer {self._token}"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
            found: dict[str, Any] = json.load(answer)
        return found


def play(api: Api, lake: Path, scheduler: subprocess.Popen[bytes]) -> None:
    """Trigger the DAG, kill its task, wait for the retry, and check the table."""
    wait_for(
        lambda: api.get(f"/dags/{DAG}"), what="the DAG", timeout_s=TIMEOUT_S, program=scheduler
    )
    run_id = api.post(f"/dags/{DAG}/dagRuns", logical_date=None)["dag_run_id"]
    print("triggered:", run_id, flush=True)
    run = run_of(f"{DAG}-{run_id}", lake)
    kill_at(run, 0.5, timeout_s=TIMEOUT_S, program=scheduler)
    task = f"/dags/{DAG}/dagRuns/{run_id}/taskInstances/describe"

    def ended() -> dict[str, Any] | None:
        found = api.get(task)
        return found if found and found["state"] in {"success", "failed"} else None

    last = wait_for(ended, what="the retry", timeout_s=TIMEOUT_S, program=scheduler)
    print(f"task: {last['state']} at try {last['try_number']}")
    if result := api.get(f"{task}/xcomEntries/return_value?deserialize=true"):
        kept, outcome = result["value"]["kept_rows"], result["value"]["outcome"]
        print(f"{outcome}: {kept:,} rows were not computed again")
    print(run.status())
    check_table(lake)


def main() -> None:
    """Run the scenario.

    Raises:
        SystemExit: Airflow could not create its database.
    """
    with scene_folder() as folder, contextlib.ExitStack() as stack:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        environment = settings(folder, port)

        def start(name: str, *options: str) -> subprocess.Popen[bytes]:
            log = folder / f"{name}.log"
            command = [AIRFLOW, name, *options]
            return stack.enter_context(started(command, environment=environment, log=log))

        if start("db", "migrate").wait(TIMEOUT_S):
            sys.exit((folder / "db.log").read_text())
        start("api-server", "--host", "127.0.0.1")
        start("dag-processor")
        # Its tasks, and what they start, are its child processes.
        scheduler = start("scheduler", "--skip-serve-logs")
        play(Api(port), folder / "lake", scheduler)


if __name__ == "__main__":
    main()
