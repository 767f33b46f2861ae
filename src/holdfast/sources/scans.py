"""The scans that a user can name."""

from __future__ import annotations

from holdfast.sources.files.scan import FilesScan
from holdfast.sources.iceberg.scan import IcebergScan
from holdfast.sources.lance.scan import LanceScan
from holdfast.sources.parquet.scan import ParquetScan

Scan = FilesScan | IcebergScan | LanceScan | ParquetScan
