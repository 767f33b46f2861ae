"""The sink contract on Lance datasets: on local files, and on two kinds of S3 servers."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from holdfast.testing import SinkContract
from tests.contract.lance_tables import LanceDatasetUnderTest


class TestLanceOnLocalFiles(SinkContract):
    """Every case on a dataset in a local folder."""

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder, self._patch = tmp_path, monkeypatch

    def table(self, *, empty: bool = False) -> LanceDatasetUnderTest:
        """Return a new dataset."""
        uri = f"file://{self._folder}/{uuid.uuid4().hex}.lance"
        return LanceDatasetUnderTest(uri, {}, self._patch, empty=empty)
