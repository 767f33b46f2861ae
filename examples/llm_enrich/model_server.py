"""A model server on this machine, for the job in enrich.py: slow, rate-limited and unreliable.

It answers as a model provider does, with latency, temporary errors, rate limits and rows that it
always refuses. All of it is drawn from a seed, so a run can be repeated. It also counts what it has
answered: that is what a provider would have been paid for.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import math
import re
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

Json = dict[str, Any]

CATEGORIES = ("books", "clothing", "garden", "kitchen", "music", "sport", "tools", "toys")
PATHS = ("/enrich", "/v1/chat/completions")
SUMMARY_WORDS = 8
# What a call costs regardless of its text: the instructions and the form of the answer.
TOKENS_PER_CALL = 40
# A caller may use up a second's worth of calls at once.
BURST_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """How the server treats its callers."""

    latency_min_s: float = 0.05
    latency_max_s: float = 2.0
    # The share of calls that end in 500, 503 or a dropped connection.
    errors: float = 0.05
    # The share of ids that are answered with 422, always.
    poison: float = 0.005
    # Calls per second; 0 for no limit.
    rate: float = 0.0
    seed: int = 0


@dataclass(slots=True)
class Counts:
    """What the server has seen so far."""

    calls: int = 0
    answered_calls: int = 0
    answered_again: int = 0
    errors: int = 0
    rate_limited: int = 0
    poisoned: int = 0
    answered_ids: set[int] = field(default_factory=set)
    poison_ids: set[int] = field(default_factory=set)

    def as_json(self) -> Json:
        """Return the counts as JSON shows them."""
        return {
            "calls": self.calls,
            "answered_calls": self.answered_calls,
            "answered_ids": len(self.answered_ids),
            "answered_again": self.answered_again,
            "errors": self.errors,
            "rate_limited": self.rate_limited,
            "poisoned": self.poisoned,
            "poison_ids": sorted(self.poison_ids),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One HTTP request."""

    method: str
    path: str
    body: bytes
    keep_alive: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One HTTP response."""

    status: HTTPStatus
    content: Json
    headers: Mapping[str, str] = field(default_factory=dict)
    # The id that counts as answered once the response is written to the socket.
    answers: int | None = None

    def as_bytes(self) -> bytes:
        """Return the response as it goes over the wire."""
        body = json.dumps(self.content).encode()
        lines = [
            f"HTTP/1.1 {self.status.value} {self.status.phrase}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            *(f"{name}: {value}" for name, value in self.headers.items()),
        ]
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


class TokenBucket:
    """Lets so many calls through per second."""

    def __init__(self, rate: float) -> None:
        """Start full."""
        self._rate = rate
        self._most = max(rate * BURST_S, 1.0)
        self._tokens = self._most
        self._filled_at = time.monotonic()

    def wait_s(self) -> float:
        """Take a token and return 0; if there is none, return how long until there is one."""
        if not self._rate:
            return 0.0
        now = time.monotonic()
        self._tokens = min(self._most, self._tokens + (now - self._filled_at) * self._rate)
        self._filled_at = now
        if self._tokens < 1.0:
            return (1.0 - self._tokens) / self._rate
        self._tokens -= 1.0
        return 0.0


class ModelServer:
    """The server: answers calls, and counts them."""

    def __init__(self, behaviour: Behaviour) -> None:
        """Start with all counts at zero."""
        self._behaviour = behaviour
        self._bucket = TokenBucket(behaviour.rate)
        self._calls_of: Counter[int] = Counter()
        self.counts = Counts()

    async def listen(self, port: int) -> asyncio.Server:
        """Bind to a port of this machine and start serving; 0 takes a free port."""
        return await asyncio.start_server(self._serve, "127.0.0.1", port, backlog=1024)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection's requests until it ends."""
        # A caller that is killed ends its connections in all of these ways.
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            while (request := await _read(reader)) is not None:
                reply = await self._reply(request)
                if reply is None:
                    writer.transport.abort()
                    return
                writer.write(reply.as_bytes())
                await writer.drain()
                if reply.answers is not None and not writer.is_closing():
                    self.counts.answered_calls += 1
                    self.counts.answered_ids.add(reply.answers)
                if not request.keep_alive:
                    break
        writer.close()

    async def _reply(self, request: Request) -> Reply | None:
        """Return the response; None to drop the connection."""
        if (request.method, request.path) == ("GET", "/counts"):
            return Reply(status=HTTPStatus.OK, content=self.counts.as_json())
        if request.method != "POST" or request.path not in PATHS:
            return _refusal(HTTPStatus.NOT_FOUND, f"POST one of {PATHS}, or GET /counts")
        is_chat = request.path != "/enrich"
        try:
            row_id, text = (_asked_in_chat if is_chat else _asked)(json.loads(request.body))
        except (KeyError, IndexError, TypeError, ValueError) as error:
            return _refusal(HTTPStatus.BAD_REQUEST, f"not a request of this model: {error!r}")
        return await self._model(row_id, text, is_chat=is_chat)

    async def _model(self, row_id: int, text: str, *, is_chat: bool) -> Reply | None:
        """Answer a call as the behaviour says; None to drop the connection."""
        behaviour, counts = self._behaviour, self.counts
        counts.calls += 1
        counts.answered_again += row_id in counts.answered_ids
        if wait_s := self._bucket.wait_s():
            counts.rate_limited += 1
            headers = {"Retry-After": str(math.ceil(wait_s))}
            return _refusal(HTTPStatus.TOO_MANY_REQUESTS, "too many calls", headers)
        # Refused calls have no number: how many there are depends on the clock, and what is drawn
        # from the number must not.
        self._calls_of[row_id] += 1
        number = self._calls_of[row_id]
        await asyncio.sleep(_latency_s(behaviour, row_id, number))
        if is_poison(behaviour.seed, behaviour.poison, row_id):
            counts.poisoned += 1
            counts.poison_ids.add(row_id)
            return _refusal(HTTPStatus.UNPROCESSABLE_ENTITY, f"cannot work on id {row_id}")
        if _draw(behaviour.seed, "error", row_id, number) < behaviour.errors:
            counts.errors += 1
            kind = _draw(behaviour.seed, "kind", row_id, number)
            return _error(kind)
        answer = enriched(row_id, text)
        content = _chat(answer) if is_chat else answer
        return Reply(status=HTTPStatus.OK, content=content, answers=row_id)


def is_poison(seed: int, share: float, row_id: int) -> bool:
    """Whether this id is one that is never answered."""
    return _draw(seed, "poison", row_id) < share


def enriched(row_id: int, text: str) -> Json:
    """Return the model's answer, which depends only on the id and the text."""
    words = text.split()
    category = CATEGORIES[int(_draw("category", row_id, text) * len(CATEGORIES))]
    summary = " ".join(words[:SUMMARY_WORDS])
    return {
        "category": category,
        "summary": summary,
        "tokens": TOKENS_PER_CALL + len(words) + len(summary.split()),
    }


def _draw(*parts: object) -> float:
    """Return a pseudo-random number from 0 up to 1, always the same for the same parts."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


def _latency_s(behaviour: Behaviour, row_id: int, number: int) -> float:
    """Return how long a call takes: log-uniform, so that most are quick and some are slow."""
    shortest, longest = behaviour.latency_min_s, behaviour.latency_max_s
    if shortest <= 0:
        return longest * _draw(behaviour.seed, "latency", row_id, number)
    growth: float = (longest / shortest) ** _draw(behaviour.seed, "latency", row_id, number)
    return shortest * growth


def _error(kind: float) -> Reply | None:
    """Return one of the temporary errors, equally often; None for a dropped connection."""
    if kind < 1 / 3:
        return _refusal(HTTPStatus.INTERNAL_SERVER_ERROR, "the model has failed")
    if kind < 2 / 3:
        return _refusal(HTTPStatus.SERVICE_UNAVAILABLE, "the model is busy")
    return None


def _refusal(status: HTTPStatus, message: str, headers: Mapping[str, str] | None = None) -> Reply:
    """Return an error in the form that OpenAI's clients read."""
    return Reply(status=status, content={"error": {"message": message}}, headers=headers or {})


def _asked(asked: Json) -> tuple[int, str]:
    """Return the id and the text of a call to `/enrich`."""
    return int(asked["id"]), str(asked["text"])


def _asked_in_chat(asked: Json) -> tuple[int, str]:
    """Return the id and the text of a chat.

    A chat carries no id. The first number in the last message is used instead; every text of this
    example's input begins with its own.

    Raises:
        ValueError: There is no number.
    """
    text = str(asked["messages"][-1]["content"])
    number = re.search(r"\d+", text)
    if number is None:
        raise ValueError("the last message holds no number")
    return int(number.group()), text


def _chat(answer: Json) -> Json:
    """Return an answer in the form of a chat completion."""
    said = {"category": answer["category"], "summary": answer["summary"]}
    message = {"role": "assistant", "content": json.dumps(said)}
    return {
        "object": "chat.completion",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"total_tokens": answer["tokens"]},
    }


async def _read(reader: asyncio.StreamReader) -> Request | None:
    """Return the connection's next request; None if there is no readable one."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.split("\r\n")
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    try:
        method, path, version = first.split(" ")
        length = int(headers.get("content-length", "0"))
    except ValueError:
        return None
    return Request(
        method=method,
        path=path.partition("?")[0],
        body=await reader.readexactly(length),
        keep_alive=version == "HTTP/1.1" and headers.get("connection", "").lower() != "close",
    )


def _arguments() -> argparse.Namespace:
    """Read the command line."""
    usual = Behaviour()
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--port", type=int, default=8700, help="0 takes a free one")
    parser.add_argument("--latency-min", type=float, default=usual.latency_min_s, help="seconds")
    parser.add_argument("--latency-max", type=float, default=usual.latency_max_s, help="seconds")
    parser.add_argument("--errors", type=float, default=usual.errors, help="share of calls")
    parser.add_argument("--poison", type=float, default=usual.poison, help="share of ids")
    parser.add_argument("--rate", type=float, default=usual.rate, help="calls/s; 0: no limit")
    parser.add_argument("--seed", type=int, default=usual.seed)
    return parser.parse_args()


async def _main() -> None:
    """Serve until the process ends."""
    given = _arguments()
    behaviour = Behaviour(
        latency_min_s=given.latency_min,
        latency_max_s=given.latency_max,
        errors=given.errors,
        poison=given.poison,
        rate=given.rate,
        seed=given.seed,
    )
    server = await ModelServer(behaviour).listen(given.port)
    host, port = server.sockets[0].getsockname()[:2]
    print(f"listening on http://{host}:{port}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(_main())
