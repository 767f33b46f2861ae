"""The sink contract on Lance datasets: on local files, and on two kinds of S3 servers."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from tests.contract.lance_tables import LanceDatasetUnderTest
from tests.contract.sink_contract import SinkContract
from tests.stack_access import Stack, missing


class LanceContract(SinkContract):
    """The contract on datasets in the folder that a subclass names."""

    folder: str
    options: dict[str, str]
    _patch: pytest.MonkeyPatch

    @pytest.fixture(autouse=True)
    def patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Keep the patch that undoes lost answers."""
        self._patch = monkeypatch

    def table(self, *, empty: bool = False) -> LanceDatasetUnderTest:
        """Return a new dataset."""
        uri = f"{self.folder}/{uuid.uuid4().hex}.lance"
        return LanceDatasetUnderTest(uri, self.options, self._patch, empty=empty)


class TestLanceOnLocalFiles(LanceContract):
    """Every case on a dataset in a local folder."""

    @pytest.fixture(autouse=True)
    def place(self, tmp_path: Path) -> None:
        """Use a folder of the test's own."""
        self.folder, self.options = f"file://{tmp_path}", {}


@pytest.mark.stack
class TestLanceOnVersitygw(LanceContract):
    """Every case on the stack's S3 server."""

    @pytest.fixture(autouse=True)
    def place(self, stack: Stack) -> None:
        """Use a folder of the test's own."""
        self.folder = f"s3://{stack.s3.bucket}/lance-{uuid.uuid4().hex[:8]}"
        self.options = stack.s3.store_options()


@pytest.mark.stack
class TestLanceOnMinio(LanceContract):
    """Every case on MinIO."""

    @pytest.fixture(autouse=True)
    def place(self, stack: Stack) -> None:
        """Use a folder of the test's own."""
        if stack.minio is None:
            missing("MinIO is not part of the running stack: make stack WITH=minio")
        self.folder = f"s3://{stack.minio.bucket}/lance-{uuid.uuid4().hex[:8]}"
        self.options = stack.minio.store_options()
