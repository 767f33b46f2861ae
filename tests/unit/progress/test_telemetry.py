"""Telemetry: spans and counters of a run, as the package's own collectors keep them."""

from __future__ import annotations

import json
from dataclasses import replace
from unittest import mock

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import holdfast as hf
from holdfast.errors import MissingExtraError, TransformError
from holdfast.progress.events import Event
from tests.fakes.cli_lake import CliLake, lake
from tests.fakes.memory_submitter import MemorySubmitter
from tests.unit.progress.test_events import start

__all__ = ["lake"]


class Collected:
    """Spans and counters, as the package's own collectors keep them."""

    def __init__(self) -> None:
        """Make a listener that leads to them."""
        self._spans, self._reader = InMemorySpanExporter(), InMemoryMetricReader()
        tracers = TracerProvider()
        tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        meters = MeterProvider(metric_readers=[self._reader])
        self.listener = hf.open_telemetry(tracer_provider=tracers, meter_provider=meters)

    @property
    def spans(self) -> list[ReadableSpan]:
        """All spans that have ended."""
        return list(self._spans.get_finished_spans())

    @property
    def counters(self) -> dict[str, float]:
        """The sums of all counters."""
        data = json.loads(self._reader.get_metrics_data().to_json())  # type: ignore[union-attr]
        metrics = data["resource_metrics"][0]["scope_metrics"][0]["metrics"]
        return {metric["name"]: metric["data"]["data_points"][0]["value"] for metric in metrics}


def test_telemetry_has_spans_of_a_start_its_passes_and_its_commit(lake: CliLake) -> None:
    collected = Collected()
    start(lake, collected.listener, cost=0.5)
    spans = {span.name: span for span in collected.spans}
    assert set(spans) == {"holdfast start", "holdfast pass", "holdfast commit"}
    whole = spans["holdfast start"]
    assert whole.parent is None
    assert dict(whole.attributes or {}) == {
        "holdfast.run_id": "r",
        "holdfast.table": "lake.db.t",
        "holdfast.start": 1,
        "holdfast.outcome": "committed",
        "holdfast.rows": 20,
    }
    for name in ("holdfast pass", "holdfast commit"):
        part = spans[name]
        assert part.parent is not None
        assert part.parent.span_id == whole.context.span_id
        assert (whole.start_time or 0) <= (part.start_time or 0) <= (part.end_time or 0)
        assert (part.end_time or 0) <= (whole.end_time or 0)
    assert collected.counters["holdfast.rows"] == 20
    assert collected.counters["holdfast.cost"] == pytest.approx(10.0)
    assert "holdfast.held_cost" not in collected.counters
    assert collected.counters["holdfast.staged"] > 0


def test_telemetry_counts_what_this_start_has_done(lake: CliLake) -> None:
    """Not what earlier starts did, which they have counted; an error is the span's status."""
    lake.start_and_die("r", MemorySubmitter(range(10), range(10, 20)), cost=0.5)
    collected = Collected()
    start(lake, collected.listener, cost=0.5)
    assert collected.counters["holdfast.rows"] == 10
    assert collected.counters["holdfast.cost"] == pytest.approx(5.0)
    with pytest.raises(hf.HoldfastError):
        start(lake, collected.listener, rows=MemorySubmitter(range(7)))
    assert [span.status.is_ok for span in collected.spans if span.name == "holdfast start"] == [
        True
    ]


def test_telemetry_of_a_start_that_fails_has_its_error(lake: CliLake) -> None:
    collected = Collected()

    def fails(_batch: object) -> object:
        raise ValueError("no")

    with pytest.raises(TransformError):
        start(lake, collected.listener, transform=fails, retries=0)
    (whole,) = [span for span in collected.spans if span.name == "holdfast start"]
    assert not whole.status.is_ok
    assert (whole.status.description or "").startswith("TransformError: ")


def test_rows_that_are_withdrawn_are_not_counted_twice() -> None:
    """A counter never falls: what is done again counts when it exceeds what was counted."""
    collected = Collected()
    about = Event(kind="progress", at=1.0, run_id="r", table="t", location="file:///t")
    for done in (0, 10, 6, 12):
        progress = mock.Mock(
            good_rows=done, quarantined_rows=0, cost=0.0, held_cost=0.0, size_bytes=0, waited_s=0.0
        )
        collected.listener(replace(about, progress=progress))
    assert collected.counters["holdfast.rows"] == 12


def test_a_package_that_is_missing_is_named() -> None:
    with (
        mock.patch.dict("sys.modules", {"opentelemetry": None}),
        pytest.raises(MissingExtraError) as caught,
    ):
        hf.open_telemetry()
    assert caught.value.extra == "opentelemetry"
