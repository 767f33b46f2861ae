"""`hf.runs` and `holdfast runs` over 2,000 runs, each request answered after 20 ms.

The runs are copies of one that has landed and of one whose driver died while its tasks had work:
one in ten is of the second kind. They are in a local folder; a pause before each call to the store
stands for its distance. The ratio is the time of `hf.runs` over that of the same number of requests
made with the store's client alone, as many at a time as Holdfast's IO threads make.
"""

from __future__ import annotations

import contextlib
import io
import json
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import obstore
from obstore.store import LocalStore

import holdfast as hf
from holdfast.cli.main import main
from holdfast.engine.workbook import Workbook
from holdfast.model.records import open_json, seal_json
from holdfast.storage.runtime import IoRuntime, io_runtime
from tests.fakes.rig import Rig

_RUNS = 2000
_UNDER_WAY_EVERY = 10
_REQUEST_S = 0.02
_THREADS = 64
_ROUNDS = 3

_Result = TypeVar("_Result")


class _DriverEndedError(Exception):
    """Ends a driver."""


@contextlib.contextmanager
def _far_away() -> Iterator[None]:
    """Let each call to the store take 20 ms longer."""
    request = IoRuntime.request

    def slow(self: IoRuntime, action: Callable[[], _Result], *, written: int = 0) -> _Result:
        def later() -> _Result:
            time.sleep(_REQUEST_S)
            return action()

        return request(self, later, written=written)

    with mock.patch.object(IoRuntime, "request", slow):
        yield


def _objects(rig: Rig) -> dict[str, bytes]:
    """Return the objects of a run, by their names in its folder."""
    folder = "s3://store/r/"
    objects = rig.storage.objects.items()
    return {uri.removeprefix(folder): data for uri, data in objects if uri.startswith(folder)}


def _landed() -> dict[str, bytes]:
    rig = Rig()
    rig.start()
    return _objects(rig)


def _under_way() -> dict[str, bytes]:
    """Return the objects of a run whose driver died when its tasks had written their records."""
    rig = Rig()
    with (
        mock.patch.object(Workbook, "take_tasks", _driver_ends),
        contextlib.suppress(_DriverEndedError),
    ):
        rig.start()
    return _objects(rig)


def _driver_ends(_book: Workbook, reports: Any = ()) -> None:  # noqa: ANN401 - of tasks.
    if reports:
        raise _DriverEndedError


def _write(folder: Path) -> None:
    """Write the runs into a folder."""
    kinds = _landed(), _under_way()
    for number in range(_RUNS):
        run_id = f"run-{number:06d}"
        for name, data in kinds[number % _UNDER_WAY_EVERY == 0].items():
            path = folder / run_id / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if name == "run.json":
                path.write_bytes(seal_json({**open_json(data), "run_id": run_id}))
            else:
                path.write_bytes(data)


def _bare(folder: Path, requests: int) -> float:
    """Return how long so many reads take with the store's client alone."""
    store, names = LocalStore(folder), sorted(path.name for path in folder.iterdir())

    def read(number: int) -> None:
        time.sleep(_REQUEST_S)
        obstore.get(store, f"{names[number % len(names)]}/run.json").bytes()

    began = time.monotonic()
    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(read, range(requests)))
    return time.monotonic() - began


def _measure(store: str) -> tuple[float, float, int]:
    """Return the seconds of `hf.runs` and of `holdfast runs`, and the requests of the first.

    Raises:
        SystemExit: A run is missing, or not as it was written.
    """
    before, began = io_runtime().counters.requests, time.monotonic()
    states = Counter(status.state for status in hf.runs(store))
    listed_s, requests = time.monotonic() - began, io_runtime().counters.requests - before
    printed, began = io.StringIO(), time.monotonic()
    with contextlib.redirect_stdout(printed):
        code = main(["runs", "--store", store, "--json"])
    printed_s = time.monotonic() - began
    shown = Counter(line["state"] for line in json.loads(printed.getvalue())["runs"])
    started = _RUNS // _UNDER_WAY_EVERY
    if code or states != shown or shown != {"committed": _RUNS - started, "started": started}:
        raise SystemExit(f"exit code {code}; hf.runs: {states}; holdfast runs: {shown}")
    return listed_s, printed_s, requests


def run() -> dict[str, Any]:
    """Measure and return the figures."""
    rounds = []
    with tempfile.TemporaryDirectory() as folder:
        _write(Path(folder))
        for _ in range(_ROUNDS):
            with _far_away():
                listed_s, printed_s, requests = _measure(f"file://{folder}")
            bare_s = _bare(Path(folder), requests)
            rounds.append((listed_s, printed_s, bare_s, listed_s / bare_s))
            print([round(figure, 2) for figure in rounds[-1]], flush=True)
    listed, printed, bare, ratios = zip(*rounds, strict=True)
    return {
        "ratio": round(statistics.median(ratios), 3),
        "runs": _RUNS,
        "requests": requests,
        "request_ms": 1000 * _REQUEST_S,
        "hf_runs_s": [round(seconds, 2) for seconds in listed],
        "holdfast_runs_s": [round(seconds, 2) for seconds in printed],
        "requests_alone_s": [round(seconds, 2) for seconds in bare],
    }
