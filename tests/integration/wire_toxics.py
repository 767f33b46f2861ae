"""Toxiproxy, driven over its HTTP API: a proxy of the test's own, and what it does to bytes."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import requests

_TIMEOUT_S = 10.0
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Toxic:
    """What the proxy does to one direction of each connection; times are in milliseconds."""

    kind: str
    attributes: dict[str, int]
    stream: str = "downstream"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToxicProxy:
    """One running proxy: `uri` is what a client is given. Pickled into transforms."""

    uri: str
    api: str

    def add(self, *toxics: Toxic) -> None:
        """Add a toxic, to open connections as well as to new ones."""
        for toxic in toxics:
            body = {
                "name": f"{toxic.kind}-{toxic.stream}",
                "type": toxic.kind,
                "stream": toxic.stream,
                "attributes": toxic.attributes,
            }
            # Two workers may add the same one: the second gets the answer that it exists.
            self._call("POST", "/toxics", body, also=409)

    def clear(self) -> None:
        """Remove all toxics; connections that were kept silent are closed."""
        for toxic in self.toxics():
            self._call("DELETE", f"/toxics/{toxic}")

    def toxics(self) -> list[str]:
        """Return the names of its toxics."""
        return [toxic["name"] for toxic in self._call("GET", "/toxics")]

    def _call(self, method: str, path: str, body: Any = None, *, also: int = 200) -> Any:  # noqa: ANN401
        with requests.request(method, self.api + path, json=body, timeout=_TIMEOUT_S) as answer:
            if answer.status_code != also:
                answer.raise_for_status()
            return answer.json() if answer.content else None


@contextlib.contextmanager
def toxic_proxy(api: str, upstream: str) -> Iterator[ToxicProxy]:
    """Run a toxiproxy proxy in front of one server, and remove it again.

    Args:
        api: Toxiproxy's own address.
        upstream: The server's URI.
    """
    name = f"wire-{uuid.uuid4().hex[:8]}"
    body = {"name": name, "listen": "127.0.0.1:0", "upstream": urlsplit(upstream).netloc}
    with requests.post(f"{api}/proxies", json=body, timeout=_TIMEOUT_S) as answer:
        answer.raise_for_status()
        listens = answer.json()["listen"]
    try:
        yield ToxicProxy(uri=f"http://{listens}", api=f"{api}/proxies/{name}")
    finally:
        requests.delete(f"{api}/proxies/{name}", timeout=_TIMEOUT_S).close()


class TurnsToxic:
    """A transform that passes rows on; the wire goes bad at the very first row."""

    def __init__(self, proxy: ToxicProxy, *toxics: Toxic) -> None:
        """Take the wire, and what happens to it."""
        self._proxy = proxy
        self._toxics = toxics

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows as they are."""
        if 0 in batch.column("id").to_pylist():
            self._proxy.add(*self._toxics)
        return batch


@contextlib.contextmanager
def heals(proxy: ToxicProxy, after_s: float) -> Iterator[Callable[[], bool]]:
    """Heal a wire some time after it has gone bad.

    Yields a function that says whether it has been bad.
    """
    end, healed = threading.Event(), threading.Event()

    def watch() -> None:
        while not end.wait(_POLL_S):
            if proxy.toxics():
                time.sleep(after_s)
                proxy.clear()
                healed.set()
                return

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield healed.is_set
    finally:
        end.set()
        thread.join(after_s + _TIMEOUT_S)
