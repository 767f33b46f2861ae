"""Emulators of clouds, each started for the tests that need it, on a free port of this machine.

`make emulators` installs them (dev/emulators.sh). A test whose emulator is not there is skipped;
with HOLDFAST_REQUIRE_STACK, as in the nightly run, it fails.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path

import httpx
import pytest

CACHE = Path(os.environ.get("HOLDFAST_CACHE", Path.home() / ".cache" / "holdfast")) / "emulators"
# Azurite's account and its key are the same everywhere, and documented.
ACCOUNT = "devstoreaccount1"
ACCOUNT_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
_VERSION = "2021-08-06"
_STARTS_WITHIN_S, _ANSWERS_WITHIN_S = 90.0, 30.0
_COMMANDS = {
    "fake-gcs-server": (
        "{folder}/fake-gcs-server -scheme http -host 127.0.0.1 -port {port} -backend memory "
        "-external-url http://127.0.0.1:{port} -public-host 127.0.0.1:{port} -log-level error"
    ),
    "azurite": (
        "{folder}/node_modules/.bin/azurite-blob --inMemoryPersistence --silent "
        "--disableTelemetry --skipApiVersionCheck --blobHost 127.0.0.1 --blobPort {port}"
    ),
    "moto": "{folder}/bin/moto_server -H 127.0.0.1 -p {port}",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Emulator:
    """A server that runs."""

    name: str
    version: str
    uri: str


@contextmanager
def emulator(name: str, logs: Path) -> Iterator[Emulator]:
    """Run an emulator while the context lasts.

    Args:
        name: Its name, as in dev/emulators.sh.
        logs: A folder for what it prints.
    """
    folder = CACHE / name
    if not (folder / "version").is_file():
        how = f"{name} is not installed: make emulators"
        if os.environ.get("HOLDFAST_REQUIRE_STACK"):
            pytest.fail(how)
        pytest.skip(how)
    port = _free_port()
    command = _COMMANDS[name].format(folder=folder, port=port).split()
    with (logs / f"{name}.log").open("wb") as log:
        server = subprocess.Popen(command, cwd=logs, stdout=log, stderr=subprocess.STDOUT)
    try:
        _wait(server, port, logs / f"{name}.log")
        version = (folder / "version").read_text()
        yield Emulator(name=name, version=version, uri=f"http://127.0.0.1:{port}")
    finally:
        server.terminate()
        server.wait()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def _wait(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Wait until a server listens.

    Raises:
        TimeoutError: It does not.
    """
    until = time.monotonic() + _STARTS_WITHIN_S
    while time.monotonic() < until and server.poll() is None:
        with socket.socket() as trial:
            if trial.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise TimeoutError(log.read_text(errors="replace"))


def make_bucket(server: Emulator, name: str) -> None:
    """Make a bucket of fake-gcs-server."""
    uri = f"{server.uri}/storage/v1/b?project=p"
    httpx.post(uri, json={"name": name}, timeout=_ANSWERS_WITHIN_S).raise_for_status()


def make_container(server: Emulator, name: str) -> None:
    """Make a container of Azurite."""
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": _VERSION}
    signed = "\n".join(
        [
            "PUT" + "\n" * 11,
            *(f"{key}:{value}" for key, value in headers.items()),
            f"/{ACCOUNT}/{ACCOUNT}/{name}",
            "restype:container",
        ]
    )
    key = base64.b64decode(ACCOUNT_KEY)
    signature = base64.b64encode(hmac.new(key, signed.encode(), hashlib.sha256).digest()).decode()
    headers["Authorization"] = f"SharedKey {ACCOUNT}:{signature}"
    uri = f"{server.uri}/{ACCOUNT}/{name}?restype=container"
    httpx.put(uri, headers=headers, timeout=_ANSWERS_WITHIN_S).raise_for_status()
