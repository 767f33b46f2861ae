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
from pyiceberg.table.update import AddSnapshotUpdate
from pyiceberg.types import LongType, NestedField

from holdfast.errors import CatalogUnavailableError, CommitRefusedError
from holdfast.model.lasting import lasts
from holdfast.sinks.base import Change, Outcome, RunMark
from holdfast.sinks.iceberg.catalog import TimedRestCatalog, open_catalog, single_post
from holdfast.sinks.iceberg.file_io import FILE_IO_PATH
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
        # What its configuration says besides; and where all requests are sent instead.
        self.facts: dict[str, Any] = {}
        self.moved: tuple[int, str] | None = None

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
        if self.server.moved and "elsewhere" not in self.path:
            self.reply(self.server.moved[0], b"")
            return
        if self.path.startswith("/v1/config"):
            facts = {"defaults": {}, "overrides": {}, "endpoints": _ENDPOINTS, **self.server.facts}
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
        moved = self.server.moved
        self.reply(*((moved[0], b"") if moved else self.server.posted))

    def reply(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("ETag", self.server.tag)
        self.send_header("Content-Length", str(len(body)))
        if self.server.moved:
            self.send_header("Location", self.server.moved[1])
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
    updates = (AddSnapshotUpdate(snapshot=SNAPSHOT),)
    server.posted = (200, _answer(server))
    post(table, (), updates)
    other = "00000000-0000-0000-0000-000000000000"
    for status, body, error in [
        (200, b"<html>welcome</html>", msgspec.DecodeError),
        (200, b"{}", msgspec.ValidationError),
        (200, _answer(server, **{"table-uuid": other}), msgspec.ValidationError),
        (200, json.dumps(server.table()).encode(), msgspec.ValidationError),
        (200, _answer(server, snapshots=[{"snapshot-id": 8}]), msgspec.ValidationError),
        (409, b'{"error": {"message": "m", "type": "t", "code": 409}}', CommitFailedException),
    ]:
        server.posted = (status, body)
        with pytest.raises(error):
            post(table, (), updates)
    server.posted = (200, _answer(server))
    with pytest.raises(msgspec.ValidationError, match="lacks the snapshot"):
        post(table, (), ())


SNAPSHOT = Snapshot(snapshot_id=7, manifest_list="s3://bucket/t/metadata/snap-7.avro")


def _answer(server: TaggingCatalog, **other: object) -> bytes:
    """Return an answer to a commit of `SNAPSHOT`, or one whose metadata differs."""
    answer = server.table()
    answer["metadata"] |= {"snapshots": [{"snapshot-id": 6}, {"snapshot-id": 7}], **other}
    return json.dumps(answer).encode()


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_no_request_to_a_catalog_follows_a_redirect(server: TaggingCatalog, code: int) -> None:
    """A POST that is redirected becomes a GET: its answer shows the table, and nothing landed."""
    catalog = server.catalog()
    table = catalog.load_table("db.t")
    here = f"http://127.0.0.1:{server.server_address[1]}"
    server.moved = (code, f"{here}/elsewhere/v1/namespaces/db/tables/t?token=hidden")
    asked = f"{here}/v1/namespaces/db/tables/t"
    for request in (
        lambda: single_post(catalog)(table, (), (AddSnapshotUpdate(snapshot=SNAPSHOT),)),
        lambda: catalog.load_table("db.t"),
    ):
        with pytest.raises(Exception, match="answers with a redirect") as raised:
            request()
        text = str(raised.value)
        assert f"{asked} answers with a redirect ({code}) to {here}/elsewhere/v1/" in text
        assert "hidden" not in text
        assert "`uri`" in text
        assert lasts(raised.value)
    with pytest.raises(CatalogUnavailableError, match="Worth a retry: no"):
        server.catalog()


def test_a_redirected_commit_is_an_error_that_names_both_addresses(server: TaggingCatalog) -> None:
    """A proxy may redirect nothing else. The same post, sent again, would meet the same answer."""
    sink = IcebergSink(server.catalog(), "db.t", "main")
    table = sink.load().handle
    server.moved = (301, "http://127.0.0.1:1/v1/namespaces/db/tables/t")
    with pytest.raises(CommitRefusedError, match=r"(?s)redirect \(301\) to http://127\.0\.0\.1:1/"):
        sink._send(table, (AddSnapshotUpdate(snapshot=SNAPSHOT),))  # noqa: SLF001


# What a server may not set, by the reason; and what it may.
NOT_FROM_SERVERS = {
    "auth": {"type": "custom", "impl": "no.such.Class"},
    "ssl": {"cabundle": "/no/such/file"},
    "py-io-impl": "no.such.Io",
    "py-catalog-impl": "no.such.Catalog",
    "rest.sigv4-enabled": "true",
    "snapshot-loading-mode": "refs",
    "holdfast.credential-provider": "no.such.provider",
    "oauth2-server-uri": "http://127.0.0.1:1/tokens",
    "header.Authorization": "Bearer theirs",
    "header.Cookie": "session=theirs",
    "header.X-Api-Key": "theirs",
}
FROM_SERVERS = {"s3.endpoint": "http://127.0.0.1:2", "prefix": "main", "header.X-Trace": "7"}


@pytest.mark.parametrize("part", ["defaults", "overrides"])
def test_a_server_sets_neither_code_nor_logins_nor_how_it_is_read(
    server: TaggingCatalog, part: str
) -> None:
    """Its configuration comes before anything acts on it: no class is made, no file is opened."""
    server.facts = {part: {**NOT_FROM_SERVERS, **FROM_SERVERS}}
    catalog = server.catalog()
    assert FROM_SERVERS.items() <= catalog.properties.items()
    assert catalog.properties.keys() & NOT_FROM_SERVERS.keys() == {"py-io-impl"}
    assert catalog.properties["py-io-impl"] == FILE_IO_PATH
    assert "theirs" not in str(catalog._session.headers)  # noqa: SLF001 - what it would send.
    assert catalog._session.headers["X-Trace"] == "7"  # noqa: SLF001 - as above.


def test_a_users_own_login_is_not_replaced_by_the_servers(server: TaggingCatalog) -> None:
    """The user has named them; the server's are left out."""
    server.facts = {"overrides": dict(NOT_FROM_SERVERS)}
    mine = {"header.X-Api-Key": "mine", "oauth2-server-uri": "http://127.0.0.1:3/tokens"}
    catalog = open_catalog("lake", {"uri": server.catalog().uri, **mine})
    assert mine.items() <= catalog.properties.items()


def test_what_a_server_sends_beside_a_table_names_no_code(server: TaggingCatalog) -> None:
    """Workers get these settings, too."""
    server.config = {"s3.region": "r", "py-io-impl": "x", "holdfast.credential-provider": "x"}
    table = server.catalog().load_table("db.t")
    assert table.io.properties["s3.region"] == "r"
    assert table.io.properties["py-io-impl"] == FILE_IO_PATH
    assert "holdfast.credential-provider" not in table.io.properties


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
