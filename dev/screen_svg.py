"""Screens of a terminal as SVG: one of them, or many as a film that needs no script to run."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence

from rich.ansi import AnsiDecoder
from rich.console import Console

_FONT = "ui-monospace,SFMono-Regular,Menlo,'DejaVu Sans Mono',monospace"
_CUT = "<!-- cut -->"
_PARTS = _CUT.join(["{styles}", "{backgrounds}{matrix}"])
# How large rich draws a letter.
_COLUMN, _LINE = 12.2, 24.4
# Nothing has to be clipped, and a line's end needs no text element.
_NEEDLESS = re.compile(r' clip-path="[^"]*"|<text [^>]*>\n</text>')
_PAGE = """<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
text {{ font: 20px {font}; white-space: pre }}
{styles}
</style>
<rect width="{width}" height="{height}" rx="8" fill="#292929"/>
<g transform="translate(12,8)">
{body}
</g>
</svg>
"""


def picture(screen: Sequence[str], columns: int) -> str:
    """Return one screen as SVG."""
    styles, body = _draw(screen, columns, "a")
    return _page(styles, body, columns, len(screen))


def film(frames: Sequence[tuple[float, Sequence[str]]], columns: int, rows: int) -> str:
    """Return screens as an SVG that shows one after the other in a loop.

    Args:
        frames: How long each screen is shown, in seconds, and what is on it.
        columns: How wide the terminal is.
        rows: How high it is.
    """
    total = sum(seconds for seconds, _ in frames)
    styles, bodies, began = [], [], 0.0
    for number, (seconds, screen) in enumerate(frames):
        name = f"f{number}"
        style, body = _draw(screen, columns, name)
        begin, end = 100 * began / total, 100 * (began + seconds) / total
        # Steps instead of transitions: nothing fades, and exactly one screen is visible at a time.
        styles.append(
            f"{style}\n@keyframes {name} {{ 0% {{ visibility: hidden }} "
            f"{begin:.3f}% {{ visibility: visible }} {end:.3f}% {{ visibility: hidden }} }}\n"
            f"#{name} {{ visibility: hidden; animation: {name} {total:.1f}s step-end infinite }}"
        )
        bodies.append(f'<g id="{name}">{body}</g>')
        began += seconds
    return _page("\n".join(styles), "\n".join(bodies), columns, rows)


def _draw(screen: Sequence[str], columns: int, name: str) -> tuple[str, str]:
    console = Console(
        file=io.StringIO(),
        record=True,
        width=columns,
        force_terminal=True,
        color_system="truecolor",
    )
    decoder = AnsiDecoder()
    for line in screen:
        text = decoder.decode_line(line)
        text.rstrip()
        console.print(text, no_wrap=True, crop=True)
    drawn = console.export_svg(code_format=_PARTS, unique_id=name)
    styles, body = drawn.split(_CUT)
    return styles, _NEEDLESS.sub("", body)


def _page(styles: str, body: str, columns: int, rows: int) -> str:
    width, height = round(_COLUMN * columns + 24), round(_LINE * rows + 24)
    return _PAGE.format(width=width, height=height, font=_FONT, styles=styles, body=body)
