"""The engines that are compared, and an environment for each, outside the repository."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass

from bench.data import cache_folder

OURS = "holdfast"
OURS_LANCE = "holdfast-lance"
_STAMP = "requirements.txt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """An engine: the module that does its job, and what to install for it."""

    module: str
    # Which comparison it belongs to: the kind of table that ours writes there.
    table: str = "Iceberg"
    # Exact versions; none for an engine that is run in this project's own environment.
    requirements: tuple[str, ...] = ()
    # The jars of the stack's cache that its session needs, and the command that puts them there.
    jars: str = ""
    jars_from: str = "dev/stack/install.sh"
    # What its plain and its checkpointed job are; an empty text: it has no checkpoints.
    plain: str
    checkpointed: str


PEERS = {
    OURS: Peer(
        module="bench.peer_ours",
        plain="append to Iceberg, checkpoint_every=None",
        checkpointed="append to Iceberg, checkpoint_every='2s'",
    ),
    "ray": Peer(
        module="bench.peer_ray",
        requirements=("ray[data]==2.60.0", "pyarrow==26.0.1", "pandas==3.1.1", "numpy==2.4.6"),
        plain="write_parquet without a checkpoint config",
        checkpointed="write_parquet, CheckpointConfig(id_column='id'), ids kept on success",
    ),
    "daft": Peer(
        module="bench.peer_daft",
        requirements=(
            *("daft[iceberg,ray]==0.7.26", "ray==2.59.0", "pyiceberg==0.11.1"),
            *("sqlalchemy==2.1.8", "pyarrow==25.0.1", "numpy==2.4.6"),
        ),
        plain="write_iceberg on the native runner",
        checkpointed="write_iceberg(checkpoint=IdempotentCommit) on the Ray runner",
    ),
    "dlt": Peer(
        module="bench.peer_dlt",
        requirements=(
            *("dlt[pyiceberg]==1.31.0", "pyiceberg==0.12.0", "sqlalchemy==2.1.8"),
            *("pyarrow==26.0.1",),
        ),
        plain="pipeline.run to Iceberg, all files",
        checkpointed="pipeline.run to Iceberg, incremental over the files' times",
    ),
    "stream": Peer(
        module="bench.peer_stream",
        requirements=("pyspark==4.1.4", "pyarrow==26.0.1", "pandas==2.3.3"),
        jars="spark-jars/iceberg-spark-runtime-*.jar",
        plain="bare Spark: one batch, mapInArrow, append to Iceberg",
        checkpointed="AvailableNow, 4 files a batch, checkpointLocation, into Iceberg",
    ),
    OURS_LANCE: Peer(
        module="bench.peer_lance_ours",
        table="Lance",
        plain="append to Lance, checkpoint_every=None",
        checkpointed="append to Lance, checkpoint_every='2s'",
    ),
    "daft-lance": Peer(
        module="bench.peer_lance_daft",
        table="Lance",
        requirements=(
            *("daft==0.7.26", "daft-lance==0.6.0", "pylance==14.0.2"),
            *("pyarrow==25.0.1", "numpy==2.4.6"),
        ),
        plain="daft_lance.write_lance, mode='append', on the native runner",
        checkpointed="",
    ),
    "lance-ray": Peer(
        module="bench.peer_lance_ray",
        table="Lance",
        requirements=(
            *("lance-ray==0.5.0", "ray[data]==2.60.0", "pylance==14.0.2"),
            *("pyarrow==26.0.1", "pandas==3.1.1", "numpy==2.4.6"),
        ),
        plain="lance_ray.write_lance, mode='append'",
        checkpointed="",
    ),
    "lance-spark": Peer(
        module="bench.peer_lance_spark",
        table="Lance",
        requirements=("pyspark==3.5.9", "pyarrow==26.0.1", "pandas==2.3.3", "numpy==2.4.6"),
        jars="lance-spark-jars/*.jar",
        jars_from="dev/stack/install.sh lance-spark",
        plain="mapInArrow, writeTo(...).append() by lance-spark 0.4.0",
        checkpointed="",
    ),
}


class PeerError(Exception):
    """An engine could not be installed, or failed; the message says why."""


def names_of(table: str) -> list[str]:
    """Return the engines that are compared with ours where it writes this kind of table."""
    return [name for name, peer in PEERS.items() if peer.table == table]


def interpreter(name: str) -> str:
    """Return the Python of an engine's environment; create it first, unless it is up to date.

    Raises:
        PeerError: The environment cannot be created.
    """
    peer = PEERS[name]
    if not peer.requirements:
        return sys.executable
    folder = cache_folder().parent / "peers" / name
    wanted, stamp = "\n".join(peer.requirements), folder / _STAMP
    python = str(folder / "bin" / "python")
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    uv = shutil.which("uv")
    if uv is None:
        raise PeerError("uv is not installed; it makes the environments")
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    _call(uv, "venv", "--quiet", "--python", sys.executable, str(folder))
    _call(uv, "pip", "install", "--quiet", "--python", python, *peer.requirements)
    stamp.write_text(wanted)  # Written last, so that an installation that broke off is repeated.
    return python


def jars(name: str) -> tuple[str, ...]:
    """Return the jars that an engine's session needs.

    Raises:
        PeerError: The jars are not in the cache.
    """
    peer = PEERS[name]
    if not peer.jars:
        return ()
    found = sorted(map(str, cache_folder().parent.glob(peer.jars)))
    if not found:
        raise PeerError(f"no {peer.jars} in the cache: run {peer.jars_from}")
    return tuple(found)


def _call(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise PeerError(f"{' '.join(command[1:3])} failed: {last}")
