"""The proxy of the benchmarks counts each request once and does not change a byte."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import pytest

from bench.counting_proxy import (
    BrokenRequestError,
    CountingProxy,
    Exchange,
    count_requests,
    final_status,
)


class _Echo(BaseHTTPRequestHandler):
    """Answers with the Host header and the body it got, kept alive and in chunks."""

    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        """Take a body, sized or in chunks, and send it back."""
        host = self.headers["Host"].encode()
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for piece in (host, b" ", self._body()):
            if piece:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        self.wfile.write(b"0\r\n\r\n")

    def do_HEAD(self) -> None:
        """Send a size, but no body."""
        self.send_response(404)
        self.send_header("Content-Length", "1000")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Keep quiet."""

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers["Content-Length"]))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body


class _EchoServer(ThreadingHTTPServer):
    request_queue_size = 128  # With the default backlog of five, Linux resets what does not fit.
    block_on_close = False


@contextmanager
def _listening() -> Iterator[str]:
    with _EchoServer(("127.0.0.1", 0), _Echo) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/base"
        server.shutdown()


@pytest.fixture
def proxy() -> Iterator[CountingProxy]:
    """A proxy in front of a server that echoes."""
    with _listening() as upstream, count_requests(upstream) as listening:
        yield listening


def _connect(proxy: CountingProxy) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(urlsplit(proxy.url).netloc, timeout=10)


def _put(connection: http.client.HTTPConnection, target: str, body: bytes) -> bytes:
    connection.request("PUT", target, body=body, headers={"Host": "signed.example"})
    return connection.getresponse().read()


def test_requests_on_one_connection_are_counted_one_by_one(proxy: CountingProxy) -> None:
    """Sized bodies, an answer without one and chunked answers leave the next request whole."""
    with closing(_connect(proxy)) as connection:
        assert _put(connection, "/one?x=1", b"a" * 200_000) == b"signed.example " + b"a" * 200_000
        connection.request("HEAD", "/two")
        assert connection.getresponse().read() == b""
        assert _put(connection, "/three", b"") == b"signed.example "
    assert proxy.settled() == [
        Exchange(method="PUT", target="/one?x=1", status=200),
        Exchange(method="HEAD", target="/two", status=404),
        Exchange(method="PUT", target="/three", status=200),
    ]


def test_a_chunked_body_is_one_request(proxy: CountingProxy) -> None:
    """What looks like a request inside a body is not counted."""
    pieces = [b"GET /never HTTP/1.1\r\n\r\n", b"y" * 70_000]
    with closing(_connect(proxy)) as connection:
        connection.request("PUT", "/chunks", body=iter(pieces), encode_chunked=True)
        assert connection.getresponse().read().endswith(b"".join(pieces))
        _put(connection, "/next", b"z")
    assert [exchange.target for exchange in proxy.settled()] == ["/chunks", "/next"]


def test_a_client_that_expects_100_continue_gets_it_before_it_sends(proxy: CountingProxy) -> None:
    """The head is passed on at once; the interim answer is not taken for the answer."""
    address = urlsplit(proxy.url)
    with socket.create_connection((address.hostname or "", address.port or 0), 10) as client:
        client.sendall(
            b"PUT /expects HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n"
            b"Expect: 100-continue\r\nConnection: close\r\n\r\n"
        )
        answers = client.makefile("rb")
        assert answers.readline().startswith(b"HTTP/1.1 100")
        client.sendall(b"body")
        assert b"HTTP/1.1 200" in answers.read()
    assert proxy.settled() == [Exchange(method="PUT", target="/expects", status=200)]


def test_requests_at_the_same_time_are_all_counted(proxy: CountingProxy) -> None:
    """Connections do not wait for each other and none is lost."""

    def send(number: int) -> bytes:
        with closing(_connect(proxy)) as connection:
            return _put(connection, f"/{number}", b"x" * number)

    with ThreadPoolExecutor(max_workers=16) as pool:
        answers = list(pool.map(send, range(64)))
    assert answers == [b"signed.example " + b"x" * number for number in range(64)]
    assert {exchange.target for exchange in proxy.settled()} == {
        f"/{number}" for number in range(64)
    }


def test_a_reset_begins_anew_on_the_same_connection(proxy: CountingProxy) -> None:
    """What came before does not count, and a kept connection is still counted."""
    with closing(_connect(proxy)) as connection:
        _put(connection, "/before", b"")
        proxy.reset()
        _put(connection, "/after", b"")
        assert [exchange.target for exchange in proxy.settled()] == ["/after"]


def test_a_server_that_is_gone_closes_the_connection() -> None:
    """The client sees what it would see without the proxy, instead of waiting."""
    with _listening() as upstream:
        pass
    with count_requests(upstream) as proxy, closing(_connect(proxy)) as connection:
        with pytest.raises((ConnectionError, http.client.BadStatusLine)):
            _put(connection, "/lost", b"")
        assert proxy.settled() == []


def test_a_request_that_cannot_be_followed_spoils_the_count(proxy: CountingProxy) -> None:
    """Better no figure than a wrong one."""
    address = urlsplit(proxy.url)
    with socket.create_connection((address.hostname or "", address.port or 0), 10) as client:
        client.sendall(b"nonsense\r\n\r\n")
        client.shutdown(socket.SHUT_WR)
        client.makefile("rb").read()
    with pytest.raises(BrokenRequestError, match="nonsense"):
        proxy.settled()


@pytest.mark.parametrize(
    ("begun", "status"),
    [
        (b"HTTP/1.1 404 Not Found\r\n", 404),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 412 No\r\n", 412),
        (b"HTTP/1.1 100 Continue\r\n\r\n", 0),
        (b"HTTP/1.1 2", 0),
    ],
)
def test_the_status_is_read_behind_interim_answers(begun: bytes, status: int) -> None:
    """Bytes arrive in any pieces."""
    assert final_status(begun) == status
