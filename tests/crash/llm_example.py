"""The example of the LLM job, as a user starts it: its model server, and its script."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.crash.started_jobs import ROOT, kill_process, processes_of_session
from tests.stack_access import Stack

EXAMPLE = ROOT / "examples" / "llm_enrich"
_POLL_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A model server that the test has started."""

    url: str

    def counts(self) -> dict[str, Any]:
        """Return what the server itself has counted."""
        with urllib.request.urlopen(f"{self.url}/counts", timeout=30) as answer:  # noqa: S310 - our own.
            found: dict[str, Any] = json.load(answer)
        return found


@contextmanager
def model_server(**settings: float) -> Iterator[Server]:
    """Start the example's model server on a free port; it is gone when the block ends."""
    given = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    command = [sys.executable, str(EXAMPLE / "model_server.py"), "--port=0", *given]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline() if process.stdout else ""
            yield Server(url=line.removeprefix("listening on ").strip())
        finally:
            process.kill()


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """The job's script, with the same arguments at each start."""

    stack: Stack
    store: str
    arguments: tuple[str, ...]
    spark: Mapping[str, str]
    folder: Path

    @contextmanager
    def start(self, name: str) -> Iterator[StartedExample]:
        """Start the script; nothing of it is left when the block ends."""
        conf = " ".join(f"--conf {shlex.quote(f'{k}={v}')}" for k, v in self.spark.items())
        environment = {
            **os.environ,
            "EXAMPLE_CATALOG": self.stack.rest.uri,
            "EXAMPLE_S3_ENDPOINT": self.stack.s3.endpoint,
            "EXAMPLE_STORE": self.store,
            "AWS_ACCESS_KEY_ID": self.stack.s3.access_key,
            "AWS_SECRET_ACCESS_KEY": self.stack.s3.secret_key,
            "AWS_REGION": self.stack.s3.region,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_SUBMIT_ARGS": f"{conf} pyspark-shell",
        }
        output = self.folder / f"{name}.log"
        with output.open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, str(EXAMPLE / "enrich.py"), *self.arguments],
                cwd=self.folder,
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        started = StartedExample(process=process, log=output)
        try:
            yield started
        finally:
            started.kill()


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedExample:
    """One start of the script."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def output(self) -> str:
        """What it has printed so far."""
        return self.log.read_text()

    def wait_for_answers(self, server: Server, answers: int, *, timeout_s: float = 300.0) -> float:
        """Wait until the server has answered so many rows; return how many it answers a second.

        Raises:
            AssertionError: The job ended, or time ran out.
        """
        until, before = time.monotonic() + timeout_s, server.counts()["answered_calls"]
        began, calls = time.monotonic(), 0
        while (counts := server.counts())["answered_ids"] < answers:
            assert self.process.poll() is None, f"it ended by itself:\n{self.output}"
            assert time.monotonic() < until, f"too slow:\n{self.output}"
            if not calls:  # Spark is still starting.
                began = time.monotonic()
            calls = counts["answered_calls"] - before
            time.sleep(_POLL_S)
        return float(calls / (time.monotonic() - began))

    def kill(self) -> int:
        """Kill the driver and its JVM, as the loss of their node would; return how many."""
        found = processes_of_session(self.process.pid)
        for process_id in found:
            kill_process(process_id)
        self.process.wait(timeout=10.0)
        return len(found)
