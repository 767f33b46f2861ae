"""The servers that are single programs: S3 (versitygw, MinIO), toxiproxy and PostgreSQL."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from pathlib import Path

import locate
from plan import BUCKET, LOOPBACK, REGION, Plan
from s3_bucket import Credentials, ensure_bucket


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """How to start one server, and how to know that it is ready.

    `ready` may raise OSError while the server does not answer yet; it must be safe to call
    again, since `status` uses it too.
    """

    name: str
    url: str
    command: list[str]
    ready: Callable[[], bool]
    env: dict[str, str] = field(default_factory=dict)
    prepare: Callable[[], None] | None = None
    after: tuple[str, ...] = ()
    timeout_s: float = 60.0
    stop_signal: signal.Signals = signal.SIGTERM


def data_dir(name: str) -> Path:
    """Return the data folder of one server; each start creates it again."""
    folder = locate.state_dir() / "data" / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def http_ok(url: str) -> bool:
    """Return whether a GET is answered with 200."""
    with urllib.request.urlopen(url, timeout=5.0) as response:
        return bool(response.status == HTTPStatus.OK)


def _bucket_ready(plan: Plan, port_name: str) -> Callable[[], bool]:
    """Return the probe of an S3 server: its bucket is there; the first call makes it."""
    credentials = Credentials(plan.access_key, plan.secret_key, REGION)
    return partial(ensure_bucket, plan.url(port_name), BUCKET, credentials)


def versitygw(plan: Plan, name: str, port_name: str, options: list[str]) -> Server:
    """Return an S3 server on a folder; with `--nometa` it ignores If-None-Match."""
    listen = f"{LOOPBACK}:{plan.ports[port_name]}"
    folder = str(data_dir(name))
    program = str(locate.binary("versitygw"))
    return Server(
        name=name,
        url=plan.url(port_name),
        command=[
            *(program, "--keep-alive", "--quiet", "--region", REGION, "--port", listen),
            *("posix", *options, folder),
        ],
        env={"ROOT_ACCESS_KEY": plan.access_key, "ROOT_SECRET_KEY": plan.secret_key},
        ready=_bucket_ready(plan, port_name),
    )


def minio(plan: Plan) -> Server:
    """Return the S3 server of the second kind."""
    address = f"{LOOPBACK}:{plan.ports['minio']}"
    program = str(locate.binary("minio"))
    return Server(
        name="minio",
        url=plan.url("minio"),
        command=[program, "server", "--quiet", "--address", address, str(data_dir("minio"))],
        env={
            "MINIO_ROOT_USER": plan.access_key,
            "MINIO_ROOT_PASSWORD": plan.secret_key,
            "MINIO_BROWSER": "off",
            "MINIO_UPDATE": "off",
        },
        ready=_bucket_ready(plan, "minio"),
    )


def toxiproxy(plan: Plan) -> Server:
    """Return the fault injector, with proxies `s3` and `catalog`.

    It needs neither server to be up: it connects to them when a client connects to it.
    """
    config = data_dir("toxiproxy") / "proxies.json"
    api = plan.url("toxiproxy")
    routes = {"s3": ("s3_proxy", "s3"), "catalog": ("catalog_proxy", "rest")}

    def write_config() -> None:
        proxies = [
            {
                "name": name,
                "listen": f"{LOOPBACK}:{plan.ports[listen]}",
                "upstream": f"{LOOPBACK}:{plan.ports[upstream]}",
                "enabled": True,
            }
            for name, (listen, upstream) in routes.items()
        ]
        config.write_text(json.dumps(proxies), "utf-8")

    def ready() -> bool:
        with urllib.request.urlopen(f"{api}/proxies", timeout=5.0) as response:
            return bool(json.load(response).keys() >= routes.keys())

    program = str(locate.binary("toxiproxy"))
    port = str(plan.ports["toxiproxy"])
    return Server(
        name="toxiproxy",
        url=api,
        command=[program, "-host", LOOPBACK, "-port", port, "-config", str(config)],
        prepare=write_config,
        ready=ready,
    )


def postgres_data(plan: Plan) -> Path:
    """Return PostgreSQL's data folder.

    PostgreSQL refuses to run as root. When root starts the stack, another user runs it, who may not
    be able to read the state folder (root's home is closed): then the data is in a temporary
    folder, which `stop` removes.
    """
    if os.geteuid() == 0:
        return Path(tempfile.gettempdir()) / f"holdfast-postgres-{plan.mark}"
    return data_dir("postgres")


def remove_postgres_data(plan: Plan) -> None:
    """Remove the temporary data folder, if there is one. Safe to call again."""
    shutil.rmtree(postgres_data(plan), ignore_errors=True)


def postgres(plan: Plan) -> Server:
    """Return PostgreSQL with the database `cat`, on loopback only, with a password."""
    tools = locate.postgres_bin()
    folder = postgres_data(plan)
    as_user: list[str] = []
    if os.geteuid() == 0:
        as_user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups"]

    def prepare() -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        password_file = folder.with_suffix(".password")
        password_file.touch(mode=0o600)
        password_file.write_text(plan.postgres_password, "utf-8")
        if as_user:
            user = pwd.getpwnam("postgres")
            os.chown(folder, user.pw_uid, user.pw_gid)
            os.chown(password_file, user.pw_uid, user.pw_gid)
        try:
            _initialise(as_user, tools, folder, password_file)
        finally:
            password_file.unlink()

    port = plan.ports["postgres"]
    settings = [
        *("-c", f"listen_addresses={LOOPBACK}", "-c", f"port={port}"),
        *("-c", "unix_socket_directories=", "-c", "max_connections=200"),
        # Data of a test run need not survive a crash of the machine.
        *("-c", "fsync=off", "-c", "full_page_writes=off"),
    ]
    probe = [str(tools / "pg_isready"), "-q", "-h", LOOPBACK, "-p", str(port), "-d", "cat"]
    return Server(
        name="postgres",
        url=f"postgresql://{LOOPBACK}:{port}/cat",
        command=[*as_user, str(tools / "postgres"), "-D", str(folder), *settings],
        prepare=prepare,
        ready=lambda: subprocess.run(probe, check=False).returncode == 0,
        # SIGTERM would wait for clients to leave; SIGINT ends their sessions.
        stop_signal=signal.SIGINT,
    )


def _initialise(as_user: list[str], tools: Path, folder: Path, password_file: Path) -> None:
    """Create the cluster and the database `cat`.

    Raises:
        RuntimeError: PostgreSQL refused, in its own words.
    """
    initdb = [str(tools / "initdb"), "-D", str(folder), "-U", "postgres", "--no-sync"]
    initdb += ["--auth=scram-sha-256", f"--pwfile={password_file}", "--encoding=UTF8"]
    single = [str(tools / "postgres"), "--single", "-D", str(folder), "-F", "postgres"]
    for command, text in ((initdb, ""), (single, "CREATE DATABASE cat;\n")):
        done = subprocess.run(
            [*as_user, *command],
            cwd=folder,
            input=text,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            message = f"{command[0]} failed:\n{done.stdout}{done.stderr}"
            raise RuntimeError(message)
