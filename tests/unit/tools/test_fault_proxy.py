"""The proxy that tests put in front of a server: a failure inside it fails the test."""

from __future__ import annotations

import http.client
from urllib.parse import urlsplit

import pytest

from tests.fault_proxy import Fault, fault_proxy

# Nothing listens on this port: a forwarded request gets no answer.
CLOSED_PORT = "http://127.0.0.1:9"


def fail() -> None:
    """Stand in for an assertion about what another driver did."""
    raise AssertionError("the other driver has not landed")


FAULTS = {"before": Fault(before=fail), "after": Fault(after=fail, forward=False)}


@pytest.mark.parametrize("moment", FAULTS)
def test_a_step_that_fails_in_the_proxys_thread_fails_the_test(moment: str) -> None:
    """The client sees a closed connection, which many tests take for an intended fault."""

    def ask() -> None:
        with fault_proxy(CLOSED_PORT) as proxy:
            rule = proxy.on(lambda _: True, FAULTS[moment])
            address = urlsplit(proxy.uri)
            client = http.client.HTTPConnection(address.hostname or "", address.port, timeout=10)
            client.request("GET", "/x")
            with pytest.raises((http.client.HTTPException, OSError)):
                client.getresponse()
            client.close()
            assert rule.met == 1

    with pytest.raises(AssertionError, match="has not landed"):
        ask()
