"""A server that answers slowly, and sums up how long its answers took."""

from __future__ import annotations

import asyncio
import json
import math
import random
import sys

# Like a model's answers: most come soon, a few late.
LATENCY_MIN_S, LATENCY_MAX_S = 0.05, 2.0


class SlowServer:
    """Answers each request after a delay of its own."""

    def __init__(self) -> None:
        """Start without any requests."""
        self._random = random.Random(7)
        self.calls = 0
        self.seconds = 0.0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        while True:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except (asyncio.IncompleteReadError, ConnectionError):
                writer.close()
                return
            if head.startswith(b"GET /counts"):
                body = json.dumps({"calls": self.calls, "seconds": self.seconds})
            else:
                low, high = math.log(LATENCY_MIN_S), math.log(LATENCY_MAX_S)
                wait = math.exp(self._random.uniform(low, high))
                began = asyncio.get_running_loop().time()
                await asyncio.sleep(wait)
                self.calls += 1
                self.seconds += asyncio.get_running_loop().time() - began
                body = '{"answer": "forty-two"}'
            writer.write(
                f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
                f"content-length: {len(body)}\r\n\r\n{body}".encode()
            )


async def main() -> None:
    """Serve on a free port of this machine, and print it."""
    served = await asyncio.start_server(SlowServer().serve, "127.0.0.1", 0, backlog=1024)
    print(f"http://127.0.0.1:{served.sockets[0].getsockname()[1]}", flush=True)
    async with served:
        await served.serve_forever()


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
