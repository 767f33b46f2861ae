"""Holdfast: resumable, exactly-once batch jobs on Spark.

The public names, nothing else. Nothing is imported from pyspark, pyiceberg or lance here.
"""

from holdfast._version import __version__
from holdfast.errors import HoldfastError
from holdfast.model.report import Report
from holdfast.run import Run
from holdfast.sinks.targets import Create, IcebergTable
from holdfast.worker.transforms import per_worker

__all__ = [
    "Create",
    "HoldfastError",
    "IcebergTable",
    "Report",
    "Run",
    "__version__",
    "per_worker",
]
