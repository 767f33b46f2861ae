"""Telemetry: spans of OpenTelemetry for a start, its passes and its commit, and counters.

The package is optional: it is loaded when `open_telemetry` is called.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from holdfast._version import __version__
from holdfast.errors import MissingExtraError
from holdfast.progress.events import Event, Listener, summary_of

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

_NAME = "holdfast"


def open_telemetry(
    *, tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None
) -> Listener:
    """Return a function for `on_event=` that records spans and counters of OpenTelemetry.

    A span for each start, and in it one for each pass and for the commit. Counters, by table:
    `holdfast.rows`, `holdfast.failed_rows`, `holdfast.cost`, `holdfast.held_cost` (what killed
    tasks may have spent besides), `holdfast.staged` (bytes) and `holdfast.storage.wait` (seconds
    that tasks waited for storage).

    Args:
        tracer_provider: Where spans go; by default the process's own provider.
        meter_provider: Where counters go; by default the process's own provider.

    Raises:
        MissingExtraError: The package is not installed.
    """
    try:
        from opentelemetry import metrics, trace  # noqa: PLC0415 - optional.
    except ImportError as error:
        package, extra = "opentelemetry-api", "opentelemetry"
        raise MissingExtraError(what="OpenTelemetry", package=package, extra=extra) from error
    tracer = trace.get_tracer(_NAME, __version__, tracer_provider)
    meter = metrics.get_meter(_NAME, __version__, meter_provider)
    return _Telemetry(trace, tracer, meter)


class _Telemetry:
    """One start after the other: spans that are open, and what counters have counted."""

    def __init__(self, trace: Any, tracer: Any, meter: Any) -> None:  # noqa: ANN401 - optional.
        self._trace, self._tracer = trace, tracer
        self._counters = {
            "rows": meter.create_counter("holdfast.rows", "{row}", "rows made durable"),
            "failed_rows": meter.create_counter("holdfast.failed_rows", "{row}", "rows set aside"),
            "cost": meter.create_counter("holdfast.cost", "1", "the sum of cost="),
            "held_cost": meter.create_counter(
                "holdfast.held_cost", "1", "held by killed tasks, perhaps spent"
            ),
            "bytes": meter.create_counter("holdfast.staged", "By", "table files written"),
            "waited": meter.create_counter(
                "holdfast.storage.wait", "s", "how long tasks waited for storage"
            ),
        }
        # The spans that are open, by run: its start, and what is done in it.
        self._starts: dict[str, Any] = {}
        self._parts: dict[str, Any] = {}
        self._counted: dict[str, dict[str, float]] = {}

    def __call__(self, event: Event) -> None:
        run_id, at = event.run_id, int(event.at * 1e9)
        if event.kind != "progress":
            self._end_part(run_id, at)
        if event.kind == "started":
            facts = {"run_id": run_id, "table": event.table, "start": event.start}
            self._starts[run_id] = self._tracer.start_span(
                "holdfast start",
                context=self._trace.set_span_in_context(self._trace.INVALID_SPAN),
                start_time=at,
                attributes={f"holdfast.{name}": value for name, value in facts.items()},
            )
        elif event.kind in {"pass", "commit"} and run_id in self._starts:
            self._parts[run_id] = self._tracer.start_span(
                f"holdfast {event.kind}",
                context=self._trace.set_span_in_context(self._starts[run_id]),
                start_time=at,
                attributes={"holdfast.pass": event.passes},
            )
        self._count(event)
        if event.kind == "ended":
            self._end_start(event, at)

    def _end_part(self, run_id: str, at: int) -> None:
        if (part := self._parts.pop(run_id, None)) is not None:
            part.end(at)

    def _end_start(self, event: Event, at: int) -> None:
        self._counted.pop(event.run_id, None)
        span = self._starts.pop(event.run_id, None)
        if span is None:
            return
        if event.report is not None:
            span.set_attribute("holdfast.outcome", event.report.outcome)
            span.set_attribute("holdfast.rows", event.report.rows)
        if event.error is not None:
            text = f"{type(event.error).__name__}: {summary_of(event.error)}"
            span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, text))
        span.end(at)

    def _count(self, event: Event) -> None:
        """Count what this start has done since its last event."""
        seen = event.progress
        if seen is None:
            return
        now: Mapping[str, float] = {
            "rows": seen.good_rows,
            "failed_rows": seen.quarantined_rows,
            "cost": seen.cost,
            "held_cost": seen.held_cost,
            "bytes": seen.size_bytes,
            "waited": seen.waited_s,
        }
        before = self._counted.setdefault(event.run_id, dict(now))  # What earlier starts did.
        for name, value in now.items():
            if (more := value - before[name]) > 0:  # Less: rows were withdrawn.
                self._counters[name].add(more, {"holdfast.table": event.table})
                before[name] = value
