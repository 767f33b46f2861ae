"""Metadata of a table with a long history: parsed once, not copied, and not searched in a loop."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata, TableMetadataV2, new_table_metadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.types import LongType, NestedField

from holdfast.sinks.base import Change, Outcome, RunMark
from holdfast.sinks.iceberg.catalog import TimedRestCatalog, open_catalog, single_post
from holdfast.sinks.iceberg.sink import IcebergSink
from tests.fakes.http_servers import running
from tests.fakes.iceberg_tables import edit_metadata, new_table

SCHEMA = Schema(NestedField(1, "id", LongType()))
_ENDPOINTS = [
    f"{method} /v1/{{prefix}}/namespaces/{{namespace}}/tables/{{table}}"
    for method in ("GET", "POST")
]


class TaggingCatalog(ThreadingHTTPServer):
    """A REST catalog whose answers have a tag, so that a client may ask for changes only."""

    def __init__(self) -> None:
        """Listen on a free port of this machine."""
        super().__init__(("127.0.0.1", 0), _Handler)
        self.metadata = new_table_metadata(
            SCHEMA, UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, "s3://bucket/t"
        )
        self.tag = "one"
        self.config: dict[str, str] = {}
        # What loads were conditional on, and the answer to the next commit.
        self.conditions: list[str | None] = []
        self.posted: tuple[int, bytes] = (200, b"")

    def table(self) -> dict[str, Any]:
        """Return its answer to a load, and to a commit that has landed."""
        return {
            "metadata-location": f"s3://bucket/t/metadata/{self.tag}.json",
            "metadata": json.loads(self.metadata.model_dump_json()),
            "config": self.config,
        }

    def catalog(self) -> TimedRestCatalog:
        """Return a client of it."""
        found = open_catalog("lake", {"uri": f"http://127.0.0.1:{self.server_address[1]}"})
        assert isinstance(found, TimedRestCatalog)
        return found


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: TaggingCatalog

    def do_GET(self) -> None:
        if self.path.startswith("/v1/config"):
            facts = {"defaults": {}, "overrides": {}, "endpoints": _ENDPOINTS}
            self.reply(200, json.dumps(facts).encode())
            return
        condition = self.headers.get("If-None-Match")
        self.server.conditions.append(condition)
        if condition == self.server.tag:
            self.reply(304, b"")
        else:
            self.reply(200, json.dumps(self.server.table()).encode())

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.reply(*self.server.posted)

    def reply(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("ETag", self.server.tag)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def server() -> Iterator[TaggingCatalog]:
    """Run a REST catalog for one test."""
    with running(TaggingCatalog()) as found:
        yield found


def test_a_rest_catalogs_table_is_parsed_again_only_if_it_has_changed(
    server: TaggingCatalog,
) -> None:
    """A change is seen at the next load."""
    catalog = server.catalog()
    first = catalog.load_table("db.t").metadata
    assert catalog.load_table("db.t").metadata is first
    server.tag = "two"
    server.metadata = server.metadata.model_copy(update={"properties": {"is": "new"}})
    assert catalog.load_table("db.t").metadata.properties == {"is": "new"}
    assert catalog.load_table("db.u").name() == ("db", "u")
    assert server.conditions == [None, "one", "one", None]


def test_keys_that_a_catalog_vends_are_asked_for_at_each_load(server: TaggingCatalog) -> None:
    """They expire, whether or not the table changes."""
    server.config = {"s3.access-key-id": "k", "s3.secret-access-key": "s"}
    catalog = server.catalog()
    catalog.load_table("db.t")
    catalog.load_table("db.t")
    assert server.conditions == [None, None]


def test_only_the_catalogs_own_answer_means_that_a_commit_landed(server: TaggingCatalog) -> None:
    """A page of a proxy, or an answer about another table, proves nothing."""
    catalog = server.catalog()
    table = catalog.load_table("db.t")
    post = single_post(catalog)
    server.posted = (200, json.dumps(server.table()).encode())
    post(table, (), ())
    for status, body, error in [
        (200, b"<html>welcome</html>", msgspec.DecodeError),
        (200, b"{}", msgspec.ValidationError),
        (200, _about_another_table(server), msgspec.ValidationError),
        (409, b'{"error": {"message": "m", "type": "t", "code": 409}}', CommitFailedException),
    ]:
        server.posted = (status, body)
        with pytest.raises(error):
            post(table, (), ())


def _about_another_table(server: TaggingCatalog) -> bytes:
    answer = server.table()
    answer["metadata"]["table-uuid"] = "00000000-0000-0000-0000-000000000000"
    return json.dumps(answer).encode()


def _table(folder: Path, snapshots: int) -> IcebergSink:
    """Return a table whose metadata lists many snapshots."""
    sink, _ = new_table(folder, SCHEMA)
    sink.post_empty(sink.load())
    commit(sink, "old", 1)

    def add(metadata: dict[str, Any]) -> None:
        head = metadata["snapshots"][-1]
        for number in range(snapshots):
            metadata["last-sequence-number"] += 1
            more = {
                "snapshot-id": 1_000 + number,
                "parent-snapshot-id": metadata["current-snapshot-id"],
                "sequence-number": metadata["last-sequence-number"],
                "summary": {"operation": "append"},
            }
            metadata["snapshots"].append({**head, **more})
            metadata["current-snapshot-id"] = 1_000 + number
            metadata["refs"]["main"]["snapshot-id"] = 1_000 + number

    table: Table = sink.load().handle
    edit_metadata(table, add)
    return sink


def commit(sink: IcebergSink, run_id: str, number: int) -> None:
    """Land a run without rows."""
    view = sink.load()
    mark = RunMark(
        run_nonce=f"nonce of {run_id}",
        intent_number=number,
        snapshot_id=sink.new_snapshot_id(view),
        sequence_number=view.next_sequence_number,
    )
    assert sink.post(view, run_id, mark, Change()) is Outcome.LANDED


def test_an_sql_catalogs_table_is_parsed_once_for_looks_and_post(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Metadata files do not change; another writer's commit has another file."""
    sink = _table(tmp_path, 3)
    parsed: list[str] = []
    parse = FromInputFile.table_metadata

    def counted(file: Any, *args: Any, **options: Any) -> TableMetadata:  # noqa: ANN401
        parsed.append(file.location)
        return parse(file, *args, **options)

    monkeypatch.setattr(FromInputFile, "table_metadata", staticmethod(counted))
    sink.load()
    commit(sink, "new", 1)
    assert len(parsed) == 1
    commit(sink, "newer", 1)
    there = [snapshot.snapshot_id for snapshot in sink.load().handle.metadata.snapshots]
    assert len(parsed) == len(set(parsed)) == 3
    assert there[2:5] == [1_000, 1_001, 1_002]
    assert len(there) == 7


def test_a_commit_copies_no_old_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyIceberg copies all metadata, item by item, for each commit."""
    sink = _table(tmp_path, 3)
    copied: list[int] = []

    def counted(self: Snapshot, _memo: object) -> Snapshot:
        copied.append(self.snapshot_id)
        return self

    monkeypatch.setattr(Snapshot, "__deepcopy__", counted)
    commit(sink, "new", 1)
    assert copied == []
    assert len(sink.load().handle.metadata.snapshots) == 6


def test_a_mark_far_back_is_found_without_a_search_for_each_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyIceberg searches its list from the beginning for each id."""
    sink = _table(tmp_path, 200)
    view = sink.load()
    asked: list[int] = []
    search = TableMetadataV2.snapshot_by_id

    def counted(self: TableMetadataV2, snapshot_id: int) -> Snapshot | None:
        asked.append(snapshot_id)
        return search(self, snapshot_id)

    monkeypatch.setattr(TableMetadataV2, "snapshot_by_id", counted)
    found = sink.find_mark(view, "old", "nonce of old", {})
    assert found is not None
    assert found.present is True
    assert len(asked) <= 2
