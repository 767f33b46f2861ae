"""Holdfast: resumable, exactly-once batch jobs on Spark.

The public names, nothing else. Nothing is imported from pyspark, pyiceberg or lance here.
"""

from holdfast._version import __version__
from holdfast.engine.sweep import Swept
from holdfast.errors import HoldfastError
from holdfast.model.report import Report
from holdfast.model.status import RunStatus
from holdfast.run import Run, runs
from holdfast.sinks.targets import Create, IcebergTable
from holdfast.worker.transforms import per_worker

__all__ = [
    "Create",
    "HoldfastError",
    "IcebergTable",
    "Report",
    "Run",
    "RunStatus",
    "Swept",
    "__version__",
    "per_worker",
    "runs",
]
