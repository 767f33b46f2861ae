"""A proxy on 127.0.0.1 that counts HTTP requests and does not change a byte.

Bytes go through as they come, so signatures hold (the Host header is part of them), and
interim answers, HEAD and chunked bodies need no special care. Only requests are parsed, to know
where the next one on a kept connection begins; for an answer, only the status is read, and its
bytes are counted.
"""

from __future__ import annotations

import contextlib
import re
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO
from urllib.parse import urlsplit

_PIECE_BYTES = 65_536
_POLL_S = 0.05
_QUIET_S = 0.3
_QUIET_MAX_S = 30.0
_FINAL_STATUS_MIN = 200
_STATUS_LINE = re.compile(rb"HTTP/1\.[01] (\d{3})[ \r]")


class BrokenRequestError(Exception):
    """A client sent something that cannot be parsed; a count would be wrong from here on."""


@dataclass(slots=True, kw_only=True)
class Exchange:
    """One request as it came, and the status of its answer: 0 while there is none."""

    method: str
    target: str
    status: int = 0
    # Of the answer, including its head.
    answer_bytes: int = field(default=0, compare=False)


@contextlib.contextmanager
def count_requests(upstream: str) -> Iterator[CountingProxy]:
    """Listen on a free port of 127.0.0.1, in front of one HTTP server.

    On leaving, no more connections are taken; those that are open end with their clients.

    Args:
        upstream: The server's URL, plain http.
    """
    with _Server(("127.0.0.1", 0), _Connection) as server:
        server.proxy = CountingProxy(upstream, server.server_address[1])
        threading.Thread(target=server.serve_forever, args=(_POLL_S,), daemon=True).start()
        try:
            yield server.proxy
        finally:
            server.shutdown()


class CountingProxy:
    """What came through, and the addresses on both sides."""

    def __init__(self, upstream: str, port: int) -> None:
        """Start to count what arrives at a port for the server behind a URL."""
        self._upstream = urlsplit(upstream)
        self._lock = threading.Lock()
        self._exchanges: list[Exchange] = []
        self._broken = ""
        self._port = port

    @property
    def url(self) -> str:
        """What a client is given in place of the server's URL."""
        return self._upstream._replace(netloc=f"127.0.0.1:{self._port}").geturl()

    @property
    def upstream_address(self) -> tuple[str, int]:
        """Where the server listens."""
        return self._upstream.hostname or "", self._upstream.port or 80

    def begin(self, method: str, target: str) -> Exchange:
        """Count a request; called by a connection."""
        exchange = Exchange(method=method, target=target)
        with self._lock:
            self._exchanges.append(exchange)
        return exchange

    def answer_bytes(self, method: str, path: str) -> int:
        """Return how many bytes came back for requests whose target begins with a path.

        Does not wait: call it when the clients have ended.
        """
        with self._lock:
            found = list(self._exchanges)
        return sum(
            exchange.answer_bytes
            for exchange in found
            if exchange.method == method and exchange.target.startswith(path)
        )

    def give_up(self, reason: str) -> None:
        """Note that a request could not be parsed; called by a connection."""
        self._broken = reason

    def reset(self) -> None:
        """Start counting again, once no request is under way.

        Raises:
            BrokenRequestError: A request could not be parsed.
        """
        self.settled()
        with self._lock:
            self._exchanges = []

    def settled(self) -> list[Exchange]:
        """Wait until all is answered and nothing new comes; return what came since `reset`.

        Clients also send in the background, metrics for instance: these count too.

        Raises:
            BrokenRequestError: A request could not be parsed, or requests do not end.
        """
        seen, quiet_since = -1, time.monotonic()
        deadline = quiet_since + _QUIET_MAX_S
        while True:
            if self._broken:
                raise BrokenRequestError(self._broken)
            with self._lock:
                found = list(self._exchanges)
            now = time.monotonic()
            if len(found) != seen or not all(exchange.status for exchange in found):
                seen, quiet_since = len(found), now
            if now - quiet_since >= _QUIET_S:
                return found
            if now > deadline:
                raise BrokenRequestError(f"not quiet for {_QUIET_MAX_S} s")
            time.sleep(0.01)


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False  # Clients keep their connections for later; do not wait for them.
    request_queue_size = 128
    proxy: CountingProxy


class _Connection(socketserver.BaseRequestHandler):
    """One client's connection, and its own connection to the server."""

    server: _Server
    request: socket.socket

    def handle(self) -> None:
        """Pass requests on until either side closes."""
        self._exchange: Exchange | None = None
        with socket.create_connection(self.server.proxy.upstream_address) as upstream:
            for connection in (self.request, upstream):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            back = threading.Thread(target=self._answers, args=(upstream,), daemon=True)
            back.start()
            try:
                with self.request.makefile("rb") as client:
                    while self._pass_request(client, upstream):
                        pass
            except BrokenRequestError as error:
                self.server.proxy.give_up(str(error))
            except OSError:
                pass  # One side hung up; now close the other.
            with contextlib.suppress(OSError):
                upstream.shutdown(socket.SHUT_WR)
            back.join()

    def _answers(self, upstream: socket.socket) -> None:
        """Pass all answers back as they come."""
        begun = b""
        with contextlib.suppress(OSError):
            while data := upstream.recv(_PIECE_BYTES):
                if self._exchange is not None:
                    self._exchange.answer_bytes += len(data)
                if self._exchange is not None and not self._exchange.status:
                    begun += data
                    if status := final_status(begun):
                        self._exchange.status, begun = status, b""
                self.request.sendall(data)
        with contextlib.suppress(OSError):
            # Both ways, so that the requests' side wakes up as well.
            self.request.shutdown(socket.SHUT_RDWR)

    def _pass_request(self, client: BinaryIO, upstream: socket.socket) -> bool:
        """Pass one request on; return False when the client has closed.

        Raises:
            BrokenRequestError: It is not a request.
        """
        head = _read_head(client)
        if not head:
            return False
        method, _, rest = head[0].partition(b" ")
        target = rest.rpartition(b" ")[0]
        if not target:
            raise BrokenRequestError(f"no request line: {head[0][:80]!r}")
        self._exchange = self.server.proxy.begin(method.decode(), target.decode())
        upstream.sendall(b"".join(head))
        fields = _fields(head)
        if b"chunked" in fields.get(b"transfer-encoding", b"").lower():
            _pass_chunks(client, upstream)
        else:
            _pass_bytes(client, upstream, int(fields.get(b"content-length", b"0")))
        return True


def final_status(begun: bytes) -> int:
    """Return the status in an answer's first bytes, after any interim answers; 0 if not there."""
    while match := _STATUS_LINE.match(begun):
        if (status := int(match[1])) >= _FINAL_STATUS_MIN:
            return status
        begun = begun.partition(b"\r\n\r\n")[2]
    return 0


def _read_head(client: BinaryIO) -> list[bytes]:
    """Return a head's lines, the empty one at its end included; none when the client closed."""
    lines: list[bytes] = []
    while line := client.readline(_PIECE_BYTES):
        lines.append(line)
        if line == b"\r\n":
            return lines
    return []


def _fields(head: list[bytes]) -> dict[bytes, bytes]:
    pairs = (line.partition(b":") for line in head[1:])
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


def _pass_bytes(client: BinaryIO, upstream: socket.socket, count: int) -> None:
    while count > 0:
        data: bytes = client.read1(min(count, _PIECE_BYTES))  # type: ignore[attr-defined]
        if not data:
            raise ConnectionError("the client closed inside a body")
        upstream.sendall(data)
        count -= len(data)


def _pass_chunks(client: BinaryIO, upstream: socket.socket) -> None:
    """Pass a chunked body on: sizes and pieces, then trailers up to an empty line.

    Raises:
        BrokenRequestError: A size cannot be read.
    """
    size = -1
    while size:
        line = client.readline(_PIECE_BYTES)
        upstream.sendall(line)
        try:
            size = int(line.partition(b";")[0], 16)
        except ValueError as error:
            raise BrokenRequestError(f"no chunk size: {line[:80]!r}") from error
        _pass_bytes(client, upstream, size + len(b"\r\n") if size else 0)
    upstream.sendall(b"".join(_read_head(client)))
