"""Charts: the parts of pygal that are used, axis ticks, and SVG in the colours of the page.

pygal leaves a module finder behind, for map plugins. It has no `find_spec`, which breaks later
imports in Python 3.12 and pytest. So it is removed again.

What pygal adds for a standalone file (scripts, styles, comments, ids) is removed too.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from itertools import count
from math import floor, log10
from typing import Any

from pygal import XY, Bar, HorizontalStackedBar
from pygal.etree import etree
from pygal.style import Style

# ---- The parts of pygal that are used, and the only place where it is imported

__all__ = ["XY", "Bar", "HorizontalStackedBar", "Style", "etree"]

sys.meta_path[:] = [one for one in sys.meta_path if hasattr(one, "find_spec")]


# ---- Ticks: the round numbers at the axes of a plot

_DAY_S = 86_400
# Steps in which people count time.
_TIMES_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200)
_MOST = 6
# The width in pixels of a label such as `1 min 30`.
_TIME_WIDTH = 95
_KILO, _MILLION = 1_000, 1_000_000
_MINUTE_S, _HOUR_S = 60, 3_600


def number_ticks(top: float) -> list[float]:
    """Return round numbers from 0 to at least the top."""
    if top <= 0:
        return [0.0, 1.0]
    power = 10.0 ** floor(log10(top / (_MOST - 1)))
    step = next(power * one for one in (1, 2, 5, 10) if power * one * (_MOST - 1) >= top)
    return _up_to(top, max(step, 1.0))


def time_ticks(top: float, width: int) -> list[float]:
    """Return round times from 0 to at least the top, in seconds.

    Args:
        top: The longest time.
        width: How many pixels wide the drawing is.
    """
    if top < _TIMES_S[0]:
        return [0.0, 0.5, 1.0]
    step = next((one for one in _TIMES_S if one * (width // _TIME_WIDTH) >= top), 0)
    if step:
        return _up_to(top, step)
    return [day * _DAY_S for day in number_ticks(top / _DAY_S)]


def short_number(value: float) -> str:
    """Return a number in short form: `1.5M`."""
    if value >= _MILLION:
        return f"{value / _MILLION:,.4g}M"
    if value >= 10 * _KILO:
        return f"{value / _KILO:,.4g}k"
    return f"{value:,.4g}" if value < _KILO else f"{value:,.0f}"


def short_time(seconds: float) -> str:
    """Return a time in short form: `1 h 30`."""
    if seconds < _MINUTE_S:
        return f"{seconds:g} s"
    if seconds < _HOUR_S:
        minutes, rest = divmod(round(seconds), _MINUTE_S)
        return f"{minutes} min {rest}" if rest else f"{minutes} min"
    if seconds < _DAY_S:
        hours, rest = divmod(round(seconds) // _MINUTE_S, 60)
        return f"{hours} h {rest}" if rest else f"{hours} h"
    return f"{seconds / _DAY_S:g} d"


def _up_to(top: float, step: float) -> list[float]:
    found = [0.0]
    while found[-1] < top:
        found.append(len(found) * step)
    return found


# ---- Drawing: pygal charts as SVG for inclusion in a page, which supplies the colours

_FONT_SIZE = 13
_LONG_NUMBER = re.compile(r"-?\d+\.\d{2,}")
_COLOUR = re.compile(r"\bcolor-(\d+)")
_PLACES = ("d", "x", "y", "x1", "x2", "y1", "y2", "cx", "cy", "width", "height", "transform")
# These colours are never visible: the page has its own. pygal wants one for each series.
_STYLE = Style(
    colors=("#000",) * 32,
    value_colors=("#000",) * 32,
    label_font_size=_FONT_SIZE,
    major_label_font_size=_FONT_SIZE,
    title_font_size=_FONT_SIZE,
)
_names = count(1)


# For a wide page, and for a phone.
WIDE = ((1120, 300), (520, 300))


def settings(width: int, height: int) -> dict[str, Any]:
    """Return the settings that all charts share.

    Args:
        width: The width of the drawing. On the page it fills the available width.
        height: The height of the drawing.
    """
    return {
        "width": width,
        "height": height,
        "style": _STYLE,
        "css": (),
        "js": (),
        "show_legend": False,
        "margin": 4,
        "margin_right": 18,
        "spacing": 8,
        "truncate_label": -1,
        "include_x_axis": True,
        "no_data_text": "",
    }


def svg_of(chart: Any, *, title: str, text: str, colours: Sequence[str]) -> str:  # noqa: ANN401 - pygal has no types.
    """Draw a chart and return it as an SVG element.

    Args:
        chart: A pygal chart.
        title: What a screen reader says first.
        text: What a screen reader says next: a description of the chart.
        colours: The name of each series' colour in the page's style sheet.
    """
    root = chart.render_tree()
    for parent in list(root.iter()):
        for child in list(parent):
            if not _is_drawn(parent, child):
                parent.remove(child)
    for node in root.iter():
        node.attrib.pop("id", None)
        for place in _PLACES:
            if place in node.attrib:
                node.attrib[place] = _LONG_NUMBER.sub(_rounded, node.attrib[place])
        if "class" in node.attrib:
            node.set("class", _COLOUR.sub(lambda m: f"ink-{colours[int(m[1])]}", node.get("class")))
    _name_values(root)
    _describe(root, f"plot-{next(_names)}", {"title": title, "desc": text})
    found: str = etree.tostring(root, encoding="unicode")
    return found


def _is_drawn(parent: Any, child: Any) -> bool:  # noqa: ANN401 - elements of the library below pygal.
    """Whether an element is visible, and not only there for pygal's own scripts and styles."""
    if not isinstance(child.tag, str) or child.tag in {"defs", "script"}:
        return False
    if child.tag == "title":  # The labels of an axis say the same.
        return bool(parent.get("class") != "guides")
    return child.get("class") not in {"background", "plot tooltip-overlay"}


def _rounded(number: re.Match[str]) -> str:
    return f"{float(number[0]):.1f}"


def _name_values(root: Any) -> None:  # noqa: ANN401 - an element of whichever library pygal uses.
    """Turn what pygal stores for its scripts into titles that browsers show on their own."""
    for parent in list(root.iter("g")):
        told = {node.get("class", "").split(" ")[0]: node.text for node in parent.findall("desc")}
        for node in parent.findall("desc"):
            parent.remove(node)
        if told.get("value"):
            words: Sequence[str] = [one for one in (told.get("x_label"), told["value"]) if one]
            title = etree.Element("title")
            title.text = ": ".join(words)
            parent.insert(0, title)


def _describe(root: Any, name: str, texts: Mapping[str, str]) -> None:  # noqa: ANN401 - as above.
    for node in root.findall("title"):
        root.remove(node)
    for number, (tag, text) in enumerate(texts.items()):
        node = etree.Element(tag, {"id": f"{name}-{tag}"})
        node.text = text
        root.insert(number, node)
    root.set("role", "img")
    root.set("aria-labelledby", " ".join(f"{name}-{tag}" for tag in texts))
