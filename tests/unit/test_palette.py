"""The palette: enough contrast on both backgrounds; four colours that differ for every sight."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from rich.color import ANSI_COLOR_NAMES

from holdfast.model.history import RunState
from holdfast.palette import (
    CARD,
    FAILED,
    GROUND,
    INKS,
    KEPT,
    MEANINGS,
    NEW,
    PLAIN,
    SOFT,
    STATES,
    TEXT,
    Ink,
)

IMAGES = Path(__file__).parents[2] / "docs" / "img"
THEMES = ("light", "dark")
# How linear RGB is seen without one kind of cone (Machado, Oliveira and Fernandes, 2009).
SIGHT = {
    "all": np.eye(3),
    "no red": [[0.1523, 1.0526, -0.2049], [0.1145, 0.7863, 0.0992], [-0.0039, -0.0481, 1.0520]],
    "no green": [[0.3673, 0.8606, -0.2280], [0.2801, 0.6725, 0.0474], [-0.0118, 0.0429, 0.9689]],
    "no blue": [[1.2555, -0.0767, -0.1788], [-0.0784, 0.9308, 0.1476], [0.0047, 0.6914, 0.3039]],
}
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def linear(colour: str) -> np.ndarray:
    """Return the light of a colour such as `#1240a0`."""
    parts = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours, as WCAG 2 defines it."""
    low, high = sorted(float(XYZ[1] @ linear(colour)) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


def lab(light: np.ndarray) -> np.ndarray:
    """Return a colour in CIELAB, in which distances are those that people see."""
    scaled = XYZ @ np.clip(light, 0, 1) / XYZ.sum(axis=1)
    x, y, z = np.where(scaled > 0.008856, np.cbrt(scaled), 7.787 * scaled + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("ink", [*MEANINGS, TEXT, SOFT, PLAIN], ids=lambda ink: ink.name)
def test_text_in_each_colour_is_read_on_both_backgrounds(ink: Ink, theme: str) -> None:
    """At least 4.5:1, which is also more than the 3:1 that areas need."""
    for ground in (CARD, GROUND):
        assert contrast(getattr(ink, theme), getattr(ground, theme)) >= 4.5


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("sight", SIGHT)
def test_the_four_meanings_differ_for_every_sight(theme: str, sight: str) -> None:
    """A distance of 20 is seen at a glance; 2 is just about seen."""
    for one, other in combinations(MEANINGS, 2):
        seen = [lab(SIGHT[sight] @ linear(getattr(ink, theme))) for ink in (one, other)]
        assert np.linalg.norm(seen[0] - seen[1]) >= 20, (one.name, other.name)


def test_names_are_unique_and_terminals_know_their_colours() -> None:
    """Each name is a variable of the page's style sheet."""
    assert len({ink.name for ink in INKS}) == len(INKS)
    assert {ink.terminal for ink in MEANINGS} <= set(ANSI_COLOR_NAMES)
    assert len({ink.terminal for ink in MEANINGS}) == len(MEANINGS)


def test_each_state_of_a_run_has_a_colour() -> None:
    """A state that is added later is not left without one."""
    assert set(get_args(RunState)) <= set(STATES)


@pytest.mark.parametrize("theme", THEMES)
def test_the_drawing_of_the_documentation_has_the_same_colours(theme: str) -> None:
    """What was kept, what is new, and the kill."""
    drawing = (IMAGES / f"a-run-{theme}.svg").read_text()
    for ink in (KEPT, NEW, FAILED):
        assert getattr(ink, theme) in drawing
