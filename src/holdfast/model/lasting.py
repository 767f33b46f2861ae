"""Lasting: which failures a retry would meet again, and which may pass.

An error's `retry_safe` depends on this, and schedulers obey it. A failure known to last (a refused
login, a bucket that does not exist, a bug in the user's code) is not worth a retry. Everything
else may pass: an unknown error is worth a retry, because finished rows are kept and a scheduler
bounds its retries, while a job that gives up on a passing failure waits for a person.

Library errors are named by text, so that no library has to be imported.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable

from holdfast.errors import HoldfastError
from holdfast.text import error_chain

Named = type[BaseException] | int | str

RATE_LIMITED = 429
# Classes, HTTP status codes, and dotted names of classes.
PASSING: tuple[Named, ...] = (
    408,
    RATE_LIMITED,
    500,
    502,
    503,
    504,
    529,
    ConnectionError,
    TimeoutError,
    asyncio.TimeoutError,
    "httpx.TransportError",
    "aiohttp.client_exceptions.ClientConnectionError",
    "requests.exceptions.ConnectionError",
    "requests.exceptions.Timeout",
    "openai.APIConnectionError",
    "anthropic.APIConnectionError",
)
# 4xx answers that a retry may not get: for example a conflict, a lock, too early.
_PASSING_REFUSALS = (408, 409, 421, 423, 425, RATE_LIMITED)
_REFUSALS = range(400, 500)

# What Python raises for mistakes in code and arguments; bad paths are below.
_MISTAKES: tuple[type[BaseException], ...] = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    NotImplementedError,
    RecursionError,
    SyntaxError,
    TypeError,
    ValueError,
)
_BAD_PATHS = (PermissionError, NotADirectoryError, IsADirectoryError)
# A model's answer that cannot be parsed: the next one may be different.
_UNSETTLED: tuple[Named, ...] = (
    json.JSONDecodeError,
    "pydantic_core._pydantic_core.ValidationError",
    "jsonschema.exceptions.ValidationError",
)

# Lasting errors of catalogs and stores.
_LASTING: tuple[Named, ...] = (
    "pyiceberg.exceptions.BadRequestError",
    "pyiceberg.exceptions.ForbiddenError",
    "pyiceberg.exceptions.NotInstalledError",
    "pyiceberg.exceptions.OAuthError",
    "pyiceberg.exceptions.UnauthorizedError",
    "pyiceberg.exceptions.ValidationError",
    "requests.exceptions.InvalidSchema",
    "requests.exceptions.InvalidURL",
    "requests.exceptions.MissingSchema",
    "sqlalchemy.exc.ArgumentError",
    "sqlalchemy.exc.NoSuchModuleError",
    "sqlalchemy.exc.ProgrammingError",
    "botocore.exceptions.NoCredentialsError",
    "botocore.exceptions.NoRegionError",
    "botocore.exceptions.ParamValidationError",
    "botocore.exceptions.ProfileNotFound",
)
# An expired token is a passing failure: the next process reads a new one.
_PASSING_TEXT = re.compile(
    "ExpiredToken|TokenRefreshRequired|RequestExpired|RequestTimeout|SlowDown|Throttl|"
    "TooManyRequests|RequestLimitExceeded|RequestTimeTooSkewed|"
    "[Tt]oken (?:has |is )?expired|Lifetime validation failed|"
    "not valid in the specified time frame|UnknownHostException|ConnectException|"
    "SocketTimeout|Connection re(?:fused|set)"
)
_LASTING_TEXT = re.compile(
    r"\b(?:401 Unauthorized|403 Forbidden|405 Method Not Allowed|501 Not Implemented)\b|"
    r"\b(?:AccessDenied(?:Exception)?|AccountProblem|AllAccessDisabled|AuthenticationFailed|"
    r"AuthorizationFailure|AuthorizationHeaderMalformed|InvalidAccessKeyId|InvalidBucketName|"
    r"InvalidClientTokenId|InvalidToken|NoSuchBucket|NoSuchContainer|PermissionDenied|"
    r"SignatureDoesNotMatch|UnrecognizedClientException|XAdminUserNotFound)\b|"
    # EPERM, EACCES, ENOTDIR, EISDIR, EROFS, ENAMETOOLONG.
    r"\(os error (?:1|13|20|21|30|36)\)|"
    r"builder error|relative URL without a base|InvalidUri|CERTIFICATE_VERIFY_FAILED|"
    r"invalid peer certificate|"
    # PostgreSQL, SQLite.
    r"authentication failed|[Pp]ermission denied|unable to open database file"
)


def names(kinds: Iterable[Named], error: BaseException) -> bool:
    """Whether an error matches a list of classes, HTTP status codes and dotted names."""
    status = status_of(error)
    classes = {f"{cls.__module__}.{cls.__qualname__}" for cls in type(error).__mro__}
    for kind in kinds:
        if isinstance(kind, str):
            if kind in classes:
                return True
        elif isinstance(kind, int):
            if status == kind:
                return True
        elif isinstance(error, kind):
            return True
    return False


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status that an error carries, as httpx, requests, openai or aiohttp do."""
    for holder in (getattr(error, "response", None), error):
        for name in ("status_code", "status"):
            status = getattr(holder, name, None)
            if isinstance(status, int):
                return status
    return None


def lasts(error: BaseException) -> bool:
    """Whether a store or catalog would answer the same call in the same way later."""
    if isinstance(known := getattr(error, "lasts", None), bool):
        return known  # A `StorageError`, which was classified where it was raised.
    if passes_by_text(str(error)):
        return False
    if names(_LASTING, error):
        return True
    if names(PASSING, error) and "CERTIFICATE_VERIFY_FAILED" not in str(error):
        return False
    if isinstance(error, (*_BAD_PATHS, AttributeError, TypeError)) or _is_refusal(error):
        return True
    return text_lasts(str(error))


def text_lasts(text: str) -> bool:
    """Whether the message of a store or catalog is known to mean a lasting failure."""
    return not passes_by_text(text) and _LASTING_TEXT.search(text) is not None


def passes_by_text(text: str) -> bool:
    """Whether the message of a store, catalog or client is known to mean a passing failure."""
    return _PASSING_TEXT.search(text) is not None


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - it is the user's own code.
        return ""


def code_lasts(error: BaseException) -> bool:
    """Whether the user's own code would fail in the same way if it ran again.

    It would if it raised what Python raises for mistakes, or a client's refusal (HTTP 4xx), or
    raised another error from one of these. It would not if a passing error led to it.
    """
    if any(names(PASSING, cause) for cause in error_chain(error)):
        return False
    for cause in error_chain(error, handled=False):
        if names(_UNSETTLED, cause) or passes_by_text(_text(cause)):
            return False
        if isinstance(cause, HoldfastError):
            return not cause.retry_safe
        if isinstance(cause, (*_MISTAKES, *_BAD_PATHS, FileNotFoundError)) or _is_refusal(cause):
            return True
    return False


def _is_refusal(error: BaseException) -> bool:
    status = status_of(error)
    return status in _REFUSALS and status not in _PASSING_REFUSALS
