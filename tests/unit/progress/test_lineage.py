"""Lineage: events of a run as the package's own transports send them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from openlineage.client import OpenLineageClient
from openlineage.client.transport.file import FileConfig, FileTransport
from openlineage.client.transport.http import HttpConfig, HttpTransport

import holdfast as hf
from holdfast.errors import MissingExtraError, TransformError
from holdfast.progress.events import Listener
from tests.fakes.cli_lake import CliLake, lake
from tests.unit.progress.test_events import start

__all__ = ["lake"]


@contextmanager
def http_collector() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Serve what a collector of OpenLineage serves; return its address and what it has got."""
    found: list[dict[str, Any]] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            """Keep an event."""
            found.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(201)
            self.end_headers()

        def log_message(self, *_given: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", found
    finally:
        server.shutdown()
        server.server_close()


def file_of(tmp_path: Path, **options: Any) -> tuple[Listener, Path]:  # noqa: ANN401 - of the call.
    """Return a listener that appends to a file, and the file."""
    file = tmp_path / "lineage.json"
    transport = FileTransport(FileConfig(log_file_path=str(file), append=True))
    client = OpenLineageClient(transport=transport)
    return hf.open_lineage(job="enrich", namespace="team", client=client, **options), file


def test_lineage_tells_each_start_with_its_table(lake: CliLake, tmp_path: Path) -> None:
    """The rows of the commit, its snapshot, and the URIs that the user named as input."""
    listener, file = file_of(tmp_path, inputs=["s3://lake/raw/texts"])
    report = start(lake, listener)
    sent = [json.loads(line) for line in file.read_text().splitlines()]
    kinds = [event["eventType"] for event in sent]
    assert (kinds[0], kinds[-1], set(kinds[1:-1])) == ("START", "COMPLETE", {"RUNNING"})
    assert len({event["run"]["runId"] for event in sent}) == 1
    assert {(e["job"]["namespace"], e["job"]["name"]) for e in sent} == {("team", "enrich")}
    assert sent[0]["inputs"][0] | {"facets": {}} == {
        "namespace": "s3://lake",
        "name": "raw/texts",
        "facets": {},
        "inputFacets": {},
    }
    (output,) = sent[-1]["outputs"]
    assert output["name"].endswith("/db/t")
    statistics = output["outputFacets"]["outputStatistics"]
    assert (statistics["rowCount"], statistics["fileCount"]) == (20, report.files)
    assert output["facets"]["version"]["datasetVersion"] == str(report.snapshot_id)
    assert output["facets"]["symlinks"]["identifiers"][0]["name"] == "lake.db.t"
    tags = {tag["key"]: tag["value"] for tag in sent[-1]["run"]["facets"]["tags"]["tags"]}
    assert (tags["holdfast_run_id"], tags["holdfast_done_rows"]) == ("r", "20")


def test_lineage_tells_the_error_of_a_start_and_the_next_one_apart(
    lake: CliLake, tmp_path: Path
) -> None:
    """Each start is a run of the job; a second process gives it the same id."""
    listener, file = file_of(tmp_path)

    def fails(_batch: object) -> object:
        raise ValueError("no")

    with pytest.raises(TransformError):
        start(lake, listener, transform=fails, retries=0)
    with pytest.warns(UserWarning, match="code has changed"):
        start(lake, listener)
    sent = [json.loads(line) for line in file.read_text().splitlines()]
    failed = next(event for event in sent if event["eventType"] == "FAIL")
    assert "TransformError" in failed["run"]["facets"]["errorMessage"]["message"]
    assert sent[-1]["eventType"] == "COMPLETE"
    assert len({event["run"]["runId"] for event in sent}) == 2


@pytest.mark.slow_unit
def test_lineage_goes_to_a_collector_and_a_dead_one_harms_nothing(lake: CliLake) -> None:
    with http_collector() as (url, found):
        client = OpenLineageClient(transport=HttpTransport(HttpConfig(url=url)))
        start(lake, hf.open_lineage(job="enrich", client=client))
        assert [event["eventType"] for event in found][-1] == "COMPLETE"
    dead = OpenLineageClient(transport=HttpTransport(HttpConfig(url=url, timeout=0.2)))
    assert start(lake, hf.open_lineage(job="x", client=dead)).outcome == "already_committed"


def test_a_package_that_is_missing_is_named() -> None:
    with (
        mock.patch.dict("sys.modules", {"openlineage.client": None}),
        pytest.raises(MissingExtraError) as caught,
    ):
        hf.open_lineage(job="enrich")
    assert caught.value.extra == "openlineage"
