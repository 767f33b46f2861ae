"""Holdfast: resumable, exactly-once batch jobs on Spark.

Only the public names. Each is imported on first use, so a command line that only prints its help,
or a worker that needs one part, does not load all of pyarrow and pandas. Nothing is imported from
pyspark, pyiceberg or lance here.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from holdfast._version import __version__
from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.engine.cleanup import Aborted, Swept
    from holdfast.model.history import RunStatus
    from holdfast.model.limits import Limits
    from holdfast.model.records import MergeCounts
    from holdfast.model.report import Report
    from holdfast.opening import runs
    from holdfast.progress.events import Event
    from holdfast.progress.lineage import open_lineage
    from holdfast.progress.telemetry import open_telemetry
    from holdfast.rehearsal import Trial
    from holdfast.run import Run
    from holdfast.sinks.targets import Create, IcebergTable, LanceTable
    from holdfast.sources.files import FilesScan, scan_files
    from holdfast.sources.materialized import Materialized, materialize
    from holdfast.sources.parquet import ParquetScan, scan_parquet
    from holdfast.sources.scans import IcebergScan, LanceScan, scan_iceberg, scan_lance
    from holdfast.worker.transforms import PerRow, PerWorker, Retry, per_row, per_worker

_HOMES = {
    "holdfast.engine.cleanup": ("Aborted", "Swept"),
    "holdfast.model.history": ("RunStatus",),
    "holdfast.model.limits": ("Limits",),
    "holdfast.model.records": ("MergeCounts",),
    "holdfast.model.report": ("Report",),
    "holdfast.opening": ("runs",),
    "holdfast.progress.events": ("Event",),
    "holdfast.progress.lineage": ("open_lineage",),
    "holdfast.progress.telemetry": ("open_telemetry",),
    "holdfast.rehearsal": ("Trial",),
    "holdfast.run": ("Run",),
    "holdfast.sinks.targets": ("Create", "IcebergTable", "LanceTable"),
    "holdfast.sources.files": ("FilesScan", "scan_files"),
    "holdfast.sources.materialized": ("Materialized", "materialize"),
    "holdfast.sources.parquet": ("ParquetScan", "scan_parquet"),
    "holdfast.sources.scans": ("IcebergScan", "LanceScan", "scan_iceberg", "scan_lance"),
    "holdfast.worker.transforms": ("PerRow", "PerWorker", "Retry", "per_row", "per_worker"),
}

__all__ = [
    "Aborted",
    "Create",
    "Event",
    "FilesScan",
    "HoldfastError",
    "IcebergScan",
    "IcebergTable",
    "LanceScan",
    "LanceTable",
    "Limits",
    "Materialized",
    "MergeCounts",
    "ParquetScan",
    "PerRow",
    "PerWorker",
    "Report",
    "Retry",
    "Run",
    "RunStatus",
    "Swept",
    "Trial",
    "__version__",
    "materialize",
    "open_lineage",
    "open_telemetry",
    "per_row",
    "per_worker",
    "runs",
    "scan_files",
    "scan_iceberg",
    "scan_lance",
    "scan_parquet",
]


if not TYPE_CHECKING:  # Otherwise type checkers would accept any name.

    def __getattr__(name: str) -> object:
        """Import a public name on first use.

        Raises:
            AttributeError: There is no such name.
        """
        for home, names in _HOMES.items():
            if name in names:
                found = getattr(import_module(home), name)
                globals()[name] = found
                return found
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)
