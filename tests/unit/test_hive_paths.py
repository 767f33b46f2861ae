"""Columns in paths, as Hive and Spark write them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from holdfast.errors import SettingsError
from holdfast.sources.find import path_schema, path_values, typed


def test_a_path_gives_its_columns() -> None:
    """Percent-encoded, NULL, and an equals sign in a value or a file name."""
    path = "s3://b/day=2026-11-15/a%3Db=x%2Fy%25=z/n=__HIVE_DEFAULT_PARTITION__/=x/f=1.parquet"
    assert path_values(path) == {"day": "2026-11-15", "a=b": "x/y%=z", "n": None}


@pytest.mark.parametrize(
    ("texts", "kind"),
    [
        (["1", "-20", "0", None], pa.int64()),
        (["007", "1"], pa.string()),
        (["-0"], pa.string()),
        (["1", "x"], pa.string()),
        (["1" * 19], pa.string()),
        (["1.5"], pa.string()),
        (["٣"], pa.string()),
        ([""], pa.string()),
        ([None], pa.string()),
    ],
)
def test_only_whole_numbers_are_numbers(texts: list[str | None], kind: pa.DataType) -> None:
    """What would not come back as it was written stays a text."""
    assert path_schema([{"n": text} for text in texts]) == pa.schema([("n", kind)])


def test_a_text_is_cast_to_the_type_that_files_have() -> None:
    """Or the file is named."""
    assert typed("s3://b/x", "day", "2026-11-15", pa.date32()).as_py().day == 15
    assert typed("s3://b/x", "day", None, pa.date32()).as_py() is None
    with pytest.raises(SettingsError, match="s3://b/x: column 'day' is int32"):
        typed("s3://b/x", "day", "monday", pa.int32())
