"""An HTTP proxy on 127.0.0.1 that loses, forges, spoils or delays what goes over the wire.

Faults are injected between the real client and the real server: what the server did is real, only
the answers are not. Requests are passed on as they came, with the Host header, so that signatures
hold: the server checks them against the address that the client was given.
"""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import SplitResult, unquote, urlsplit

# POST to a table, in Iceberg's REST protocol: that is a commit.
_COMMIT = re.compile(r"/v1/.*namespaces/[^/]+/tables/[^/]+$")
_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "date", "server"}
_FORGED = b'{"error":{"message":"forged","type":"Forged","code":0}}'
_UPSTREAM_TIMEOUT_S = 60.0
_LATE_MAX_S = 30.0


def nothing() -> None:
    """Do nothing."""


def same(body: bytes) -> bytes:
    """Return the bytes as they are."""
    return body


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One request: its method, its path with the query, and what it copies, if S3 is to copy."""

    method: str
    target: str
    source: str = ""

    @property
    def path(self) -> str:
        """The path without the query, as the server names it."""
        return unquote(self.target.partition("?")[0])


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What happens to one request, in the order of these fields."""

    before: Callable[[], None] = nothing
    # Off: the server never gets it.
    forward: bool = True
    # The server gets it only when this is set, after the client has got its (forged) answer.
    later: threading.Event | None = None
    # What the server gets instead of the body; signature and length are the client's.
    spoil_request: Callable[[bytes], bytes] = same
    # The server gets half of the body, and then the connection is closed.
    cut_request: bool = False
    # Runs when the server has answered.
    after: Callable[[], None] = nothing
    # The client finds the connection closed, without an answer.
    lose_answer: bool = False
    # What the client gets instead of the server's answer.
    status: int | None = None
    content: bytes = _FORGED
    # What the client gets instead of the body, with a length that fits it.
    spoil_answer: Callable[[bytes], bytes] = same
    # What the client gets instead of the object's tag.
    tag: str | None = None
    # The client gets half of the body, and then the connection is closed.
    cut_answer: bool = False


@dataclass(slots=True)
class Rule:
    """Faults for the requests that it matches, one per request; `met` counts them."""

    matches: Callable[[Seen], bool]
    faults: list[Fault]
    met: int = 0


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    headers: list[tuple[str, str]]
    content: bytes


_NO_ANSWER = _Answer(status=0, headers=[], content=b"")


def is_commit(seen: Seen) -> bool:
    """Whether it is a commit to a table of a REST catalog."""
    return seen.method == "POST" and _COMMIT.search(seen.path) is not None


@dataclass
class FaultProxy:
    """A running proxy: `uri` is for the client; `faults` are used up, one per commit."""

    uri: str = ""
    upstream: str = ""
    faults: list[Fault] = field(default_factory=list)
    # What the server has answered to each commit; 0 if it never got it.
    commits: list[int] = field(default_factory=list)
    # All requests, and what the server has answered to each.
    seen: list[tuple[Seen, int]] = field(default_factory=list)
    _rules: list[Rule] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _late: list[threading.Thread] = field(default_factory=list)
    # Errors in the steps of faults: a server's thread would only print them.
    broken: list[BaseException] = field(default_factory=list)

    def take(self, step: Callable[[], None]) -> None:
        """Run a step of a fault, and keep its error for the end of the test."""
        try:
            step()
        except BaseException as error:
            self.broken.append(error)
            raise OSError("a step of a fault has failed") from error

    def on(self, matches: Callable[[Seen], bool], *faults: Fault) -> Rule:
        """Inject these faults into the next matching requests, one each."""
        rule = Rule(matches, list(faults))
        with self._lock:
            self._rules.append(rule)
        return rule

    def next_fault(self, seen: Seen) -> Fault:
        """Return what happens to a request."""
        with self._lock:
            for rule in self._rules:
                if rule.faults and rule.matches(seen):
                    rule.met += 1
                    return rule.faults.pop(0)
            return self.faults.pop(0) if self.faults and is_commit(seen) else Fault()

    def note(self, seen: Seen, status: int) -> None:
        """Remember what the server has answered."""
        with self._lock:
            self.seen.append((seen, status))
            if is_commit(seen):
                self.commits.append(status)

    def run_later(self, release: threading.Event, action: Callable[[], None]) -> None:
        """Run an action when the event is set."""

        def wait() -> None:
            if release.wait(_LATE_MAX_S):
                action()

        thread = threading.Thread(target=wait, daemon=True)
        self._late.append(thread)
        thread.start()

    def settle(self) -> None:
        """Wait until every delayed request has reached the server."""
        for thread in self._late:
            thread.join(_LATE_MAX_S)
            assert not thread.is_alive()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # A client asks for many objects at once.
    proxy: FaultProxy
    upstream: SplitResult


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its own name.
        """Stay silent."""

    def handle_any(self) -> None:
        """Pass one request on, with the fault that is due, if any."""
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        proxy, source = self.server.proxy, self.headers.get("x-amz-copy-source", "")
        seen = Seen(method=self.command, target=self.path, source=source)
        fault = proxy.next_fault(seen)
        proxy.take(fault.before)
        answer, headers = _NO_ANSWER, list(self.headers.items())

        def forward() -> _Answer:
            found = _forward(self.server.upstream, seen, headers, body, fault)
            proxy.note(seen, found.status)
            return found

        if fault.later is not None:
            proxy.run_later(fault.later, lambda: void(forward()))
        elif fault.forward:
            answer = forward()
        else:
            proxy.note(seen, 0)
        proxy.take(fault.after)
        if fault.lose_answer or (fault.status is None and not answer.status):
            self.close_connection = True
            return
        with contextlib.suppress(OSError):  # A client that has given up does not read the answer.
            self.reply(fault, answer)

    def reply(self, fault: Fault, answer: _Answer) -> None:
        """Give the client the server's answer, or what the fault turns it into."""
        content = answer.content if fault.status is None else fault.content
        content = fault.spoil_answer(content)
        length = str(len(content))
        self.send_response(fault.status or answer.status)
        for name, value in answer.headers if fault.status is None else []:
            if name.lower() not in _HOP_BY_HOP:
                is_tag = name.lower() == "etag" and fault.tag is not None
                self.send_header(name, str(fault.tag) if is_tag else value)
            elif name.lower() == "content-length" and self.command == "HEAD":
                length = value  # The headers describe the object, but no body is sent.
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content[: len(content) // 2] if fault.cut_answer else content)
        if fault.cut_answer:
            self.close_connection = True

    do_GET = do_POST = do_PUT = do_HEAD = do_DELETE = handle_any  # noqa: N815 - their own names.


def void(_: object) -> None:
    """Take a value and do nothing with it."""


def _forward(
    upstream: SplitResult, seen: Seen, headers: list[tuple[str, str]], body: bytes, fault: Fault
) -> _Answer:
    """Send a request to the server unchanged; status 0 means no answer."""
    address = upstream.hostname or "", upstream.port or 80
    with contextlib.closing(http.client.HTTPConnection(*address, _UPSTREAM_TIMEOUT_S)) as server:
        server.putrequest(seen.method, seen.target, skip_host=True, skip_accept_encoding=True)
        for name, value in headers:
            if name.lower() != "connection":
                server.putheader(name, value)
        server.endheaders()
        sent = fault.spoil_request(body)
        try:
            server.send(sent[: len(sent) // 2] if fault.cut_request else sent)
            if fault.cut_request and isinstance(server.sock, socket.socket):
                server.sock.shutdown(socket.SHUT_WR)
            answer = server.getresponse()
            found = _Answer(answer.status, answer.getheaders(), answer.read())
        except (OSError, http.client.HTTPException):
            return _NO_ANSWER
    return found


@contextlib.contextmanager
def fault_proxy(upstream: str) -> Iterator[FaultProxy]:
    """Run a proxy in front of one server.

    Args:
        upstream: The server's URI: a catalog's, or an S3 endpoint.

    Raises:
        BaseException: A step of a fault has failed, so the test has shown nothing.
    """
    proxy, address = FaultProxy(upstream=upstream), urlsplit(upstream)
    with _Server(("127.0.0.1", 0), _Handler) as server:
        server.proxy, server.upstream = proxy, address
        proxy.uri = f"http://127.0.0.1:{server.server_address[1]}{address.path.rstrip('/')}"
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield proxy
        finally:
            server.shutdown()
            proxy.settle()
        for error in proxy.broken:
            raise error
