"""A server in front of an emulator: it passes requests on, and changes some.

For what an emulator lacks and the service's documentation says.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TypeVar

import httpx

_ANSWERS_WITHIN_S = 60.0
# Of the connection itself, not of the message.
_HOP = {"connection", "content-encoding", "date", "server", "transfer-encoding"}
_LENGTH = "content-length"


class Front(ThreadingHTTPServer):
    """Passes every request on."""

    def __init__(self, upstream: str) -> None:
        """Listen on a free port of this machine.

        Args:
            upstream: Where the emulator is.
        """
        super().__init__(("127.0.0.1", 0), _Handler)
        self.upstream = upstream
        self.client = httpx.Client(timeout=_ANSWERS_WITHIN_S, headers={"Accept-Encoding": ""})

    @property
    def uri(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def answer(self, request: httpx.Request) -> httpx.Response:
        """Return the answer to a request for the emulator."""
        return self.client.send(request)

    def request(
        self, method: str, path: str, headers: dict[str, str], body: bytes = b""
    ) -> httpx.Request:
        """Return a request for the emulator."""
        return httpx.Request(method, f"{self.upstream}{path}", headers=headers, content=body)


_Any = TypeVar("_Any", bound=Front)


@contextmanager
def running(server: _Any) -> Iterator[_Any]:
    """Serve while the context lasts."""
    with server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Front

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {
            name: of.strip()  # A login without a token ends in a blank, which httpx refuses.
            for name, of in self.headers.items()
            if name.lower() not in {*_HOP, _LENGTH, "host"}
        }
        found = self.server.answer(self.server.request(self.command, self.path, headers, body))
        self.send_response(found.status_code)
        for name, of in found.headers.items():
            if name not in {*_HOP, _LENGTH}:
                self.send_header(name, of)
        is_head = self.command == "HEAD"
        length = found.headers.get(_LENGTH, "0") if is_head else str(len(found.content))
        self.send_header("Content-Length", length)
        self.end_headers()
        if not is_head:
            self.wfile.write(found.content)

    do_DELETE = do_HEAD = do_POST = do_PUT = do_GET  # noqa: N815 - http.server's names.

    def log_message(self, *_: object) -> None:
        """Say nothing."""
