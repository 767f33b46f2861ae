"""An S3 server on 127.0.0.1 whose keys change while clients use it.

For answers that a real server cannot be made to give: each way in which servers refuse an old key.
"""

from __future__ import annotations

import re
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SECRET = "the-secret-of-the-key"  # noqa: S105 - of no real server.
_KEY = re.compile(r"Credential=([^/]+)/")

_EMPTY_LIST = (
    b"<ListBucketResult><Name>b</Name><Prefix></Prefix><KeyCount>0</KeyCount>"
    b"<MaxKeys>1000</MaxKeys><IsTruncated>false</IsTruncated></ListBucketResult>"
)


class KeyedS3(ThreadingHTTPServer):
    """Serves requests that are signed with the current key; answers others with S3's own errors."""

    def __init__(self) -> None:
        """Listen on a free port of this machine."""
        super().__init__(("127.0.0.1", 0), _Handler)
        self.key = "old"
        self.status, self.code = 403, "InvalidAccessKeyId"
        self.objects: dict[str, bytes] = {}
        self.refused = 0

    def options(self, **more: str) -> dict[str, str]:
        """Return storage options for this server, without keys."""
        endpoint = f"http://127.0.0.1:{self.server_address[1]}"
        return {"s3.endpoint": endpoint, "s3.region": "x", **more}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: KeyedS3

    def do_PUT(self) -> None:
        path = self.path.partition("?")[0]
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        key = _KEY.search(self.headers.get("Authorization") or "")
        if key is None or key[1] != self.server.key:
            self.server.refused += 1
            # A store repeats what it was sent; the secret must not get into a message of ours.
            body = f"<Error><Code>{self.server.code}</Code><Key>{SECRET}</Key></Error>"
            self.reply(self.server.status, body.encode())
        elif "list-type=2" in self.path:
            self.reply(200, _EMPTY_LIST)
        elif self.command == "PUT":
            self.server.objects[path] = data
            self.reply(200, b"")
        elif path in self.server.objects:
            self.reply(200, self.server.objects[path])
        else:
            self.reply(404, b"<Error><Code>NoSuchKey</Code></Error>")

    do_GET = do_HEAD = do_PUT  # noqa: N815 - http.server's names.

    def reply(self, status: int, body: bytes) -> None:
        """Answer."""
        self.send_response(status)
        self.send_header("ETag", '"e"')
        self.send_header("Last-Modified", "Wed, 21 Oct 2026 07:28:00 GMT")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""
