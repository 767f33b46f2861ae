"""A standalone cluster for one test: a master and two workers of one core each.

The workers have two loopback addresses: Spark starts no speculative attempt on the host that the
first one runs on.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark

from tests.crash.started_jobs import kill_process, processes_of_session
from tests.integration.process_jobs import QUIET

MASTER_HOST = "127.0.0.1"
WORKER_HOSTS = ("127.0.0.1", "127.0.0.2")
_EXECUTOR = "CoarseGrainedExecutorBackend"
_READY_TIMEOUT_S = 180.0
_POLL_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnCluster:
    """A running cluster."""

    master: str
    folder: Path
    processes: tuple[subprocess.Popen[bytes], ...]

    @classmethod
    @contextmanager
    def started(cls, folder: Path) -> Iterator[OwnCluster]:
        """Start the cluster; nothing of it is left when the block ends."""
        folder.mkdir()
        ports = [free_port(MASTER_HOST), *(free_port(host) for host in WORKER_HOSTS)]
        master = f"spark://{MASTER_HOST}:{ports[0]}"
        with ExitStack() as stack:
            arguments = ["--host", MASTER_HOST, "--port", str(ports[0])]
            processes = [stack.enter_context(_server(folder, "master.Master", arguments))]
            wait_for_port(MASTER_HOST, ports[0])
            for host, port in zip(WORKER_HOSTS, ports[1:], strict=True):
                work = ["--work-dir", str(folder / f"work-{port}")]
                arguments = ["--host", host, "--port", str(port), "--cores", "1", "--memory", "2g"]
                server = _server(folder, "worker.Worker", [*arguments, *work, master], host)
                processes.append(stack.enter_context(server))
                wait_for_port(host, port)
            yield cls(master=master, folder=folder, processes=tuple(processes))

    def session_conf(self) -> dict[str, str]:
        """Return the settings of a session on this cluster that logs its events."""
        events = self.folder / "events"
        events.mkdir(exist_ok=True)
        return {
            **QUIET,
            "spark.master": self.master,
            "spark.executor.memory": "1g",
            # No task starts before both executors are there.
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",
            "spark.eventLog.rolling.enabled": "false",
            "spark.eventLog.dir": f"file://{events}",
        }

    def executors(self) -> list[int]:
        """Return the processes of the executors, which the workers have started."""
        return [process for server in self.processes for process in executors_of(server.pid)]


@contextmanager
def _server(
    folder: Path, name: str, arguments: list[str], host: str = MASTER_HOST
) -> Iterator[subprocess.Popen[bytes]]:
    home = Path(pyspark.__file__).parent
    light = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    with (folder / f"{name}-{host}.log").open("wb") as log:
        process = subprocess.Popen(
            [
                *(f"{home}/bin/spark-class", f"org.apache.spark.deploy.{name}", *arguments),
                *("--webui-port", "0"),
            ],
            cwd=folder,
            env={
                **os.environ,
                "SPARK_HOME": str(home),
                "SPARK_LOCAL_IP": host,
                "SPARK_PUBLIC_DNS": host,
                "SPARK_LOCAL_DIRS": str(folder / f"local-{host}"),
                "SPARK_DAEMON_MEMORY": "384m",
                "SPARK_DAEMON_JAVA_OPTS": light,
                "SPARK_LAUNCHER_OPTS": light,
                "PYSPARK_PYTHON": sys.executable,
            },
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        for process_id in processes_of_session(process.pid):
            kill_process(process_id)
        process.wait(timeout=10.0)


def executors_of(session_id: int) -> list[int]:
    """Return the executors among the processes of a session."""
    return [
        process_id
        for process_id, command in processes_of_session(session_id).items()
        if _EXECUTOR in command and "java" in command.split(" ", 1)[0]
    ]


def free_port(host: str) -> int:
    """Return a port of an address that nothing listens on."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
    return port


def wait_for_port(host: str, port: int) -> None:
    """Wait until something listens on a port.

    Raises:
        AssertionError: Nothing listens in time.
    """
    until = time.monotonic() + _READY_TIMEOUT_S
    while not _listens(host, port):
        assert time.monotonic() < until, f"nothing listens on {host}:{port}"
        time.sleep(_POLL_S)


def _listens(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=1.0):
            return True
    except OSError:
        return False
