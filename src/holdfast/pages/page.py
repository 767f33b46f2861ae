"""The page: one file of HTML with everything in it, to be opened, sent, kept, or printed."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from datetime import datetime, timezone
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from holdfast._version import __version__
from holdfast.model.report import readable_time
from holdfast.pages.curve import END_WORDS
from holdfast.pages.facts import Facts, tiles_of
from holdfast.pages.plots import plots_of, whole_bar
from holdfast.palette import INKS
from holdfast.text import printable, without_passwords

_DIGEST_LENGTH = 8
# How many tiles there are in a row at most: on a wide page, on a narrower one, on a phone.
_TILES_MAX = (6, 4, 2)


def page_of(facts: Facts) -> str:
    """Return the page about a run, as HTML."""
    facts = _printable(facts)
    tiles = tiles_of(facts.totals)
    return _template().render(
        facts=facts,
        inks=INKS,
        whole=whole_bar(facts.totals),
        tiles=list(zip(tiles, tile_places(len(tiles)), strict=True)),
        plots=plots_of(facts),
        end_words={**END_WORDS, "": _open_end(facts)},
        version=__version__,
        digest_length=_DIGEST_LENGTH,
    )


def tile_places(tiles: int) -> list[tuple[int, ...]]:
    """Return for each tile how many share its row: on a wide page, on a narrower one, on a phone.

    Every row is full. Rows differ by at most one tile, and those with fewer come first.

    Args:
        tiles: How many there are.
    """
    return list(zip(*(_rows_of(tiles, most) for most in _TILES_MAX), strict=True))


def _rows_of(tiles: int, most: int) -> list[int]:
    rows = -(-tiles // most)
    sizes = [(tiles + number) // rows for number in range(rows)]
    return [size for size in sizes for _ in range(size)]


def _printable(value: Any) -> Any:  # noqa: ANN401 - facts of any kind.
    """Return facts in which every text can be shown; XML, for one, has no control characters.

    Autoescape keeps texts from being HTML, and this keeps them from changing the text direction.
    """
    if isinstance(value, str):
        return printable(without_passwords(value))
    if isinstance(value, list | tuple):
        return type(value)(_printable(item) for item in value)
    if isinstance(value, dict):
        return {_printable(name): _printable(item) for name, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return replace(
            value, **{fact.name: _printable(getattr(value, fact.name)) for fact in fields(value)}
        )
    return value


@cache
def _template() -> Template:
    pages = Environment(
        loader=PackageLoader("holdfast", "pages"),
        # Run ids, hosts, errors and keys come from users and programs: they are never HTML.
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages.filters |= {"moment": _moment, "clock": _clock, "time": readable_time}
    return pages.get_template("page.html.j2")


def _open_end(facts: Facts) -> str:
    return {"running": "at work", "staged": "silent"}.get(facts.head.word, facts.head.word)


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


def _clock(at: float, since: float) -> str:
    """Return a time for a table, without the date if it is the same as the first one's."""
    moment = datetime.fromtimestamp(at, timezone.utc)
    same = moment.date() == datetime.fromtimestamp(since, timezone.utc).date()
    return moment.strftime("%H:%M:%S" if same else "%m-%d %H:%M:%S")
