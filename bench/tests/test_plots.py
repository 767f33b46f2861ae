"""The kept results of the benchmarks, and the plots that are made from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.plots import CHARTS, write_plots
from bench.results import keep

ROUNDS = [4.0, 5.0, 6.0]
LIFE = {"second_life_s": 30.0, "goal_s": 36.0}
PEAKS = {"worker_mb": 447.0, "driver_mb": 189.0}
RESULTS: dict[str, dict[str, Any]] = {
    "scan-append": {"ratio": 0.24, "rows": 12, "ours_s": ROUNDS, "mapped_s": ROUNDS},
    "append-dataframe": {"ratio": 0.77, "holdfast_s": ROUNDS, "bare_map_in_arrow_s": ROUNDS},
    "scan-resume": {"whole_s": ROUNDS, "killed_at_25": LIFE, "killed_at_99": LIFE},
    "latency": {"ratio": 1.1, "compute_s": ROUNDS, "io_s": ROUNDS, "both_s": ROUNDS},
    "memory": {"partitions": 1_000, "plain_1x": PEAKS, "partitioned_10x": PEAKS},
    "peers": {"figures": {"rows": 12, "holdfast": {"plain": {"s": ROUNDS}}}},
}


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A folder with a made-up result of each benchmark that has a plot."""
    folder = tmp_path / "results"
    for name, figures in RESULTS.items():
        keep(name, figures, folder)
    return folder


def test_a_result_is_kept_as_it_is_printed(tmp_path: Path) -> None:
    """The file holds the printed object, with the machine and the day, and replaces the last."""
    keep("made-up", {"ratio": 2.0}, tmp_path)
    line = keep("made-up", {"ratio": 1.5}, tmp_path)
    kept = json.loads((tmp_path / "made-up.json").read_text())
    assert kept == json.loads(line)
    assert "\n" not in line
    assert (kept["name"], kept["ratio"]) == ("made-up", 1.5)
    assert kept["machine"].keys() == {"cores", "memory_gb", "python", "pyspark", "date"}


@pytest.mark.parametrize("start", ["", "see ", "file:", "file://", "'"])
def test_a_kept_result_names_no_folder_of_the_machine(tmp_path: Path, start: str) -> None:
    """Only the file's name is kept of a path in an engine's last message; addresses stay."""
    words = f"{start}/srv/peers/x.py: no s3://lake/a/b"
    kept = json.loads(keep("made-up", {"failed": [words]}, tmp_path))
    left = "" if start.startswith("file:") else start
    assert kept["failed"] == [f"{left}.../x.py: no s3://lake/a/b"]


def test_each_result_that_is_there_gives_a_plot(results: Path, tmp_path: Path) -> None:
    """One SVG for each; a benchmark without a plot, or without a result, gives none."""
    (results / "latency.json").unlink()
    keep("small-job", {"ratio": 1.0}, results)
    written = write_plots(results, tmp_path / "img")
    assert {path.stem for path in written} == CHARTS.keys() - {"latency"}
    assert all("<svg" in path.read_text() for path in written)
    assert sorted(written) == sorted((tmp_path / "img").iterdir())


def test_the_same_figures_give_the_same_bytes(results: Path, tmp_path: Path) -> None:
    """A plot that is drawn again is not a change to commit."""
    first, second = (write_plots(results, tmp_path / name) for name in ("first", "second"))
    assert len(first) == len(CHARTS)
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_a_plot_says_the_median_and_the_goal(tmp_path: Path) -> None:
    """The figures can be read off as text, and so can the machine they are from."""
    for name in ("scan-append", "scan-resume"):
        keep(name, RESULTS[name], tmp_path)
    append, resume = (path.read_text() for path in write_plots(tmp_path, tmp_path))
    assert "5.00 s, Holdfast takes 0.24 (goal 0.45)" in append
    assert "PySpark" in append
    assert "30.0 s, goal 36.0 s" in resume


def test_a_column_in_which_an_engine_failed_keeps_its_place(tmp_path: Path) -> None:
    """A failure, a wrong table and a missing column are named, and the rest is drawn."""
    cells = {
        "plain": {"s": [], "failed": ["no such file"]},
        "checkpointed": {"s": ROUNDS, "median_s": 5.0, "wrong": ["3 rows doubled"]},
        "rerun": {"s": [1.0], "failed": ["lost", "lost"]},
    }
    keep("peers", {"figures": {"holdfast": {"plain": {"s": ROUNDS}}, "ray": cells}}, tmp_path)
    (plot,) = write_plots(tmp_path, tmp_path)
    text = plot.read_text()
    for said in (">failed<", "5.00 s, rows lost or doubled", "1.00 s, failures: 2", "no figure"):
        assert said in text


@pytest.mark.parametrize("name", CHARTS)
def test_a_result_without_figures_gives_no_plot(tmp_path: Path, name: str) -> None:
    """Nothing is drawn where nothing was measured, and nothing breaks."""
    keep(name, {"ratio": None}, tmp_path)
    assert write_plots(tmp_path, tmp_path) == []
