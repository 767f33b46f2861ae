"""Figures on the pages are those of the kept benchmark results.

A row of `FIGURES` is a piece of a page in which `{key}` takes the place of each figure. A key is a
path into the result: `ratio`, `figures.daft.plain.s`, `on_s.0`. A list takes the place of as many
figures, separated by commas. `min` or `max` before a path takes one of a list; `/1e6` or `*100`
after it converts. A figure may be rounded to as many decimals as the page shows; a half is rounded
up.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from bench.results import RESULTS
from tests.markdown_pages import README, name_of, prose
from tests.pages_with_figures import COMPARISON, FAQ, INDEX, LEFT_OUT, PERFORMANCE, SCALE

_KEY = re.compile(r"\{(?:(min|max) )?([\w.-]+)(?:([*/])([\de]+))?\}")
_NUMBER = r"\d[\d,]*(?:\.\d+)?"
# A number with decimals that is no part of a version.
_DECIMAL = re.compile(r"(?<![\d.])\d+\.\d+(?!\.?\d)")

# Page, result, text. Text is compared without regard to where lines break.
_ROWS = (
    (README, "scan-append", "`scan-append`, {rows/1e6}M rows"),
    (README, "scan-append", "| {ratio} of its time; {ratio_no_map} of an append without a map |"),
    (README, "append-dataframe", "`append-dataframe`, {rows/1e6}M rows"),
    (
        README,
        "append-dataframe",
        (
            "| {ratio} of its time, input check included (without the check"
            " {ratio_without_input_check}) |"
        ),
    ),
    (
        README,
        "lance-append",
        "`lance-append`, {rows/1e6}M vectors | Lance alone in two processes | {ratio} of its time",
    ),
    (README, "lance-peers", "Daft, which makes none | {ratio} of its time |"),
    (README, "memory", "| {ratio}; with {partitions} partitions {ratio_partitioned} |"),
    (README, "small-job", "`small-job`, {rows} rows"),
    (README, "small-job", "| {seconds_more} s and {requests_more} requests more |"),
    (README, "checkpoint-overhead", "| {ratio} of its time ({ratios}): within"),
    (
        README,
        "peers",
        (
            "`peers`, {figures.rows/1e6}M rows, with checkpoints | Daft, Ray Data, dlt, Structured"
            " Streaming | {figures.ratios.daft.checkpointed}, {figures.ratios.ray.checkpointed},"
            " {figures.ratios.dlt.checkpointed}, {figures.ratios.stream.checkpointed} of their"
            " time; resumed at half {figures.ratios.daft.resumed}, {figures.ratios.ray.resumed},"
            " {figures.ratios.dlt.resumed}, {figures.ratios.stream.resumed}. Ray Data writes"
        ),
    ),
    (README, "overwrite", "`overwrite`, {rows/1e6}M rows in place of {partitions} partitions"),
    (README, "overwrite", "dynamic `INSERT OVERWRITE` | {ratio} of its time;"),
    (README, "overwrite-busy", "beside a writer every {every_s} s all {landed} overwrites"),
    (PERFORMANCE, "overwrite", "{rows/1e6} million rows in place of those of {partitions} part"),
    (PERFORMANCE, "overwrite", "`run.overwrite_partitions` | {ours_s} |"),
    (PERFORMANCE, "overwrite", "dynamic `INSERT OVERWRITE` | {mapped_s} | **{ratio}** |"),
    (PERFORMANCE, "overwrite", "mode = none` | {no_shuffle_s} | {ratio_no_shuffle} |"),
    (PERFORMANCE, "overwrite", "the driver's peak is {ratio_driver_memory} of the original one"),
    (
        PERFORMANCE,
        "overwrite",
        "and a worker's {ratio_worker_memory}, where {goal_memory} was the goal",
    ),
    (PERFORMANCE, "overwrite", "ten times the data takes {ratio_worker_memory_filled}."),
    (
        PERFORMANCE,
        "overwrite-busy",
        (
            "every {every_s} s, {landed} of {overwrites} overwrites of a table of {files} files"
            " landed, with at most {replans_max} replan each; {overwrites_by_replans.1} of them"
        ),
    ),
    (
        PERFORMANCE,
        "overwrite-busy",
        (
            "took {beside_median_s} s, and those of such a table without another writer"
            " {alone_median_s} s (medians; {ratio} of it by rounds)"
        ),
    ),
    (
        FAQ,
        "small-job",
        "a job of {rows} rows takes {seconds_more} s and {requests_more} requests more",
    ),
    (FAQ, "append-dataframe", "took {ratio} of the time of bare Spark with the same step"),
    (FAQ, "scan-append", "a [scan](../how-to/scans.md) {ratio} of it"),
    (PERFORMANCE, "scan-append", "`scan-append` | {rows/1e6} million rows"),
    (PERFORMANCE, "scan-append", "identity transform, default checkpoints | {ours_s} |"),
    (PERFORMANCE, "scan-append", "`mapInArrow` and append | {mapped_s} | **{ratio}** |"),
    (PERFORMANCE, "scan-append", "append without a map | {plain_s} | **{ratio_no_map}** |"),
    (
        PERFORMANCE,
        "scan-append",
        "including their start | {pyarrow_alone_s} | {ratio_pyarrow_alone} |",
    ),
    (PERFORMANCE, "scan-append", "Two cores, {machine.memory_gb} GB"),
    (
        PERFORMANCE,
        "append-dataframe",
        (
            "with a key: {holdfast_s} s against {bare_map_in_arrow_s} s for bare `mapInArrow` and"
            " append: **{ratio}** ({ratio_without_input_check} without the input check)"
        ),
    ),
    (
        PERFORMANCE,
        "verify-input",
        (
            "| {narrow.rows/1e6} million rows of 6 columns, passed through |"
            " {narrow.keys_over_unchecked} ({narrow.keys_over_unchecked_worked}) |"
            " {narrow.rows_over_unchecked} ({narrow.rows_over_unchecked_worked}) |"
            " **{narrow.rows_over_keys}** ({narrow.rows_over_keys_worked}) |"
        ),
    ),
    (
        PERFORMANCE,
        "verify-input",
        (
            "| {wide.rows} rows of {wide.row_bytes/1000} kB, only their size is written |"
            " {wide.keys_over_unchecked} ({wide.keys_over_unchecked_worked}) |"
            " {wide.rows_over_unchecked} ({wide.rows_over_unchecked_worked}) |"
            " **{wide.rows_over_keys}** ({wide.rows_over_keys_worked}) |"
        ),
    ),
    (PERFORMANCE, "scan-resume", "takes over a minute ({whole_s} s)"),
    *(
        (
            PERFORMANCE,
            "scan-resume",
            # Of 12 million rows, in percent; the share of the input that is read is a fraction.
            (
                f"| {part} % | {bold}{{killed_at_{part}.second_life_s}} s{bold} |"
                f" {{killed_at_{part}.goal_s}} s | {{killed_at_{part}.rows_again/12e4}} % |"
                f" {{killed_at_{part}.read_share*100}} % |"
            ),
        )
        for part, bold in ((25, ""), (50, ""), (75, ""), (99, "**"))
    ),
    (
        PERFORMANCE,
        "latency",
        (
            "S3 behind {delay_ms_each_way} ms each way and {kilobytes_per_s_of_a_connection/1000}"
            " MB/s for each connection; {rows/1e6} million rows"
        ),
    ),
    (PERFORMANCE, "latency", "| compute alone, with a nearby store | {compute_s} |"),
    (PERFORMANCE, "latency", "| IO alone | {io_s} |"),
    (PERFORMANCE, "latency", "| both | {both_s}: **{ratio}** of the longer one"),
    (PERFORMANCE, "latency", "tried once | {once_s} |"),
    (
        PERFORMANCE,
        "latency",
        "switched off | {once_inline_s}, {inline_over_runtime} times as long |",
    ),
    (PERFORMANCE, "latency", "take {floor_s} s (a job of 1,000 rows)"),
    (
        PERFORMANCE,
        "checkpoint-overhead",
        (
            "{rows} embeddings, three quarters of a minute of compute in two tasks:"
            " {checkpoints_30s_s} s with a checkpoint every 30 s, {checkpoints_off_s} s without:"
            " **{ratio}**"
        ),
    ),
    (
        PERFORMANCE,
        "small-job",
        (
            "{rows} rows: {seconds_more} s and {requests_more} requests more than bare Spark (goal:"
            " {goal_seconds_more} s and {goal_requests_more})"
        ),
    ),
    (
        PERFORMANCE,
        "progress-cost",
        # The first core time is that of the warm-up.
        (
            "{rows/1e6} million rows through a DataFrame: the display's thread used {on_core_s.1},"
            " {on_core_s.2} and {on_core_s.3} s of CPU in {on_s.0}, {on_s.1} and {on_s.2} s"
        ),
    ),
    (PERFORMANCE, "progress-cost", "a job took {ratio} of the time without it"),
    (PERFORMANCE, "progress-cost", "with a function of `on_event=` {ratio_events}, while"),
    (
        PERFORMANCE,
        "progress-cost",
        "thread used {events_on_core_s.1}, {events_on_core_s.2} and {events_on_core_s.3} s.",
    ),
    (PERFORMANCE, "lance-append", "{rows/1e6} million rows of an id, a text and 128 float32"),
    (PERFORMANCE, "lance-append", "| Holdfast, default checkpoints | {ours_s} |"),
    (PERFORMANCE, "lance-append", "| {alone_s}: Holdfast takes **{ratio}** of it |"),
    (
        PERFORMANCE,
        "lance-peers",
        (
            "every 2 s {figures.holdfast-lance.checkpointed.s} s; Daft with daft-lance"
            " {figures.daft-lance.plain.s} s; lance-ray {figures.lance-ray.plain.s} s; lance-spark"
            " {figures.lance-spark.plain.s} s."
        ),
    ),
    (PERFORMANCE, "peers", "`peers`: {figures.rows/1e6} million rows"),
    *(
        (
            PERFORMANCE,
            "peers",
            (
                f"| {name} | {{figures.{key}.plain.s}} | {{figures.{key}.checkpointed.s}} |"
                f" {{figures.{key}.rerun.s}} | {{figures.{key}.resumed.s}} |"
            ),
        )
        for name, key in (
            ("Holdfast", "holdfast"),
            ("Daft", "daft"),
            ("dlt", "dlt"),
            ("Ray Data", "ray"),
            ("Structured Streaming", "stream"),
        )
    ),
    (PERFORMANCE, "memory", "12 million rows, {plain_1x.stored_mb} MB stored"),
    (PERFORMANCE, "memory", "20 times the {limit_mb} MB that a worker was allowed"),
    (
        PERFORMANCE,
        "memory",
        (
            "| worker | {plain_1x.worker_mb} | {plain_10x.worker_mb} | {plain_20x.worker_mb} |"
            " **{ratio}** |"
        ),
    ),
    (
        PERFORMANCE,
        "memory",
        (
            "| driver's Python | {plain_1x.driver_mb} | {plain_10x.driver_mb} |"
            " {plain_20x.driver_mb} | {ratio_driver} |"
        ),
    ),
    (
        PERFORMANCE,
        "memory",
        (
            "| worker, {partitions} partitions | {partitioned_1x.worker_mb} |"
            " {partitioned_10x.worker_mb} | | **{ratio_partitioned}** |"
        ),
    ),
    (
        PERFORMANCE,
        "memory",
        (
            "| driver's Python, {partitions} partitions | {partitioned_1x.driver_mb} |"
            " {partitioned_10x.driver_mb} | | {ratio_driver_partitioned} |"
        ),
    ),
    (
        PERFORMANCE,
        "memory",
        "{partitioned_1x.files} files grow to {partitioned_10x.files}, and the driver lists them",
    ),
    (COMPARISON, "peers", "| {figures.rows/1e6} million rows | whole run"),
    (COMPARISON, "peers", "was killed at {max figures.ray.resumed.killed_at*100} % of the rows"),
    (COMPARISON, "peers", "the others at {min figures.daft.resumed.killed_at*100} to"),
    (COMPARISON, "peers", "to {max figures.holdfast.resumed.killed_at*100} %):"),
    *(
        (
            COMPARISON,
            "peers",
            (
                f"| {name} | {{figures.{key}.checkpointed.median_s}} s |"
                f" {{figures.{key}.resumed.median_s}} s |"
            ),
        )
        for name, key in (
            ("Holdfast", "holdfast"),
            ("Daft, to Iceberg", "daft"),
            ("Ray Data, to Parquet", "ray"),
            ("dlt, to Iceberg", "dlt"),
            ("Structured Streaming, to Iceberg", "stream"),
        )
    ),
    (
        COMPARISON,
        "lance-peers",
        (
            "{figures.lance-spark.plain.s} s for {figures.rows/1e6} million vectors, with a map in"
            " Python; Holdfast with checkpoints {figures.holdfast-lance.checkpointed.s} s"
        ),
    ),
    (
        COMPARISON,
        "scan-append",
        (
            "bare Spark took {min plain_s} to {max plain_s} s for an append, and {min mapped_s} to"
            " {max mapped_s} s with an empty Python step between. (Holdfast took {min ours_s} to"
            " {max ours_s} s"
        ),
    ),
    *(
        (
            SCALE,
            "resume-keys",
            (
                f"| {{{kind}.done}} {name} | {{{kind}.left}} | 2 GB | {{{kind}.bare_s}} s |"
                f" {{{kind}.planning_s}} s | **{{{kind}.ratio}}** | {{{kind}.worker_mb}} MB |"
            ),
        )
        for kind, name in (("integers", "integers"), ("texts", "texts of 36 characters"))
    ),
    (
        SCALE,
        "resume-keys",
        "with {wide.done} keys finished, {wide.left} left and 200 bytes of payload a row",
    ),
    (
        SCALE,
        "resume-keys",
        (
            "of {wide.payload_mb} MB of payload nothing was shuffled, of keys and filter"
            " {wide.shuffled_mb} MB. A worker held at most {wide.worker_mb} MB."
        ),
    ),
    *(
        (SCALE, "upsert", f"| {rows} | {{ours{at}_s}} | {{merge{at}_s}} | **{{ratio_{name}}}** |")
        for rows, at, name in (
            ("copy-on-write, in all files", "", "copy_on_write"),
            ("copy-on-write, in a sixth", "_local", "copy_on_write_local"),
            ("merge-on-read, in all files", "_by_position", "merge_on_read"),
            ("merge-on-read, in a sixth", "_by_position_local", "merge_on_read_local"),
        )
    ),
    (README, "upsert", "{ratio_copy_on_write} of its time by copy-on-write, {ratio_merge_on_read}"),
    (PERFORMANCE, "upsert-busy", "{landed} of {upserts} upserts into a table of {files} files"),
    (SCALE, "upsert", "over 24 files: {searched_files} and {rewritten_files}; in a sixth"),
    *(
        (
            SCALE,
            "upsert-index",
            f"| {keys:,} | {{keys_{keys}.worker_mb}} MB | {{keys_{keys}.driver_mb}} MB |",
        )
        for keys in (500_000, 5_000_000, 20_000_000)
    ),
    (SCALE, "upsert-index", "of 64 | {less_in_flight.worker_mb} MB | {less_in_flight.driver_mb}"),
    (SCALE, "upsert-index", "That is **{ratio}** for a worker, where {goal} was the goal; over 5"),
    (SCALE, "upsert-index", "over 5 million keys it is {ratio_over_5m}"),
    (SCALE, "commit-files", "F = 100,000: {driver_grown_mb} MB |"),
    (SCALE, "commit-files", "`commit-files`: {files} files from {tasks} tasks"),
    (SCALE, "commit-files", "files checked by listing | {ours_s} | **{ratio}** |"),
    (
        SCALE,
        "commit-files",
        "a request for each file | {heads_s} | {ratio_with_a_head_per_file} |",
    ),
    (SCALE, "commit-files", "| Java | {java_s} | |"),
    (SCALE, "commit-files", "A bare listing of the files takes {listing_s} s of that"),
    (SCALE, "commit-files", "in {planning_ratio} of the time of Java's"),
    (SCALE, "commit-files", "({planned_ours_s} against {planned_java_s} s). It was"),
    (SCALE, "commit-files", "the run landed with post {posts_beside_a_rival}."),
    (SCALE, "old-table", "from seal to receipt, {snapshots} snapshots over 10."),
    (SCALE, "old-table", "| REST | {rest.ratio} | 2.0 |"),
    (SCALE, "old-table", "of a property, REST | {rest.bare_commit_ratio} | |"),
    (SCALE, "old-table", "| SQL | {sql.ratio}, {sql.growth_before} before |"),
    (
        SCALE,
        "old-table",
        "answered with all metadata, {rest.requests.old.catalog_bytes/1e6} MB.",
    ),
    (SCALE, "old-table", "writes it once: {sql.requests.old.store_bytes/1e6} MB."),
    (SCALE, "add-column", "| Lance alone, {fragments} fragments | {lance_s} | |"),
    (SCALE, "add-column", "| {holdfast_s} | **{ratio}** | | Holdfast, one fragment | {one_s} |"),
    (SCALE, "add-column", "| {one_fragment_ratio} of 64 fragments |"),
    (
        SCALE,
        "add-column",
        (
            "take {bytes_per_byte} of the column's bytes, one takes {"
            "one_fragment_bytes_per_byte}: tasks"
        ),
    ),
    (SCALE, "add-column", "was started again in {resume_share} of the whole time."),
    (
        SCALE,
        "lance-fragments",
        (
            "`lance-fragments`, {fragments} fragments: {first_write_s} s to write the list of what"
            " is staged, {first_check_s} s to look for the files, {first_post_s} s for the post,"
            " {first_look_s} s to verify it. In turns with bare appends of as many: {post_s}"
            " against {bare_append_s} s, **{ratio}** of it. The driver's Python held {driver_mb} MB"
        ),
    ),
    (SCALE, "lance-fragments", "reads the list back ({first_read_s} s)"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A piece of a page with figures of one result."""

    page: Path
    result: str
    text: str

    def keys(self) -> list[str]:
        """Return the key of each figure, in the order of the text."""
        return [found[0] for found in _KEY.finditer(self.text) for _ in self._values(found)]

    def values(self) -> list[Decimal]:
        """Return what the result has for each figure."""
        return [value for found in _KEY.finditer(self.text) for value in self._values(found)]

    def found(self) -> re.Match[str] | None:
        """Return where the page has this piece, whatever its figures are; each is a group."""
        parts: list[str] = []
        end = 0
        for key in _KEY.finditer(self.text):
            parts.append(re.escape(self.text[end : key.start()]))
            parts.append(", ".join([f"({_NUMBER})"] * len(self._values(key))))
            end = key.end()
        return re.search("".join(parts) + re.escape(self.text[end:]), text_of(self.page))

    def _values(self, key: re.Match[str]) -> list[Decimal]:
        which, path, operator, operand = key.groups()
        found: Any = read_result(RESULTS / f"{self.result}.json")
        for step in path.split("."):
            found = found[int(step)] if isinstance(found, list) else found[step]
        values = [Decimal(value) for value in (found if isinstance(found, list) else [found])]
        if which:
            values = [min(values) if which == "min" else max(values)]
        factor = Decimal(operand or 1)
        return [value * factor if operator == "*" else value / factor for value in values]


PIECES = [Piece(page=page, result=result, text=text) for page, result, text in _ROWS]


@cache
def read_result(file: Path) -> dict[str, Any]:
    """Return a kept result, its figures as they are written."""
    result: dict[str, Any] = json.loads(file.read_text(), parse_float=Decimal)
    return result


def text_of(page: Path) -> str:
    """Return a page's prose on one line."""
    return " ".join(prose(page.read_text()).split())


def rounded_like(shown: str, value: Decimal) -> str:
    """Return a value with as many decimals as a figure on a page."""
    decimals = len(shown.partition(".")[2])
    return f"{value.quantize(Decimal(1).scaleb(-decimals), rounding=ROUND_HALF_UP):,}"


def wrong_figures(piece: Piece) -> list[str]:
    """Return what a page says differently from the result."""
    found = piece.found()
    if found is None:
        return [f"the page does not say: {piece.text}"]
    each = zip(piece.keys(), found.groups(), piece.values(), strict=True)
    return [
        f"{key} of {piece.result} is {value}, the page says {shown}"
        for key, shown, value in each
        if rounded_like(shown, value) != shown
    ]


@pytest.mark.parametrize("piece", PIECES, ids=lambda piece: f"{piece.page.stem}: {piece.text}"[:70])
def test_a_page_says_what_the_result_says(piece: Piece) -> None:
    """A figure is that of the kept result; a page that was reworded is found as well."""
    assert wrong_figures(piece) == []


@pytest.mark.parametrize("page", [README, INDEX, FAQ, PERFORMANCE, COMPARISON, SCALE], ids=name_of)
def test_no_figure_is_without_a_result(page: Path) -> None:
    """A number with decimals is compared with a result, or is listed with the reason why not."""
    text = text_of(page)
    if page == README:  # Its other parts show code, versions and the output of one run.
        text = text[text.index("## Numbers") : text.index("[More figures")]
    offset = text_of(page).index(text)
    known = {
        place - offset
        for piece in PIECES
        if piece.page == page and (found := piece.found()) is not None
        for group in range(1, len(found.groups()) + 1)
        for place in range(*found.span(group))
    }
    for left_out in [fragment for where, fragment in LEFT_OUT if where == page]:
        places = [found.span() for found in re.finditer(re.escape(left_out), text)]
        assert places, f"{left_out} is not on the page any more"
        known.update(place for span in places for place in range(*span))
    unknown = [found for found in _DECIMAL.finditer(text) if found.start() not in known]
    assert [text[max(0, found.start() - 40) : found.end() + 20] for found in unknown] == []


def test_every_result_is_on_a_page() -> None:
    """A benchmark whose figures no page shows was forgotten."""
    kept = {path.stem for path in RESULTS.glob("*.json")}
    assert kept == {piece.result for piece in PIECES}


@pytest.mark.parametrize(
    ("shown", "value", "agrees"),
    [
        ("0.95", "0.945", True),
        ("0.94", "0.945", False),
        ("1,000", "1000", True),
        ("29", "29.4", True),
        ("29", "29.5", False),
        ("2.0", "2", True),
    ],
)
def test_a_figure_is_rounded_to_the_decimals_of_the_page(
    shown: str, value: str, *, agrees: bool
) -> None:
    """Half up, so that two pages cannot round one figure differently."""
    assert (rounded_like(shown, Decimal(value)) == shown) == agrees


def test_another_figure_and_another_wording_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The comparison itself: the right figure passes, a wrong one and a reworded page do not."""
    (tmp_path / "a.json").write_text('{"seconds": [1.25, 2.5]}')
    monkeypatch.setattr("tests.unit.project.test_figures.RESULTS", tmp_path)
    page = tmp_path / "page.md"
    piece = Piece(page=page, result="a", text="took {seconds} s")
    page.write_text("It took 1.3,\n2.5 s.")
    assert wrong_figures(piece) == []
    page.write_text("It took 1.3, 2.4 s.")
    assert wrong_figures(piece) == ["{seconds} of a is 2.5, the page says 2.4"]
    page.write_text("It needs 1.3, 2.5 s.")
    assert wrong_figures(piece) == ["the page does not say: took {seconds} s"]
