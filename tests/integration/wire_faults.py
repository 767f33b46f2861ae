"""Faults by name, and the requests that they are for, on the way to an S3 server.

Each fault is a list: for the first matching request, the second, and so on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta

import pytest

from holdfast.storage import locations
from tests.fault_proxy import Fault, Seen


def be_quick(monkeypatch: pytest.MonkeyPatch, *, timeout: str, retries: int) -> None:
    """Give this process's S3 client very short pauses, and the given timeout.

    For stores that are opened from now on; executors have the product's own settings.
    """
    pause = {"init_backoff": timedelta(milliseconds=1), "max_backoff": timedelta(milliseconds=5)}
    monkeypatch.setattr(locations, "_RETRY_CONFIG", {"max_retries": retries, "backoff": pause})
    patience = {"timeout": timeout, "connect_timeout": "5s", "allow_http": True}
    monkeypatch.setattr(locations, "_CLIENT_OPTIONS", patience)


def flip(body: bytes, *, at: float = 0.5, bit: int = 1) -> bytes:
    """Return the bytes with one bit flipped."""
    place = min(int(len(body) * at), len(body) - 1)
    return body[:place] + bytes([body[place] ^ bit]) + body[place + 1 :]


def half(body: bytes) -> bytes:
    """Return the first half of the bytes."""
    return body[: len(body) // 2]


def refusal(status: int, code: str) -> Fault:
    """Return a refusal in S3's words, by which nothing is stored."""
    content = f"<Error><Code>{code}</Code><Message>forged</Message></Error>".encode()
    return Fault(forward=False, status=status, content=content)


BUSY = refusal(503, "SlowDown")
CONFLICT = refusal(409, "ConditionalRequestConflict")
EXISTS = refusal(412, "PreconditionFailed")
UPLOAD_GONE = refusal(404, "NoSuchUpload")
ANSWER_LOST = Fault(lose_answer=True)

WRITES: dict[str, list[Fault]] = {
    "500 after landing": [Fault(status=500)],
    "503 after landing": [Fault(status=503)],
    "dropped after landing": [ANSWER_LOST],
    "dropped before landing": [Fault(forward=False, lose_answer=True)],
    "409 that stored nothing": [CONFLICT],
    "412 that stored nothing": [EXISTS],
    "storm of 503": [BUSY] * 9,
    "storm of 409": [CONFLICT] * 4,
    "storm of 412": [EXISTS] * 4,
    "answers lost, then a storm of 503": [ANSWER_LOST] * 2 + [BUSY] * 6,
    "upload cut": [Fault(cut_request=True)],
    "upload cut, and the answer lost": [Fault(cut_request=True, lose_answer=True)],
    "upload with a flipped bit": [Fault(spoil_request=flip)],
    "upload of half the bytes": [Fault(spoil_request=half, cut_request=True)],
}
# The client gets what was stored, perhaps at the second attempt.
READS_THAT_END_WELL: dict[str, list[Fault]] = {
    "answer cut": [Fault(cut_answer=True)],
    "answer cut twice": [Fault(cut_answer=True)] * 2,
    "dropped": [ANSWER_LOST],
    "500": [Fault(status=500)],
    "storm of 503": [BUSY] * 3,
}
# What the client gets instead of the stored bytes, with a matching length.
SPOILS: dict[str, Callable[[bytes], bytes]] = {
    "flipped bit": flip,
    "flipped first byte": lambda body: flip(body, at=0),
    "flipped last byte": lambda body: flip(body, at=1, bit=128),
    "half the bytes": half,
    "no bytes": lambda _: b"",
}


def spoiled(spoil: Callable[[bytes], bytes], *, tagged: bool = False) -> Fault:
    """Return a read that gives other bytes than are stored.

    Args:
        spoil: What changes them.
        tagged: Whether the object's tag shows it: on most stores it is a digest, on some not.
    """
    return Fault(spoil_answer=spoil, tag=None if tagged else '"opaque"')


def put_of(part: str) -> Callable[[Seen], bool]:
    """Match uploads of objects with the part in their name; of large ones, the last request."""

    def matches(seen: Seen) -> bool:
        is_whole = seen.method == "PUT" and "partNumber=" not in seen.target
        is_end = seen.method == "POST" and "uploadId=" in seen.target
        return part in seen.path and (is_whole or is_end)

    return matches


def get_of(part: str) -> Callable[[Seen], bool]:
    """Match reads of objects with the part in their name."""
    return lambda seen: seen.method == "GET" and part in seen.path


def head_of(part: str) -> Callable[[Seen], bool]:
    """Match requests for the size of objects with the part in their name."""
    return lambda seen: seen.method == "HEAD" and part in seen.path


def listing_of(part: str) -> Callable[[Seen], bool]:
    """Match listings of folders with the part in their name."""
    quoted = part.replace("/", "%2F")
    return lambda seen: (
        seen.method == "GET" and "list-type=" in seen.target and quoted in seen.target
    )


def hang(release: threading.Event) -> Callable[[], None]:
    """Return what keeps a connection open and silent, until the test ends it."""
    return lambda: void(release.wait(30))


def void(_: object) -> None:
    """Take a value and do nothing with it."""
