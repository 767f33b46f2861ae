"""An HTTP server on 127.0.0.1 that gives every S3 request one answer, or the next of some.

For answers that a real S3 server cannot be made to give: refusals with every status and spelling.
"""

from __future__ import annotations

from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from holdfast.storage.objects import ObjectStorage


class AnsweringS3(ThreadingHTTPServer):
    """Answers every request the same way, and remembers the conditions that were sent."""

    def __init__(self) -> None:
        """Listen on a free port of this machine."""
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status = 200
        self.body = ""
        self.tag = '"e"'
        # What the next answers hold instead of the body.
        self.next_bodies: deque[bytes] = deque()
        self.conditions: list[str | None] = []

    def storage(self, session_token: str = "t") -> ObjectStorage:  # noqa: S107 - no secret.
        """Return storage whose S3 is this server."""
        host, port = self.server_address[:2]
        return ObjectStorage(
            {
                "s3.endpoint": f"http://{host!s}:{port}",
                "s3.access-key-id": "k",
                "s3.secret-access-key": "s",
                "s3.session-token": session_token,
                "s3.region": "x",
            }
        )


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        server: AnsweringS3 = self.server  # type: ignore[assignment]
        server.conditions.append(self.headers.get("If-None-Match"))
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = server.next_bodies.popleft() if server.next_bodies else server.body.encode()
        self.send_response(server.status)
        self.send_header("ETag", server.tag)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Last-Modified", "Sun, 06 Nov 1994 08:49:37 GMT")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_HEAD = do_POST = do_DELETE = do_PUT  # noqa: N815 - http.server's names.

    def log_message(self, *_: object) -> None:
        """Say nothing."""
