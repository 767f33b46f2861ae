"""Spark's daemon of Python workers, made cheap: its workers are forked often.

A job that fails costs Spark its workers, and a new one imports PyIceberg, pandas and pyarrow, a
second or two of processor time. Forked from here it has them already. Lance is not imported: it
must not be forked.

Before each task PySpark calls `importlib.invalidate_caches`, and before Python 3.12 each zip file
on the path is then read again: pyspark.zip takes three quarters of a small task's time. No zip
file changes while tests run.
"""

from __future__ import annotations

import importlib
import zipimport

MODULES = ("holdfast.worker.task", "holdfast.sinks.iceberg.writer", "pandas")


def keep_caches(_: zipimport.zipimporter) -> None:
    """Do nothing."""


if __name__ == "__main__":
    setattr(zipimport.zipimporter, "invalidate_caches", keep_caches)  # noqa: B010 - for mypy.
    for module in MODULES:
        importlib.import_module(module)
    importlib.import_module("pyspark.daemon").manager()
