"""Start all servers of a plan at once, each after those it needs, and report on each."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait

import locate
import processes
from jvm_servers import connect, master, nessie, rest, worker
from plan import Plan, save_plan
from servers import Server, data_dir, minio, postgres, toxiproxy, versitygw

_GONE_S = 20.0
_LOG_TAIL_LINES = 30


class ServerFailedError(Exception):
    """A server ended, or was not ready in time; the message holds the end of its log."""


def all_servers(plan: Plan) -> list[Server]:
    """Return every server of a plan, the slowest to start first."""
    servers = [
        connect(plan),
        master(plan),
        postgres(plan),
        rest(plan),
        worker(plan, 1),
        worker(plan, 2),
        versitygw(plan, "s3", "s3", []),
        versitygw(plan, "s3-nometa", "s3_nometa", ["--nometa"]),
        toxiproxy(plan),
    ]
    if "nessie" in plan.extras:
        servers.append(nessie(plan))
    if "minio" in plan.extras:
        servers.append(minio(plan))
    return servers


class Launcher:
    """One start: which servers are ready, and whether another one failed."""

    def __init__(self, plan: Plan) -> None:
        """Prepare a start; nothing runs yet."""
        self._plan = plan
        self._lock = threading.Lock()
        self._failed = threading.Event()
        self._ready: dict[str, threading.Event] = {}

    def run(self) -> None:
        """Start every server and return when all are ready.

        Raises:
            ServerFailedError: A server ended or was not ready in time. The others may still run:
                call `stop`.
        """
        servers = all_servers(self._plan)
        self._ready = {server.name: threading.Event() for server in servers}
        with ThreadPoolExecutor(max_workers=len(servers)) as pool:
            jobs: list[Future[None]] = [pool.submit(self._start_one, server) for server in servers]
            try:
                done, _ = wait(jobs, return_when=FIRST_EXCEPTION)
                errors = [error for job in done if (error := job.exception())]
            finally:
                # Also after Ctrl-C: the pool waits for its threads, which look at this flag.
                self._failed.set()
        if errors:
            raise errors[0]

    def restart(self, name: str) -> None:
        """Kill one server, as the loss of its machine would, and start it again on its data.

        Raises:
            ServerFailedError: There is no such server, or it did not come back.
        """
        server = next((listed for listed in all_servers(self._plan) if listed.name == name), None)
        if server is None:
            message = f"the stack has no server {name!r}"
            raise ServerFailedError(message)
        records = [record for record in self._plan.processes if record[0] == name]
        known = {processes.Identity(pid, ticks): signal.SIGKILL for _, pid, ticks, _ in records}
        processes.end(known, "", patience_s=0.0)
        # PostgreSQL takes a zombie process for a living one.
        processes.wait_until_gone(known, _GONE_S)
        for record in records:
            self._plan.processes.remove(record)
        self._ready = {name: threading.Event()}
        self._start(server)

    def _start_one(self, server: Server) -> None:
        """Start one server for the first time, after those it needs."""
        for name in server.after:
            while not self._ready[name].wait(timeout=0.1):
                if self._failed.is_set():
                    return
        if server.prepare:
            server.prepare()
        self._start(server)

    def _start(self, server: Server) -> None:
        """Start one server; print one line when it is ready."""
        started = time.monotonic()
        process = self._spawn(server)
        pause_s = 0.05
        while not is_ready(server):
            if self._failed.is_set():
                return
            self._check(server, process, time.monotonic() - started)
            time.sleep(pause_s)
            pause_s = min(0.4, pause_s * 1.5)
        # Another program could answer on the port of a server that could not bind it.
        self._check(server, process, 0.0)
        self._ready[server.name].set()
        took_s = time.monotonic() - started
        print(f"{server.name:<11} ready  {server.url:<36} {took_s:5.1f} s", flush=True)

    def _spawn(self, server: Server) -> subprocess.Popen[bytes]:
        """Start the process and put it on record at once, so that `stop` finds it."""
        # Settings of the caller's own Spark, Java or AWS must not change what runs here.
        kept = ("PATH", "HOME", "USER", "LANG", "TZ", "TMPDIR")
        env = {name: os.environ[name] for name in kept if name in os.environ}
        with self._lock:
            process = processes.spawn(
                server.command,
                env=env | server.env,
                mark=self._plan.mark,
                folder=data_dir(server.name),
                log=locate.state_dir() / "logs" / f"{server.name}.log",
            )
            if identity := processes.identify(process.pid):
                stop_signal = int(server.stop_signal)
                record = (server.name, identity.pid, identity.start_ticks, stop_signal)
                self._plan.processes.append(record)
                save_plan(self._plan)
        return process

    def _check(self, server: Server, process: subprocess.Popen[bytes], waited_s: float) -> None:
        """Do nothing while a process runs and still has time.

        Raises:
            ServerFailedError: It has ended, or its time is over.
        """
        code = process.poll()
        if code is None and waited_s < server.timeout_s:
            return
        why = f"not ready after {waited_s:.0f} s" if code is None else f"ended with {code}"
        log = locate.state_dir() / "logs" / f"{server.name}.log"
        lines = log.read_text("utf-8", errors="replace").splitlines()[-_LOG_TAIL_LINES:]
        tail = "\n".join(f"    {line}" for line in lines)
        message = f"{server.name}: {why}; the end of {log}:\n{tail}"
        raise ServerFailedError(message)


def is_ready(server: Server) -> bool:
    """Return whether a server answers its probe."""
    try:
        return server.ready()
    except (OSError, ValueError):
        return False


def leaders(plan: Plan) -> dict[processes.Identity, signal.Signals]:
    """Return the recorded processes of a plan, each with the signal that ends it cleanly."""
    return {
        processes.Identity(pid, start_ticks): signal.Signals(number)
        for _, pid, start_ticks, number in plan.processes
    }
