"""Checks on the executors: they import Holdfast, and reach the store."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator
from typing import Any

from holdfast._version import __version__
from holdfast.cli.checks.finding import Finding, failed, failed_by, ok, warning
from holdfast.errors import HoldfastError
from holdfast.model.report import counted, readable_time
from holdfast.storage.port import Storage
from holdfast.worker.checkup import CheckupPlan

_CLOCK_OFF_S = 10.0
# Where servers listen unless told otherwise: Spark Connect, and a standalone master.
_PORTS = {"sc": 15002, "spark": 7077}
_CONNECT_S = 10.0


def check_executors(url: str, store: str | None, storage: Storage | None) -> Iterator[Finding]:
    """Start a session, run a task in each of its slots, and look at what they report.

    Args:
        url: A master, or a Spark Connect server.
        store: Where the ledger stands, if that is known.
        storage: How it is reached.
    """
    if store is not None:
        yield from check_store_is_shared(url, store)
    if (silent := _silence(url)) is not None:
        yield silent
        return
    try:
        from holdfast.spark.checkup import checkups, session_at  # noqa: PLC0415 - it is optional.

        with session_at(url) as session:
            yield ok("spark session", f"Spark {session.version} at {_shown(url)}")
            began_at = time.time()
            found = checkups(session, CheckupPlan(store=store, storage=storage))
            yield from judge(found, began_at, time.time())
    except HoldfastError as error:
        yield failed_by("spark job", error)
    except ImportError as error:
        seen = f"PySpark cannot be imported ({error})"
        yield failed("spark job", seen, 'pip install "holdfast[spark]"')


def _silence(url: str) -> Finding | None:
    """Return that nobody listens at a server's address: Spark itself would try for minutes."""
    scheme, _, rest = url.partition("://")
    if scheme not in _PORTS:
        return None
    host, _, port = re.split("[;,/]", rest)[0].rpartition(":")
    try:
        address = (host or port, int(port) if host else _PORTS[scheme])
        socket.create_connection(address, timeout=_CONNECT_S).close()
    except (OSError, ValueError) as error:
        fix = "check the address, and that the server runs and can be reached from here"
        return failed("spark answers", f"{_shown(url)}: nobody answers ({error})", fix)
    return None


def _shown(url: str) -> str:
    """Return an address without its parameters: a token may be among them."""
    return url.partition(";")[0]


def check_store_is_shared(url: str, store: str) -> Iterator[Finding]:
    """Refuse a folder of this machine as the store of a cluster."""
    if store.startswith("file://") and not url.startswith("local"):
        yield failed(
            "store and cluster",
            f"the store is a local folder, and executors of {_shown(url)} run on other machines",
            "use an object store (s3://, gs://, abfss://), or a folder that all machines mount",
        )


def judge(found: list[dict[str, Any]], began_at: float, ended_at: float) -> Iterator[Finding]:
    """Look at what the tasks have reported.

    Args:
        found: One report for each task.
        began_at: When the job began, by our clock.
        ended_at: When it ended.
    """
    broken = {one["problem"]["host"]: one["problem"]["facts"] for one in found if "problem" in one}
    for host, facts in broken.items():
        yield failed("executor python", f"{host}: {facts['what']}", facts["cure"])
    seen = [one for one in found if "problem" not in one]
    if not seen:
        return
    hosts = sorted({one["host"] for one in seen})
    where = f"{counted(len(seen), 'task')} on {', '.join(hosts[:3])}"
    versions = sorted({f"Python {one['python'].split()[0]}" for one in seen})
    arrows = sorted({f"pyarrow {one['pyarrow']}" for one in seen})
    what = ", ".join([f"holdfast {__version__}", *versions, *arrows])
    yield ok("executor python", f"{what}; {where}")
    yield _reach(seen)
    yield _clocks(seen, began_at, ended_at)


def _reach(seen: list[dict[str, Any]]) -> Finding:
    cut_off = {one["host"]: one["store_error"] for one in seen if one["store_error"]}
    if not cut_off:
        return ok("executors reach the store", "each of them listed it")
    host, error = next(iter(cut_off.items()))
    return failed(
        "executors reach the store",
        f"{counted(len(cut_off), 'host')} of {len({one['host'] for one in seen})} cannot, such as "
        f"{host}: {error}",
        "give executors the network and the credentials that the driver has; serverless Spark "
        "without a network path to the store cannot run Holdfast",
    )


def _clocks(seen: list[dict[str, Any]], began_at: float, ended_at: float) -> Finding:
    off = {one["host"]: max(began_at - one["at"], one["at"] - ended_at, 0.0) for one in seen}
    host = max(off, key=lambda name: off[name])
    if off[host] <= _CLOCK_OFF_S:
        return ok("executor clocks", "they agree with this machine's")
    return warning(
        "executor clocks",
        f"{host} is {readable_time(off[host])} off this machine's clock",
        "set the clocks of all machines by a time server (NTP)",
    )
