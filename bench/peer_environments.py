"""The engines that are compared, and an environment for each, outside the repository."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from bench.data import cache_folder

OURS = "holdfast"
_STAMP = "requirements.txt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """An engine: the module that does its job, and what to install for it."""

    module: str
    # Exact versions; none for an engine that is run in this project's own environment.
    requirements: tuple[str, ...] = ()
    # Which jars of the stack's cache its session needs.
    jars: str = ""
    # What its plain and its checkpointed job are.
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
        jars="iceberg-spark-runtime-*.jar",
        plain="bare Spark: one batch, mapInArrow, append to Iceberg",
        checkpointed="AvailableNow, 4 files a batch, checkpointLocation, into Iceberg",
    ),
}


class PeerError(Exception):
    """An engine could not be installed, or did not do its job; the message says why."""


def interpreter(name: str) -> str:
    """Return the Python of an engine's environment; make it first, unless it is as wanted.

    Raises:
        PeerError: It cannot be made.
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
    stamp.write_text(wanted)  # Last: an installation that broke off is begun again.
    return python


def jars(name: str) -> tuple[str, ...]:
    """Return the jars that an engine's session needs.

    Raises:
        PeerError: They are not there.
    """
    pattern = PEERS[name].jars
    if not pattern:
        return ()
    found = sorted(map(str, Path(cache_folder().parent / "spark-jars").glob(pattern)))
    if not found:
        raise PeerError(f"no {pattern} in the cache: run dev/stack/install.sh")
    return tuple(found)


def _call(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise PeerError(f"{' '.join(command[1:3])} failed: {last}")
