"""From a URI and Iceberg's FileIO properties to an obstore store.

All storage options use the names of Iceberg's own FileIO (`s3.endpoint`, `s3.access-key-id`, ...).
What is not given comes from the environment's credential chain.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote, urlsplit

import obstore.store

from holdfast.errors import SettingsError
from holdfast.storage import credentials
from holdfast.text import has_password

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore, RetryConfig, S3Config

_S3_CONFIG = {
    "s3.endpoint": "endpoint",
    "s3.access-key-id": "access_key_id",
    "s3.secret-access-key": "secret_access_key",
    "s3.session-token": "session_token",
    "s3.region": "region",
    "client.region": "region",
    "client.access-key-id": "access_key_id",
    "client.secret-access-key": "secret_access_key",
    "client.session-token": "session_token",
}
_S3_FLAGS = ("s3.force-virtual-addressing", "s3.path-style-access", "s3.anonymous")
_S3_SCHEMES = ("s3", "s3a", "s3n")

# A hung connection must end in an error: the ledger reads back after any outcome.
_CLIENT_OPTIONS: ClientConfig = {"timeout": "60s", "connect_timeout": "10s", "allow_http": True}
# The client waits a random time between 0.1 s and a limit that doubles, so that a thousand tasks
# do not retry at once. After the deadline it does not retry, however many retries are left.
_RETRY_CONFIG: RetryConfig = {
    "max_retries": 5,
    "retry_timeout": timedelta(minutes=2),
    "backoff": {
        "init_backoff": timedelta(milliseconds=100),
        "max_backoff": timedelta(seconds=15),
        "base": 2,
    },
}


def normalise(uri: str) -> str:
    """Return a location as an absolute URI without a trailing slash.

    Args:
        uri: A URI, or an absolute path of the local file system.

    Raises:
        SettingsError: The path is relative, its scheme is not supported, or it holds a password.
    """
    if "://" not in uri:
        if uri.startswith("file:/"):  # Java writes file:/folder.
            uri = f"file://{uri[5:]}"
        elif uri.startswith("/"):
            uri = f"file://{uri}"
        else:
            raise SettingsError(
                what=f"{uri!r} is neither a URI nor an absolute path",
                cure="give a URI such as s3://bucket/folder, or an absolute path such as "
                f"{Path(uri).absolute()}",
            )
    if uri.startswith("file://") and not uri.startswith("file:///") and uri != "file://":
        # The part after two slashes is a host. Some calls would take it for a folder, others not.
        raise SettingsError(
            what=f"{uri!r} is not an absolute path", cure=f"give file://{Path(uri[7:]).absolute()}"
        )
    if has_password(uri):
        # The ledger, messages and reports name locations.
        raise SettingsError(
            what=f"{uri!r} contains a password",
            cure="pass credentials as storage options or through the environment",
        )
    whole = uri.rstrip("/")
    if ".." in whole.split("/"):
        raise SettingsError(
            what=f"{uri!r} leads up again by '..'", cure="name the folder that is meant"
        )
    if whole.endswith(":"):
        raise SettingsError(what=f"{uri!r} names no folder", cure="name a folder")
    return whole


def split(uri: str) -> tuple[str, str]:
    """Return the root that one store serves (`s3://bucket`, `file://`) and the key within it."""
    uri = normalise(uri)
    scheme, _, rest = uri.partition("://")
    if scheme == "file":
        return "file://", rest.lstrip("/")
    bucket, _, key = rest.partition("/")
    return f"{scheme}://{bucket}", key


class Options(tuple[tuple[str, str], ...]):
    """Storage options, sorted; only their names are shown."""

    __slots__ = ()

    def __repr__(self) -> str:
        """Show only the names: debuggers and tracebacks with locals print this."""
        return f"Options({', '.join(name for name, _ in self)})"


def storage_options(options: Mapping[str, str]) -> Options:
    """Return the options that storage knows, sorted; a catalog's properties hold many more."""
    known = {*_S3_CONFIG, *_S3_FLAGS, credentials.OPTION}
    return Options(sorted((k, v) for k, v in options.items() if k in known))


def is_plain_http(options: Mapping[str, str]) -> bool:
    """Whether objects travel without TLS, which would detect bytes corrupted in transit."""
    return options.get("s3.endpoint", "").lower().startswith("http://")


def open_root(
    root: str, options: Mapping[str, str], vendor: credentials.Vendor | None = None
) -> ObjectStore:
    """Open the store behind one root.

    Args:
        root: A root from `split`.
        options: The options from `storage_options`.
        vendor: The vendor of keys for it, if there is one.

    Raises:
        SettingsError: The scheme is not supported.
    """
    scheme = root.partition("://")[0]
    if scheme == "file":
        return obstore.store.LocalStore("/")
    if scheme in _S3_SCHEMES:
        return obstore.store.S3Store(
            urlsplit(root).netloc,
            config=_s3_config(options),
            client_options=_CLIENT_OPTIONS,
            retry_config=_RETRY_CONFIG,
            credential_provider=credentials.provider(options, vendor),
        )
    if scheme in ("gs", "abfs", "abfss", "az"):
        return obstore.store.from_url(
            unquote(root), client_options=_CLIENT_OPTIONS, retry_config=_RETRY_CONFIG
        )
    raise SettingsError(
        what=f"the scheme of {root!r} is not supported",
        cure="use s3://, gs://, abfss:// or file://",
    )


def _s3_config(options: Mapping[str, str]) -> S3Config:
    config: dict[str, Any] = {
        ours: options[theirs] for theirs, ours in _S3_CONFIG.items() if options.get(theirs)
    }
    if options.get("s3.force-virtual-addressing", "false").lower() == "true":
        config["virtual_hosted_style_request"] = True
    if options.get("s3.path-style-access", "").lower() == "false" and "endpoint" not in config:
        config["virtual_hosted_style_request"] = True
    if options.get("s3.anonymous", "false").lower() == "true":
        config["skip_signature"] = True
    return cast("S3Config", config)
