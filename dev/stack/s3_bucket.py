"""Ask an S3 server for a bucket, and create it if it is missing: just enough of signature v4."""

from __future__ import annotations

import hashlib
import hmac
import http.client
import time
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import urlsplit

_EMPTY_BODY = hashlib.sha256(b"").hexdigest()


@dataclass(frozen=True, slots=True)
class Credentials:
    """The keys to sign with, and the region."""

    access_key: str
    secret_key: str
    region: str


def ensure_bucket(endpoint: str, bucket: str, credentials: Credentials) -> bool:
    """Make a bucket unless it is there; return whether it is there now.

    Safe to call again. A server that does not answer yet raises OSError.
    """
    for method in ("HEAD", "PUT", "HEAD"):
        status = _request(method, endpoint, bucket, credentials)
        if method == "HEAD" and status == HTTPStatus.OK:
            return True
    return False


def _request(method: str, endpoint: str, bucket: str, credentials: Credentials) -> int:
    """Send one signed request without a body for a bucket; return the HTTP status."""
    host = urlsplit(endpoint).netloc
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    headers = {"host": host, "x-amz-content-sha256": _EMPTY_BODY, "x-amz-date": stamp}
    signed = ";".join(headers)
    lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
    canonical = "\n".join([method, f"/{bucket}", "", lines, signed, _EMPTY_BODY])
    scope = f"{stamp[:8]}/{credentials.region}/s3/aws4_request"
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    key = f"AWS4{credentials.secret_key}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    text = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{digest}"
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    headers["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={credentials.access_key}/{scope},"
        f"SignedHeaders={signed},Signature={signature}"
    )
    connection = http.client.HTTPConnection(host, timeout=5.0)
    try:
        connection.request(method, f"/{bucket}", headers=headers)
        response = connection.getresponse()
        response.read()
        return response.status
    finally:
        connection.close()
