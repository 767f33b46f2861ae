"""Holdfast: resumable, exactly-once batch jobs on Spark.

The public names, nothing else. Nothing is imported from pyspark, pyiceberg or lance here.
"""

from holdfast._version import __version__
from holdfast.engine.sweep import Swept
from holdfast.errors import HoldfastError
from holdfast.model.limits import Limits
from holdfast.model.report import Report
from holdfast.model.status import RunStatus
from holdfast.run import Run, runs
from holdfast.sinks.targets import Create, IcebergTable, LanceTable
from holdfast.sources.files.scan import FilesScan, scan_files
from holdfast.sources.iceberg.scan import IcebergScan, scan_iceberg
from holdfast.sources.lance.scan import LanceScan, scan_lance
from holdfast.sources.materialized.scan import Materialized, materialize
from holdfast.sources.parquet.scan import ParquetScan, scan_parquet
from holdfast.worker.per_row import PerRow, per_row
from holdfast.worker.retry import Retry
from holdfast.worker.transforms import PerWorker, per_worker

__all__ = [
    "Create",
    "FilesScan",
    "HoldfastError",
    "IcebergScan",
    "IcebergTable",
    "LanceScan",
    "LanceTable",
    "Limits",
    "Materialized",
    "ParquetScan",
    "PerRow",
    "PerWorker",
    "Report",
    "Retry",
    "Run",
    "RunStatus",
    "Swept",
    "__version__",
    "materialize",
    "per_row",
    "per_worker",
    "runs",
    "scan_files",
    "scan_iceberg",
    "scan_lance",
    "scan_parquet",
]
