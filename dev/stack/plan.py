"""The plan of one start: ports, credentials and folders, and the endpoints that follow from it.

The plan is saved before the first process starts, so that `stop` and `status` can rebuild all
servers from it, even after a start that was killed halfway.
"""

from __future__ import annotations

import json
import os
import random
import secrets
import socket
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import locate

LOOPBACK = "127.0.0.1"
REGION = "us-east-1"
BUCKET = "lake"
WAREHOUSE = f"s3://{BUCKET}/wh"
NESSIE_WAREHOUSE = f"s3://{BUCKET}/nessie"
EXTRAS = ("nessie", "minio")

_PORT_NAMES = (
    *("s3", "s3_nometa", "s3_proxy", "catalog_proxy", "toxiproxy", "postgres", "rest"),
    *("master", "master_ui", "worker_1", "worker_1_ui", "worker_2", "worker_2_ui", "connect"),
    *("nessie", "nessie_management", "minio"),
)
# Below the range from which Linux takes the ports of outgoing connections, so that a port
# found free here is not taken by a client before its server starts.
_PORT_RANGE = range(20000, 30000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The decisions of one start."""

    mark: str
    extras: list[str]
    ports: dict[str, int]
    access_key: str
    secret_key: str
    postgres_password: str
    # Processes as [name, pid, start ticks, signal]; filled in while servers start.
    processes: list[tuple[str, int, int, int]] = field(default_factory=list)

    def url(self, port_name: str) -> str:
        """Return the HTTP address of one port of the plan."""
        return f"http://{LOOPBACK}:{self.ports[port_name]}"


def new_plan(extras: list[str]) -> Plan:
    """Choose free ports and fresh credentials."""
    return Plan(
        mark=secrets.token_hex(8),
        extras=sorted(set(extras)),
        ports=_free_ports(),
        access_key=f"HF{secrets.token_hex(9).upper()}",
        secret_key=secrets.token_hex(20),
        postgres_password=secrets.token_hex(12),
    )


def _free_ports() -> dict[str, int]:
    """Return a free port for each name; HOLDFAST_PORT_<NAME> sets one by hand."""
    ports: dict[str, int] = {}
    held: list[socket.socket] = []
    candidates = random.sample(_PORT_RANGE, k=len(_PORT_RANGE))
    try:
        for name in _PORT_NAMES:
            if chosen := os.environ.get(f"HOLDFAST_PORT_{name.upper()}"):
                ports[name] = int(chosen)
                continue
            while True:
                holder = socket.socket()
                held.append(holder)
                port = candidates.pop()
                try:
                    holder.bind((LOOPBACK, port))
                except OSError:
                    continue
                ports[name] = port
                break
    finally:
        for holder in held:
            holder.close()
    return ports


def save(path: Path, content: dict[str, Any]) -> None:
    """Write JSON that only this user may read, in one step: it holds credentials."""
    draft = path.with_suffix(".draft")
    draft.touch(mode=0o600)
    draft.write_text(json.dumps(content, indent=2) + "\n", "utf-8")
    draft.replace(path)


def save_plan(plan: Plan) -> None:
    """Save the plan with the processes started so far."""
    save(locate.state_dir() / "plan.json", asdict(plan))


def load_plan() -> Plan | None:
    """Return the plan of the last start; None if there is none (never started, or stopped)."""
    try:
        content = json.loads((locate.state_dir() / "plan.json").read_text("utf-8"))
    except FileNotFoundError:
        return None
    return Plan(**content)


def s3_endpoint(plan: Plan, port_name: str) -> dict[str, Any]:
    """Return one S3 entry of stack.json."""
    return {
        "endpoint": plan.url(port_name),
        "access_key": plan.access_key,
        "secret_key": plan.secret_key,
        "region": REGION,
        "bucket": BUCKET,
    }


def describe(plan: Plan) -> dict[str, Any]:
    """Return what stack.json holds: every endpoint, for tests to read."""
    stack: dict[str, Any] = {
        "s3": s3_endpoint(plan, "s3"),
        "s3_nometa": s3_endpoint(plan, "s3_nometa"),
        "s3_via_toxiproxy": s3_endpoint(plan, "s3_proxy"),
        "toxiproxy": {
            "api": plan.url("toxiproxy"),
            "proxies": {"s3": "s3_via_toxiproxy", "catalog": "rest_via_toxiproxy"},
        },
        "postgres": {
            "host": LOOPBACK,
            "port": plan.ports["postgres"],
            "user": "postgres",
            "password": plan.postgres_password,
            "database": "cat",
        },
        "rest": {"uri": plan.url("rest"), "warehouse": WAREHOUSE},
        "rest_via_toxiproxy": {"uri": plan.url("catalog_proxy"), "warehouse": WAREHOUSE},
        "spark": {
            "master": f"spark://{LOOPBACK}:{plan.ports['master']}",
            "master_ui": plan.url("master_ui"),
            "python": str(locate.venv_python()),
            "jars": [str(jar) for jar in locate.jars("spark-jars")],
        },
        "connect": {"remote": f"sc://{LOOPBACK}:{plan.ports['connect']}", "catalog": "lake"},
    }
    if "nessie" in plan.extras:
        uri = plan.url("nessie") + "/iceberg/"
        stack["nessie"] = {"uri": uri, "warehouse": NESSIE_WAREHOUSE}
    if "minio" in plan.extras:
        stack["minio"] = s3_endpoint(plan, "minio")
    return stack
