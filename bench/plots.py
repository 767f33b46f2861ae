"""Draw the kept results of the benchmarks: `make plots`.

A missing result is not drawn. A part that is missing in a result, such as a column in which an
engine has failed, is named in its plot; the rest is drawn.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.bar_chart import Bar, Chart, Group, draw
from bench.results import RESULTS, load, numbers, part

IMAGES = Path(__file__).parent.parent / "docs" / "explanation" / "img"
_GOAL_OVER_MAPPED = 0.45
_GOAL_OVER_PLAIN = 0.75
_MAPPED = "bare Spark,\nmapInArrow and append"
_PLAIN = "bare Spark,\nappend without a map"
_ENGINES = {
    "holdfast": "Holdfast",
    "ray": "Ray Data",
    "daft": "Daft",
    "dlt": "dlt",
    "stream": "Structured Streaming",
}
_COLUMNS = {
    "plain": "Without checkpoints",
    "checkpointed": "With checkpoints",
    "rerun": "Run again when all is done",
    "resumed": "Second start, after a kill at half of the rows",
}
_SIZES = {
    "plain_1x": "Once the data",
    "plain_10x": "10 times the data",
    "plain_20x": "20 times the data",
    "partitioned_1x": "Once the data, {partitions:,} partitions",
    "partitioned_10x": "10 times the data, {partitions:,} partitions",
}


def scan_append(result: dict[str, Any]) -> Chart:
    """Draw the seconds of each side; the bare ones show Holdfast's time relative to theirs."""
    return Chart(
        title="Append a scan, identity transform",
        groups=_one_group(
            Bar(label="Holdfast", values=numbers(result, "ours_s"), is_ours=True),
            Bar(
                label=_MAPPED,
                values=numbers(result, "mapped_s"),
                note=_share(result, "ratio", _GOAL_OVER_MAPPED),
            ),
            Bar(
                label=_PLAIN,
                values=numbers(result, "plain_s"),
                note=_share(result, "ratio_no_map", _GOAL_OVER_PLAIN),
            ),
            Bar(
                label="two processes\nof pyarrow alone",
                values=numbers(result, "pyarrow_alone_s"),
                note=_share(result, "ratio_pyarrow_alone"),
            ),
        ),
    )


def append_dataframe(result: dict[str, Any]) -> Chart:
    """Draw the seconds of each side."""
    return Chart(
        title="Append a DataFrame with a key, identity transform",
        groups=_one_group(
            Bar(label="Holdfast", values=numbers(result, "holdfast_s"), is_ours=True),
            Bar(
                label="Holdfast,\nwithout the input check",
                values=numbers(result, "holdfast_without_input_check_s"),
                is_ours=True,
            ),
            Bar(
                label=_MAPPED,
                values=numbers(result, "bare_map_in_arrow_s"),
                note=_share(result, "ratio"),
            ),
            Bar(label=_PLAIN, values=numbers(result, "bare_no_map_s")),
        ),
    )


def scan_resume(result: dict[str, Any]) -> Chart:
    """Draw the second start by the part of the rows at which the first one was killed."""
    whole = Bar(label="never killed", values=numbers(result, "whole_s"))
    killed = []
    for percent in (25, 50, 75, 99):
        second = part(result, f"killed_at_{percent}")
        killed.append(
            Bar(
                label=f"killed at {percent} %",
                values=numbers(second, "second_life_s"),
                is_ours=True,
                goal=next(iter(numbers(second, "goal_s")), None),
            )
        )
    return Chart(title="The second start of a killed scan", groups=_one_group(whole, *killed))


def latency(result: dict[str, Any]) -> Chart:
    """Draw the job beside what it would take with compute or IO alone."""
    times = {side: numbers(result, f"{side}_s") for side in ("compute", "io", "both")}
    slower, inline = (numbers(result, key) for key in ("ratio", "inline_over_runtime"))
    return Chart(
        title="A slow store: compute and IO alone, and both at once",
        groups=_one_group(
            Bar(label="compute alone", values=times["compute"]),
            Bar(label="IO alone", values=times["io"]),
            Bar(
                label="both",
                values=times["both"],
                is_ours=True,
                note=f"{slower[0]:.2f} of the slower one" if slower else "",
            ),
            Bar(label="both, a third\nof the rows", values=numbers(result, "once_s"), is_ours=True),
            Bar(
                label="the same without\nthe IO runtime",
                values=numbers(result, "once_inline_s"),
                note=f"{inline[0]:.2f} times as long" if inline else "",
            ),
        ),
    )


def memory(result: dict[str, Any]) -> Chart:
    """Draw the peak of a worker and of the driver's Python, by the size of the data."""
    partitions = next(iter(numbers(result, "partitions")), 0)
    return Chart(
        title="Peak memory of one process",
        unit="MB",
        axis="MB",
        groups=tuple(
            Group(
                heading=heading.format(partitions=int(partitions)),
                bars=(
                    Bar(
                        label="worker",
                        values=numbers(part(result, size), "worker_mb"),
                        is_ours=True,
                    ),
                    Bar(label="driver's Python", values=numbers(part(result, size), "driver_mb")),
                ),
            )
            for size, heading in _SIZES.items()
        ),
    )


def peers(result: dict[str, Any]) -> Chart:
    """Draw each engine in each column, including those that failed."""
    figures = part(result, "figures")
    engines = {name: cells for name in _ENGINES if (cells := part(figures, name))}
    return Chart(
        title="The same files, an equal job, by engine",
        groups=tuple(
            Group(
                heading=heading,
                bars=tuple(
                    _peer(_ENGINES[name], part(cells, column), is_ours=name == "holdfast")
                    for name, cells in engines.items()
                ),
            )
            for column, heading in _COLUMNS.items()
        ),
    )


def _peer(label: str, cell: dict[str, Any], *, is_ours: bool) -> Bar:
    values = numbers(cell, "s")
    failed = len(cell.get("failed") or ())
    notes = [
        *(["rows lost or doubled"] if cell.get("wrong") else []),
        *([f"failures: {failed}" if values else "failed"] if failed else []),
    ]
    return Bar(label=label, values=values, is_ours=is_ours, note=", ".join(notes))


CHARTS: dict[str, Callable[[dict[str, Any]], Chart]] = {
    "scan-append": scan_append,
    "append-dataframe": append_dataframe,
    "scan-resume": scan_resume,
    "latency": latency,
    "memory": memory,
    "peers": peers,
}


def write_plots(results: Path, images: Path) -> list[Path]:
    """Draw each result that is there and holds a figure; return the files."""
    written = []
    images.mkdir(parents=True, exist_ok=True)
    for name, result in load(results).items():
        if name not in CHARTS:
            continue
        chart = CHARTS[name](result)
        if any(bar.values for bar in chart.bars()):
            path = images / f"{name}.svg"
            draw(replace(chart, footer=_footer(result)), path)
            written.append(path)
    return written


def _one_group(*bars: Bar) -> tuple[Group, ...]:
    return (Group(bars=bars),)


def _share(result: dict[str, Any], key: str, goal: float | None = None) -> str:
    """Say how Holdfast's time compares with a side's, and what the goal is."""
    wished = "" if goal is None else f" (goal {goal})"
    return "".join(f"Holdfast takes {ratio:.2f}{wished}" for ratio in numbers(result, key))


def _footer(result: dict[str, Any]) -> str:
    """Say what was measured and on which machine, as far as it is known."""
    rows = numbers(result, "rows") or numbers(part(result, "figures"), "rows")
    forms = {
        "cores": "{} cores",
        "memory_gb": "{} GB",
        "python": "Python {}",
        "pyspark": "PySpark {}",
        "date": "{}",
    }
    found = part(result, "machine")
    return ", ".join(
        [
            *(f"{count:,.0f} rows" for count in rows),
            *(form.format(found[key]) for key, form in forms.items() if key in found),
        ]
    )


def main() -> int:
    """Draw the results that are there, and print what was drawn."""
    written = write_plots(RESULTS, IMAGES)
    if not written:
        print("no result to draw: run a benchmark first, make bench NAME=…", file=sys.stderr)
        return 1
    print(*(path.name for path in written), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
