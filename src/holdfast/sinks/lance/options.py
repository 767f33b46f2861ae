"""Storage options of a Lance dataset: in Lance's names for Lance, in ours for everything else.

Users of Lance have theirs in object_store's names (`aws_endpoint`, `aws_access_key_id`, ...),
users of Iceberg in Iceberg's (`s3.endpoint`, ...). Both are understood.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.storage import credentials

# Iceberg's name, Lance's, and what else Lance calls it.
_NAMES = (
    ("s3.endpoint", "aws_endpoint", "endpoint", "aws_endpoint_url", "endpoint_url"),
    ("s3.region", "aws_region", "region", "default_region", "aws_default_region", "client.region"),
    ("s3.access-key-id", "aws_access_key_id", "access_key_id", "client.access-key-id"),
    (
        "s3.secret-access-key",
        "aws_secret_access_key",
        "secret_access_key",
        "client.secret-access-key",
    ),
    (
        "s3.session-token",
        "aws_session_token",
        "session_token",
        "aws_token",
        "token",
        "client.session-token",
    ),
)
_ICEBERGS = {other: one[0] for one in _NAMES for other in one}
_LANCES = {one[0]: one[1] for one in _NAMES}


def for_storage(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options in the names of Holdfast's own storage."""
    return {_ICEBERGS.get(name.lower(), name): value for name, value in options.items()}


def for_lance(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options in Lance's names, with the newest credentials where they can be asked for.

    Raises:
        SettingsError: The function that gives credentials cannot be used.
        StorageError: It gives none for now.
    """
    ours = for_storage(options)
    found = {
        _LANCES.get(name, name): value for name, value in ours.items() if name != credentials.OPTION
    }
    if found.get("aws_endpoint", "").startswith("http://"):
        found.setdefault("allow_http", "true")
    if ours.get("s3.anonymous", "").lower() == "true":
        found["aws_skip_signature"] = "true"
    provider = credentials.provider(ours)
    if provider is not None:
        given = provider()
        found["aws_access_key_id"] = given["access_key_id"]
        found["aws_secret_access_key"] = given["secret_access_key"]
        if token := given.get("token"):
            found["aws_session_token"] = token
    return {name: value for name, value in found.items() if not name.startswith("s3.")}
