"""An HTTP proxy on 127.0.0.1 that loses, forges or delays the answers to a catalog's commits.

Faults are made on the wire, between the real client and the real server: what the catalog did
is real, only what the client is told is not.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import requests

# POST to a table, in Iceberg's REST protocol: that is a commit.
_COMMIT = re.compile(r"/v1/.*namespaces/[^/]+/tables/[^/]+$")
_HOP_BY_HOP = {"connection", "transfer-encoding", "content-encoding", "content-length"}


def nothing() -> None:
    """Do nothing."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What happens to one commit.

    `before` runs first; then the commit is forwarded, unless `forward` is off; then the client
    gets the server's answer, a forged `status`, or a closed connection if `lose_answer` is on.
    """

    before: Callable[[], None] = nothing
    forward: bool = True
    lose_answer: bool = False
    status: int | None = None


@dataclass
class FaultProxy:
    """A running proxy: `uri` is what a client is given; `faults` are used up one per commit."""

    uri: str = ""
    upstream: str = ""
    faults: list[Fault] = field(default_factory=list)
    commits: list[int] = field(default_factory=list)

    def next_fault(self) -> Fault:
        """Return what happens to the next commit."""
        return self.faults.pop(0) if self.faults else Fault()


@contextlib.contextmanager
def fault_proxy(upstream: str) -> Iterator[FaultProxy]:
    """Run a proxy in front of one catalog.

    Args:
        upstream: The catalog's URI.
    """
    proxy = FaultProxy(upstream=upstream)
    address = urlsplit(upstream)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its own name.
            """Stay silent."""

        def handle_any(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(length)
            is_commit = self.command == "POST" and _COMMIT.search(self.path.partition("?")[0])
            fault = proxy.next_fault() if is_commit else Fault()
            fault.before()
            answer = requests.Response()
            if fault.forward:
                answer = requests.request(
                    self.command,
                    f"{address.scheme}://{address.netloc}{self.path}",
                    data=body,
                    # With the client's own Host header: some catalogs answer with their address.
                    headers=dict(self.headers.items()),
                    timeout=60,
                )
            if is_commit:
                proxy.commits.append(answer.status_code if fault.forward else 0)
            if fault.lose_answer:
                self.close_connection = True
                return
            self.reply(fault, answer)

        def reply(self, fault: Fault, answer: requests.Response) -> None:
            content = answer.content if fault.status is None else b'{"error":{"message":"forged"}}'
            self.send_response(fault.status or answer.status_code)
            for name, value in answer.headers.items():
                if name.lower() not in _HOP_BY_HOP and fault.status is None:
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_GET = do_POST = do_HEAD = do_DELETE = handle_any  # noqa: N815 - their own names.

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        path = address.path.rstrip("/")
        proxy.uri = f"http://127.0.0.1:{server.server_address[1]}{path}"
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield proxy
        finally:
            server.shutdown()
