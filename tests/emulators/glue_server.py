"""A Glue catalog that refuses an update of another version, in front of moto, which takes any.

Glue refuses `UpdateTable` whose `VersionId` is not the table's newest, with
ConcurrentModificationException: so its documentation says, and PyIceberg relies on it. moto ignores
the field, and would let one of two writers undo the other's commit.
"""

from __future__ import annotations

import json
import threading

import httpx

from tests.emulators.front import Front

_TARGET = "x-amz-target"


class GlueServer(Front):
    """Passes every request on, except updates that come too late."""

    def __init__(self, upstream: str) -> None:
        """Listen in front of moto."""
        super().__init__(upstream)
        # One update at a time: compare and set.
        self._update = threading.Lock()
        self.updates, self.refused = 0, 0

    def answer(self, request: httpx.Request) -> httpx.Response:
        """Return moto's answer, or the refusal."""
        if request.headers.get(_TARGET) != "AWSGlue.UpdateTable":
            return super().answer(request)
        asked = json.loads(request.content)
        with self._update:
            self.updates += 1
            if asked["VersionId"] == self._newest(request, asked):
                return super().answer(request)
            self.refused += 1
        error = {"__type": "ConcurrentModificationException", "Message": "another version"}
        return httpx.Response(
            400, headers={"Content-Type": "application/x-amz-json-1.1"}, json=error
        )

    def _newest(self, request: httpx.Request, asked: dict[str, dict[str, str]]) -> str:
        """Return the newest version of the table that an update is for."""
        wanted = {"DatabaseName": asked["DatabaseName"], "Name": asked["TableInput"]["Name"]}
        headers = {**request.headers, _TARGET: "AWSGlue.GetTable"}
        del headers["content-length"]
        body = json.dumps(wanted).encode()
        found = super().answer(self.request("POST", "/", headers, body))
        version: str = found.json()["Table"]["VersionId"]
        return version
