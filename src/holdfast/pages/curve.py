"""The curve of a run's progress: what each start added, how it ended, and why the curve is flat."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.model.report import readable_time
from holdfast.pages.charts import (
    NO_USAGE,
    Box,
    Drawing,
    Label,
    Line,
    Mark,
    Plot,
    Point,
    Scale,
    Tick,
    number_axis,
    number_ticks,
    rough_time,
    short_number,
    short_time,
    time_ticks,
)
from holdfast.pages.facts import Facts
from holdfast.pages.timeline import Flat, Timeline
from holdfast.palette import FAILED, KEPT, NEW, PLAIN, SOFT, WAITING, Ink

END_WORDS = {
    "gone": "killed or taken over",
    "stopped": "stopped with an error",
    "committed": "committed",
    "ready": "ready to be committed",
    "aborted": "aborted",
}
_END_INKS = {
    "gone": FAILED,
    "stopped": WAITING,
    "ready": WAITING,
    "committed": KEPT,
    "aborted": PLAIN,
}
# In full, and for a place with little room.
_FLAT_WORDS = {
    "stopped": ("stopped", "stopped"),
    "input": ("counting input", "input"),
    "first rows": ("until the first rows", "first rows"),
    "files": ("writing files", "files"),
    "commit": ("commit", "commit"),
}
# The width in pixels of a letter; of the plot on a wide page, on a narrow one or paper, on a phone.
_LETTER = 6.5
_SCREENS = {"wide": 1_000, "middle": 560, "phone": 270}
# Labels of lines this high, in percent from the top, are below them.
_HIGH = 14
_TICKS, _PHONE_TICKS = 9, 4


def progress_plot(facts: Facts) -> list[Plot]:
    """Draw how many rows were done when; no plot for an empty input."""
    title, line = "Progress", facts.timeline
    if not line.points and facts.totals.done_rows:
        return [Plot(title=title, text=NO_USAGE)]
    if not any(rows for _, rows in line.points):
        return [Plot(title=title, text="No rows are done yet.")] if facts.totals.input_rows else []
    text = "Rows that count now, by the time they became durable."
    if line.source == "seals":
        text = (
            "Rows that were done at each seal of the run log; "
            "these records do not say when each row was done."
        )
    if line.cut_s:
        text += f" {readable_time(line.cut_s)} of pauses are cut out: the axis shows time at work."
    drawing, legend = _drawing(facts), _legend(facts)
    return [Plot(title=title, text=text, drawing=drawing, legend=legend, wide=True)]


def time_axis(line: Timeline, scale: Scale) -> list[Tick]:
    """Return the ticks of a time axis; if pauses are cut, they count time at work."""
    cuts = [flat for flat in line.flats if flat.reason == "stopped"] if line.cut_s else []
    at_work = scale.right - sum(flat.to_s - flat.from_s for flat in cuts)
    found = []
    for time in time_ticks(at_work, _TICKS):
        place = time
        for flat in cuts:
            place += flat.to_s - flat.from_s if place > flat.from_s else 0.0
        if place <= scale.right:
            found.append((scale.x(place), short_time(time)))
    step = -(-len(found) // _PHONE_TICKS)
    return [
        Tick(at=at, text=text, is_major=number % step == 0)
        for number, (at, text) in enumerate(found)
    ]


def pauses(line: Timeline, scale: Scale) -> list[Box]:
    """Return a band for each pause between two starts."""
    return [
        Box(
            x=scale.x(flat.from_s),
            y=0,
            width=scale.x(flat.to_s - flat.from_s),
            height=100,
            ink=WAITING.name,
            kind="band",
            text=_words([flat]),
        )
        for flat in line.flats
        if flat.reason == "stopped"
    ]


def _drawing(facts: Facts) -> Drawing:
    line, known = facts.timeline, facts.totals.input_rows or 0
    tops = number_ticks(max(known, *(rows for _, rows in line.points)))
    scale = Scale(right=max(line.length_s, 1.0), top=tops[-1])
    lines = [
        Line(path=scale.path(points, is_area=kind == "area"), ink=ink.name, kind=kind)
        for ink, points in _by_age(line).items()
        for kind in ("area", "line")
    ]
    if known:
        goal = scale.path([(0.0, known), (scale.right, known)])
        lines.append(Line(path=goal, ink=SOFT.name, kind="dashed"))
    labels = []
    for rows, flats in _plateaus(line):
        labels += _flat_labels(flats, rows, scale)
        for flat in flats:
            path = scale.path([(flat.from_s, rows), (flat.to_s, rows)])
            lines.append(Line(path=path, ink=WAITING.name, text=_words([flat])))
    return Drawing(
        x_ticks=time_axis(line, scale),
        y_ticks=number_axis(tops, scale, short_number),
        boxes=pauses(line, scale),
        lines=lines,
        marks=_ends(facts, scale),
        labels=labels,
        is_tall=True,
    )


def _legend(facts: Facts) -> dict[str, str]:
    line = facts.timeline
    found = {"done by earlier starts": KEPT.name} if line.last_s else {}
    found[f"done by start {len(facts.starts)}" if line.last_s else "rows done"] = NEW.name
    if line.flats:
        found["no new rows"] = WAITING.name
    ends = {mark.end for mark in line.ends}
    return found | {
        END_WORDS[end]: f"{ink.name} dot" for end, ink in _END_INKS.items() if end in ends
    }


def _by_age(line: Timeline) -> dict[Ink, list[Point]]:
    """Return what earlier starts and the last start have done, as lines that meet."""
    earlier = [point for point in line.points if point[0] < line.last_s]
    last = [point for point in line.points if point[0] >= line.last_s]
    if not earlier:
        return {NEW: last}
    meet = (line.last_s, earlier[-1][1])
    return {KEPT: [*earlier, meet], NEW: [meet, *last]}


def _rows_at(line: Timeline, place: float) -> float:
    """Return how many rows were done at a place of the axis."""
    return max((rows for at, rows in line.points if at <= place), default=0.0)


def _plateaus(line: Timeline) -> list[tuple[float, list[Flat]]]:
    """Return how many rows each plateau is at, and its flat stretches: they touch."""
    found: list[tuple[float, list[Flat]]] = []
    for flat in line.flats:
        rows = _rows_at(line, (flat.from_s + flat.to_s) / 2)
        if found and found[-1][0] == rows and found[-1][1][-1].to_s == flat.from_s:
            found[-1][1].append(flat)
        else:
            found.append((rows, [flat]))
    return found


def _words(flats: Sequence[Flat], *, in_full: bool = True) -> str:
    return ", ".join(
        f"{_FLAT_WORDS[flat.reason][not in_full]} {rough_time(flat.lasted_s)}" for flat in flats
    )


def _flat_labels(flats: Sequence[Flat], rows: float, scale: Scale) -> list[Label]:
    """Return the text at a plateau: on each screen as much as there is room for."""
    longest = [max(flats, key=lambda flat: flat.lasted_s)]
    texts = [_words(some, in_full=full) for some in (flats, longest) for full in (True, False)]
    x = scale.x((flats[0].from_s + flats[-1].to_s) / 2)
    share, y = (flats[-1].to_s - flats[0].from_s) / scale.right, scale.y(rows)
    fitting = {
        screen: next((text for text in texts if len(text) * _LETTER <= share * width), "")
        for screen, width in _SCREENS.items()
    }
    return [
        Label(x=x, y=y, text=text, ink=WAITING.name, is_below=y < _HIGH, screen=screen)
        for screen, text in fitting.items()
        if text
    ]


def _ends(facts: Facts, scale: Scale) -> list[Mark]:
    """Return a mark at each end of a start, with the text that is shown over it."""
    found = []
    for mark in facts.timeline.ends:
        summary = facts.starts[mark.start - 1]
        rows = summary.kept_rows + summary.rows
        words = f"start {mark.start}: {END_WORDS[mark.end]}, {rows:,} rows done"
        ink, y = _END_INKS[mark.end].name, scale.y(_rows_at(facts.timeline, mark.place_s))
        found.append(Mark(x=scale.x(mark.place_s), y=y, ink=ink, text=words))
    return found
