"""GCS's XML API for uploads, in front of fake-gcs-server, which takes uploads by the JSON API only.

obstore creates objects with `PUT /bucket/object`; the header `x-goog-if-generation-match: 0` says
that there must be none. Here it becomes the JSON API's `ifGenerationMatch=0`, of which GCS says the
same. Reading and listing reach fake-gcs-server as they are.
"""

from __future__ import annotations

from urllib.parse import quote, unquote, urlsplit

import httpx

from tests.emulators.front import Front

_ONLY_IF = "x-goog-if-generation-match"


class GcsServer(Front):
    """Passes every request on; uploads and deletions as the JSON API has them."""

    def request(
        self, method: str, path: str, headers: dict[str, str], body: bytes = b""
    ) -> httpx.Request:
        """Return a request for fake-gcs-server."""
        address = urlsplit(path)
        bucket, _, name = unquote(address.path.lstrip("/")).partition("/")
        of_object = f"b/{quote(bucket, safe='')}/o"
        if method == "PUT" and not address.query:
            kept = {key.lower(): of for key, of in headers.items()}
            asked = f"uploadType=media&name={quote(name, safe='')}"
            if (generation := kept.get(_ONLY_IF)) is not None:
                asked += f"&ifGenerationMatch={generation}"
            return super().request("POST", f"/upload/storage/v1/{of_object}?{asked}", kept, body)
        if method == "DELETE":
            path = f"/storage/v1/{of_object}/{quote(name, safe='')}"
        # fake-gcs-server serves the XML API to those who name its public host.
        headers = {**headers, "Host": urlsplit(self.upstream).netloc}
        return super().request(method, path, headers, body)

    def answer(self, request: httpx.Request) -> httpx.Response:
        """Return the answer, with the headers that the XML API gives after an upload."""
        found = super().answer(request)
        if request.url.path.startswith("/upload/") and found.is_success:
            made = found.json()
            found.headers["ETag"] = made["etag"]
            found.headers["x-goog-generation"] = made["generation"]
        return found
