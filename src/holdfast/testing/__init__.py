"""Kits for those who extend Holdfast. Nothing here is used by a run.

`SinkContract` is what the engine needs of a table format, as tests: whoever writes a sink gives
it a `TableUnderTest` and lets pytest collect it.
"""

from holdfast.testing.sink_contract import SinkContract
from holdfast.testing.table_under_test import TableUnderTest

__all__ = ["SinkContract", "TableUnderTest"]
