"""Start run_daily.sh as cron would, kill its job half way, and see what the next attempt does.

Takes some minutes, and ends everything that it has started.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "scheduled_job"))

from job_scene import check_table, kill_at, scene_folder, started  # noqa: E402 - found just above.
from product_job import run_of  # noqa: E402

DAY = "2026-11-14"
TIMEOUT_S = 900.0  # Per step. An idle machine needs far less.
COMMAND = [str(HERE / "run_daily.sh"), DAY]
SPARKS_OWN = ("WARNING:", "Using Spark", "Setting default log level", "To adjust logging")


def show(log: Path) -> None:
    """Print a log without Spark's own lines."""
    for line in log.read_text().splitlines():
        if not line.startswith(SPARKS_OWN) and " WARN " not in line:
            print(line)


def main() -> None:
    """Run the scenario."""
    with scene_folder() as folder, contextlib.ExitStack() as stack:
        lake = folder / "lake"
        environment = {"PYTHON": sys.executable, "LAKE": str(lake), "PAUSE_S": "5"}

        def start(name: str) -> subprocess.Popen[bytes]:
            log = folder / f"{name}.log"
            return stack.enter_context(started(COMMAND, environment=environment, log=log))

        def end(program: subprocess.Popen[bytes], name: str) -> None:
            print("exit code", program.wait(TIMEOUT_S), "after:")
            show(folder / f"{name}.log")

        first = start("first")
        kill_at(run_of(f"products-{DAY}", lake), 0.5, timeout_s=TIMEOUT_S, program=first)
        end(start("second"), "second")  # While the first is at work.
        end(first, "first")
        end(start("third"), "third")
        check_table(lake)


if __name__ == "__main__":
    main()
