"""The palette: one set of colours for the terminal, the page of a run, and the documentation.

Four colours have a meaning, the same everywhere: kept, new, failed and waiting. Words or numbers
always say the same, and the four differ for readers who do not see all colours.
`tests/unit/test_palette.py` checks that, and the contrast on both backgrounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Ink:
    """A colour, on a light and on a dark page and on a terminal."""

    name: str
    light: str
    dark: str
    # One of the terminal's own colours, which its theme fits to its background.
    terminal: str = "dim"


# ---- The four meanings

# Safe: rows that earlier starts have done, a commit that has landed, a check that is fine.
KEPT = Ink(name="kept", light="#077e6a", dark="#9fead6", terminal="green")
# At work: rows that this start does, a run that is under way.
NEW = Ink(name="new", light="#1240a0", dark="#5b8def", terminal="bright_blue")
# Lost or wrong: rows that failed, a start that was killed, a ledger that is damaged.
FAILED = Ink(name="failed", light="#98092f", dark="#ff6673", terminal="red")
# Waits for a person, a store or a commit: rows that are left, pauses, waits, a stopped run.
WAITING = Ink(name="waiting", light="#995c00", dark="#f0b43c", terminal="yellow")

MEANINGS = (KEPT, NEW, FAILED, WAITING)

# ---- What has no meaning of its own: text, grounds, lines, and figures that are only counted

TEXT = Ink(name="text", light="#17202b", dark="#e6ebf0")
SOFT = Ink(name="soft", light="#51606f", dark="#a3b0bd")
PLAIN = Ink(name="plain", light="#5b6b7d", dark="#8fa0b3")
CARD = Ink(name="card", light="#ffffff", dark="#19212a")
GROUND = Ink(name="ground", light="#f6f7f9", dark="#10151b")
EDGE = Ink(name="edge", light="#d9dfe6", dark="#303b47")

INKS = (*MEANINGS, TEXT, SOFT, PLAIN, CARD, GROUND, EDGE)

# ---- States of a run

STATES: Mapping[str, Ink] = {
    "new": PLAIN,
    "started": NEW,
    "stopped": WAITING,
    "staged": WAITING,
    "ready": WAITING,
    "committed": KEPT,
    "aborted": PLAIN,
    "damaged": FAILED,
    "unreadable": WAITING,
}


def state_style(state: str) -> str:
    """Return the terminal's colour for a run's state; none for an unknown one."""
    return STATES[state].terminal if state in STATES else ""
