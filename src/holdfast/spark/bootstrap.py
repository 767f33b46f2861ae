"""The first lines that run on an executor.

An executor may lack Holdfast or have another version, so this function must not need it: it is
pickled by value, imports inside, and reports problems in a form the driver understands.
"""

from __future__ import annotations

import gc
import sys
import zipimport
from collections.abc import Callable, Iterator
from typing import Any

REPORT_SCHEMA = "report string"


def bootstrap(
    payload: bytes, version: str, names: tuple[str, ...] = ()
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return the function that Spark runs for each task.

    Args:
        payload: The pickled task plan, unpickled only by an executor of the same version.
        version: The driver's version of Holdfast.
        names: The columns' real names, if they are sent under other names.
    """
    # All imports happen on the executor, and the payload comes from Spark, not from storage.
    # ruff: noqa: PLC0415, S301, ICN001, BLE001

    def load_plan() -> tuple[Any, str, str]:
        """Return the plan, or what is wrong with this executor and how to fix it."""
        import importlib
        import pickle

        install = f"install holdfast {version} there, as on the driver"
        try:
            installed = importlib.import_module("holdfast").__version__
        except ImportError as error:
            what = f"the driver runs holdfast {version}, but this Python has no holdfast ({error})"
            return None, what, f"{install}, or point PYSPARK_PYTHON at an environment that has it"
        if installed != version:
            what = f"holdfast {installed} is installed here, but the driver has {version}"
            return None, what, install
        try:
            return pickle.loads(payload), "", ""
        except Exception as error:
            what = f"the job cannot be loaded ({type(error).__name__}: {error})"
            cure = (
                "install the packages that it needs there (Holdfast's own come with its "
                "extras iceberg and lance)"
            )
            if not isinstance(error, ImportError):
                cure += (
                    "; and if the transform's module does more than define when it is imported, "
                    "such as starting a SparkSession, put that under `if __name__ == '__main__':`"
                )
            return None, what, cure

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        import importlib
        import json
        import socket
        import sys

        import pyarrow
        from pyspark import TaskContext

        context = TaskContext.get()
        place = context.partitionId() if context else 0
        attempt = context.taskAttemptId() if context else 0
        plan, what, cure = load_plan()
        if plan is None:
            host = f"{socket.gethostname()} ({sys.executable})"
            problem = {"kind": "setup", "host": host, "facts": {"what": what, "cure": cure}}
            report = json.dumps({"place": place, "problem": problem})
        else:
            importlib.import_module("holdfast.spark.bootstrap").leave_out_what_is_loaded()
            if names:
                batches = (batch.rename_columns(names) for batch in batches)
            report = plan.run(batches, place=place, attempt=attempt).to_json()
        yield pyarrow.RecordBatch.from_pydict({"report": [report]})

    # A function of __main__ is pickled by value; a function of any other module by name, and an
    # executor without Holdfast could not even load it.
    load_plan.__module__ = run.__module__ = "__main__"
    return run


def leave_out_what_is_loaded() -> None:
    """Make the time between this task and the next one of the process short.

    Spark takes 0.35 s of CPU time there, more than a small task. Half of it is a garbage collection
    that walks through all modules: so those that are loaded by now are taken out of it. The other
    half reads the directories of zip files on the path again, such as `pyspark.zip`: so these are
    forgotten until an import looks for a module there.
    """
    if not gc.get_freeze_count():
        gc.collect()  # What is garbage by now would otherwise stay for the life of the process.
        gc.freeze()
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimport.zipimporter):
            sys.path_importer_cache.pop(path, None)
