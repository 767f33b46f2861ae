"""Ask an S3 server for unfinished uploads, which obstore cannot do."""

from __future__ import annotations

import hashlib
import hmac
import http.client
import re
import time
from urllib.parse import quote, urlsplit

from tests.stack_access import S3Endpoint

_EMPTY_BODY = hashlib.sha256(b"").hexdigest()


def unfinished_uploads(server: S3Endpoint, prefix: str) -> list[str]:
    """Return the keys below a prefix whose uploads were started but not finished."""
    host = urlsplit(server.endpoint).netloc
    query = f"prefix={quote(prefix, safe='')}&uploads="
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    headers = {"host": host, "x-amz-content-sha256": _EMPTY_BODY, "x-amz-date": stamp}
    signed = ";".join(headers)
    lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
    canonical = "\n".join(["GET", f"/{server.bucket}", query, lines, signed, _EMPTY_BODY])
    scope = f"{stamp[:8]}/{server.region}/s3/aws4_request"
    secret = f"AWS4{server.secret_key}".encode()
    for part in scope.split("/"):
        secret = hmac.digest(secret, part.encode(), "sha256")
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    text = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{digest}"
    signature = hmac.digest(secret, text.encode(), "sha256").hex()
    headers["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={server.access_key}/{scope},"
        f"SignedHeaders={signed},Signature={signature}"
    )
    connection = http.client.HTTPConnection(host, timeout=10.0)
    try:
        connection.request("GET", f"/{server.bucket}?{query}", headers=headers)
        answer = connection.getresponse()
        body = answer.read().decode()
        assert answer.status == http.HTTPStatus.OK, body
    finally:
        connection.close()
    return re.findall("<Upload>.*?<Key>(.*?)</Key>", body, re.DOTALL)
