"""A Glue catalog that refuses an update of another version, in front of moto, which takes any.

Glue refuses `UpdateTable` whose `VersionId` is not the table's newest, with
ConcurrentModificationException: so its documentation says, and PyIceberg relies on it. moto ignores
the field, and would let one of two writers undo the other's commit.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx

_ANSWERS_WITHIN_S = 60.0
# Of the connection itself, not of the message.
_HOP = {"connection", "content-length", "date", "server", "transfer-encoding", "content-encoding"}


class GlueServer(ThreadingHTTPServer):
    """Passes every request on, except updates that come too late."""

    def __init__(self, upstream: str) -> None:
        """Listen on a free port of this machine.

        Args:
            upstream: Where moto is.
        """
        super().__init__(("127.0.0.1", 0), _Handler)
        self.upstream = upstream
        self.client = httpx.Client(timeout=_ANSWERS_WITHIN_S)
        # One update at a time: compare and set.
        self.update = threading.Lock()
        self.updates, self.refused = 0, 0

    @property
    def uri(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def newest(self, headers: dict[str, str], asked: dict[str, Any]) -> str:
        """Return the newest version of the table that an update is for."""
        wanted = {"DatabaseName": asked["DatabaseName"], "Name": asked["TableInput"]["Name"]}
        answer = self.client.post(
            f"{self.upstream}/",
            headers={**headers, "X-Amz-Target": "AWSGlue.GetTable"},
            content=json.dumps(wanted),
        )
        version: str = answer.json()["Table"]["VersionId"]
        return version


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: GlueServer

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {name: of for name, of in self.headers.items() if name.lower() not in _HOP}
        if self.headers.get("X-Amz-Target") != "AWSGlue.UpdateTable":
            self._pass_on(headers, body)
            return
        asked = json.loads(body)
        with self.server.update:
            self.server.updates += 1
            if asked["VersionId"] == self.server.newest(headers, asked):
                self._pass_on(headers, body)
                return
            self.server.refused += 1
        error = {"__type": "ConcurrentModificationException", "Message": "another version"}
        self._answer(
            400, {"Content-Type": "application/x-amz-json-1.1"}, json.dumps(error).encode()
        )

    def _pass_on(self, headers: dict[str, str], body: bytes) -> None:
        found = self.server.client.post(
            f"{self.server.upstream}{self.path}", headers=headers, content=body
        )
        self._answer(found.status_code, dict(found.headers), found.content)

    def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, of in headers.items():
            if name.lower() not in _HOP:
                self.send_header(name, of)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def glue_server(upstream: str) -> Iterator[GlueServer]:
    """Run the server while the context lasts."""
    with GlueServer(upstream) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()
