"""Let an HTTP server of a test answer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from typing import TypeVar

_Server = TypeVar("_Server", bound=ThreadingHTTPServer)


@contextmanager
def running(server: _Server) -> Iterator[_Server]:
    """Let a server answer for as long as it is needed."""
    with server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
