"""Text for people: the durations that they write, and output that is safe on a terminal."""

from __future__ import annotations

import time
import traceback
import unicodedata
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast import text
from holdfast.errors import CatalogUnavailableError
from holdfast.text import has_password, printable, reason_and_cause, seconds_of, without_passwords


# ---- Durations: what people write, in seconds, or an error that repeats it
@pytest.mark.parametrize(
    ("duration", "seconds"),
    [
        ("30s", 30.0),
        ("5 min", 300.0),
        ("1h", 3600.0),
        (" 2 D ", 172_800.0),
        ("250ms", 0.25),
        ("1.5m", 90.0),
        ("10 sec", 10.0),
        (45, 45.0),
        (0.5, 0.5),
        (timedelta(minutes=2), 120.0),
    ],
)
def test_a_duration_is_read_in_seconds(duration: str | float | timedelta, seconds: float) -> None:
    """Texts with a unit, plain numbers of seconds and timedeltas all mean the same."""
    assert seconds_of(duration) == seconds


@pytest.mark.parametrize(
    "duration",
    ["", "30", "s", "half an hour", "1h 30m", "-5s", "5 parsecs", "1e3s", "nan", "inf s", "1.s"],
)
def test_a_text_that_is_not_a_duration_is_refused_and_repeated(duration: str) -> None:
    """A number without a unit is refused too, because its unit would be a guess."""
    with pytest.raises(ValueError, match="is not a duration") as caught:
        seconds_of(duration)
    assert repr(duration) in str(caught.value)


@pytest.mark.parametrize(
    "duration",
    [0, -1, 0.0, "0s", timedelta(0), timedelta(seconds=-1), float("nan"), float("inf")],
)
def test_a_duration_that_is_not_positive_and_finite_is_refused(
    duration: str | float | timedelta,
) -> None:
    """A checkpoint every zero seconds, or never, is never intended."""
    with pytest.raises(ValueError, match="is not a positive, finite duration"):
        seconds_of(duration)


# ---- Plain text: what people see cannot control a terminal and holds no password
CANARY = "canary-7f3a"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("orders-2026-11-14T00:00:00+00:00", "orders-2026-11-14T00:00:00+00:00"),
        ("größe 😀 [red]", "größe 😀 [red]"),
        ("a\nb\r\tc", r"a\nb\r\tc"),
        ("\x1b[2J\x07\x9b31m\x7f", r"\x1b[2J\x07\x9b31m\x7f"),
        ("\u202egnp.exe\u2066\u200b", r"\u202egnp.exe\u2066\u200b"),
        ("\u2028\ufeff\U000e0001\ud800", r"\u2028\ufeff\U000e0001\ud800"),
    ],
)
def test_what_a_terminal_would_act_on_is_escaped(text: str, shown: str) -> None:
    """All other text is left as it is."""
    assert printable(text) == shown


def test_no_character_that_is_shown_controls_a_terminal() -> None:
    """The planes that hold such characters: no control, direction mark or line end is left."""
    codes = (*range(0x20000), *range(0xE0000, 0xE0200))
    shown = "".join(printable(chr(code)) for code in codes)
    kinds = {unicodedata.category(char) for char in shown}
    assert kinds & {"Cc", "Cf", "Cs", "Zl", "Zp"} == set()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://me:{}@host:9000/x", "http://me:***@host:9000/x"),
        ("'postgresql+psycopg2://me:{}@db/lake' failed", "'postgresql+psycopg2://me:***@db/lake'"),
        ("for 'htp:/me:{}@x/v1/config'", "for 'htp:/me:***@x/v1/config'"),
        ("redis://:{}@host", "redis://:***@host"),
        ("http://me:{}/with/slashes@host/x", "http://me:***@host/x"),
        ("https://host/x?X-Amz-Signature={}&part=1", "?X-Amz-Signature=***&part=1"),
        ("https://host/x?sv=1&sig={}", "sv=1&sig=***"),
        ("sc://host:15002/;token={};user_id=me", ";token=***;user_id=me"),
        ("jdbc:postgresql://db/x?user=me&password={}", "user=me&password=***"),
    ],
)
def test_a_secret_inside_a_url_is_cut_out(text: str, shown: str) -> None:
    """What is left still names the host and the user."""
    found = without_passwords(text.format(CANARY))
    assert CANARY not in found
    assert shown in found


@pytest.mark.parametrize(
    "text",
    [
        "s3://bucket/runs/2026-11-14T00:00:00@x",
        "abfss://container@account.dfs.core.windows.net/folder: refused",
        "http://127.0.0.1:9000/path?mail=a@b",
        "give --option s3.access-key-id=..., and --catalog token=@env:NAME",
        "ask a@b.c at 10:30",
    ],
)
def test_what_is_not_a_secret_stays(text: str) -> None:
    """A port is not a password, a container is not a login, and advice stays readable."""
    assert without_passwords(text) == text
    assert not has_password(text)


def test_a_long_text_does_not_take_long() -> None:
    """An error may contain a server's whole answer."""
    began = time.process_time()
    without_passwords("://a:" * 20_000 + "x" * 100_000 + "?key" * 20_000)
    assert time.process_time() - began < 5


def failed_catalog(text: str) -> CatalogUnavailableError:
    """Return our error for a library's error, which has another one behind it."""
    options = {"credential": f"me:{CANARY}-1", "uri": f"db://me:{CANARY}-2@h", "type": "rest"}
    options |= {"auth": {"basic": {"password": f"{CANARY}-3"}}}  # type: ignore[dict-item]
    error = RuntimeError("no answer\nand much more")
    error.__context__ = ValueError(text)
    reason, cause = reason_and_cause(error, options)
    failed = CatalogUnavailableError(table="t", reason=reason)
    failed.__cause__, failed.__context__ = cause, error  # As `raise failed from cause` does.
    return failed


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_traceback_ends_where_it_would_show_a_secret(number: int) -> None:
    """Whatever the library repeats of its settings, and however deep in the chain."""
    error = failed_catalog(f"denied: {CANARY}-{number}")
    assert CANARY not in "".join(traceback.format_exception(error))
    assert error.reason == "RuntimeError: no answer"


def test_a_traceback_without_a_secret_is_whole() -> None:
    """Users need it to debug."""
    shown = "".join(traceback.format_exception(failed_catalog("type is rest")))
    assert "ValueError: type is rest" in shown


def test_settings_that_are_not_secret_stay_in_an_error() -> None:
    """Users look for the address that did not answer."""
    options = {
        "oauth2-server-uri": "https://login.example/token",
        "warehouse": "abfss://container@account.dfs.core.windows.net/lake",
        "token-refresh-enabled": "true",
        "s3.endpoint": "http://host:9000",
    }
    for value in options.values():
        error = OSError(f"no answer: {value}")
        assert reason_and_cause(error, options) == (f"OSError: no answer: {value}", error)


def test_a_warning_names_the_line_outside_the_package() -> None:
    """However deep the call is; a sibling folder with the same prefix counts as outside."""
    package = Path(text.__file__).parent
    inner = compile("def deep(): warn_caller('look')", str(package / "engine" / "deep.py"), "exec")
    user = compile("\ndef job(): deep()", f"{package}_jobs/job.py", "exec")
    names: dict[str, Any] = {"warn_caller": text.warn_caller}
    exec(inner, names)  # noqa: S102 - the code is above.
    exec(user, names)  # noqa: S102
    with pytest.warns(UserWarning, match="look") as caught:
        names["job"]()
    assert (caught[0].filename, caught[0].lineno) == (f"{package}_jobs/job.py", 2)
