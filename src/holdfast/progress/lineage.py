"""Lineage: a run's events as OpenLineage knows them, with its input and output datasets.

The package is optional: it is loaded when `open_lineage` is called.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from holdfast._version import __version__
from holdfast.errors import MissingExtraError, SettingsError
from holdfast.model.report import Report
from holdfast.progress.events import Event, Listener, summary_of

if TYPE_CHECKING:
    from openlineage.client import OpenLineageClient

_NAME = "holdfast"
_PRODUCER = f"urn:{_NAME}:{__version__}"
# So that the same start has the same id wherever its events are made.
_STARTS = uuid.UUID("5f0c7f0e-6a0e-4c63-9d8e-2f8e1a7b4c10")


def open_lineage(
    *,
    job: str,
    namespace: str = "default",
    inputs: Sequence[str] = (),
    client: OpenLineageClient | None = None,
) -> Listener:
    """Return a function for `on_event=` that sends OpenLineage events.

    Each start of a run is a run of the job: START, RUNNING as it goes on, and COMPLETE, or FAIL
    with the error. The table is its output, with the rows and files of the commit; a scan is its
    input.

    Args:
        job: The job's name, the same for all its runs.
        namespace: The job's namespace.
        inputs: What a DataFrame reads: URIs, which Holdfast does not know.
        client: The client; by default it is configured by the environment (`OPENLINEAGE_URL`, ...)
            or by openlineage.yml.

    Raises:
        MissingExtraError: The package is not installed.
        SettingsError: `inputs` is one text.
    """
    try:
        from openlineage.client import OpenLineageClient  # noqa: PLC0415 - optional.
    except ImportError as error:
        package, extra = "openlineage-python", "openlineage"
        raise MissingExtraError(what="OpenLineage", package=package, extra=extra) from error
    if isinstance(inputs, str):
        raise SettingsError(what=f"inputs={inputs!r}", cure="give a list of URIs")
    return _Lineage(client or OpenLineageClient(), namespace, job, tuple(inputs))


class _Lineage:
    def __init__(
        self, client: OpenLineageClient, namespace: str, job: str, inputs: tuple[str, ...]
    ) -> None:
        from openlineage.client import event_v2, facet_v2  # noqa: PLC0415 - optional.

        self._events, self._facets = event_v2, facet_v2
        self._client = client
        self._job = event_v2.Job(
            namespace,
            job,
            {
                "jobType": facet_v2.job_type_job.JobTypeJobFacet(
                    processingType="BATCH", integration="HOLDFAST", jobType="JOB"
                )
            },
        )
        self._inputs = inputs

    def __call__(self, event: Event) -> None:
        states = self._events.RunState
        state = {"started": states.START, "ended": states.COMPLETE}.get(event.kind, states.RUNNING)
        if event.error is not None:
            state = states.FAIL if isinstance(event.error, Exception) else states.ABORT
        # One that ended before it had a number is a run of its own, however often that happens.
        number = event.start or event.at
        of_start = uuid.uuid5(_STARTS, f"{event.location} {event.run_id} {number}")
        self._client.emit(
            self._events.RunEvent(
                eventTime=datetime.fromtimestamp(event.at, tz=timezone.utc).isoformat(),
                producer=_PRODUCER,
                run=self._events.Run(str(of_start), self._run_facets(event)),
                job=self._job,
                eventType=state,
                inputs=[
                    self._events.InputDataset(*self._named(name))
                    for name in dict.fromkeys((*event.inputs, *self._inputs))
                ],
                outputs=[
                    self._events.OutputDataset(
                        *self._named(event.location),
                        outputFacets=self._output_facets(event.report),
                        facets=self._table_facets(event),
                    )
                    for _ in filter(None, [event.location])
                ],
            )
        )

    def _named(self, name: str) -> tuple[str, str]:
        """Return the namespace and the name of a dataset, as OpenLineage divides a URI."""
        parts = urlsplit(name)
        if not parts.scheme:
            return self._job.namespace, name
        place = f"{parts.scheme}://{parts.netloc}" if parts.netloc else parts.scheme
        return place, parts.path.strip("/") if parts.netloc else parts.path

    def _run_facets(self, event: Event) -> dict[str, Any]:
        engine = self._facets.processing_engine_run.ProcessingEngineRunFacet(
            version=__version__, name=_NAME, openlineageAdapterVersion=__version__
        )
        tags = self._facets.tags_run
        found: dict[str, Any] = {
            "processing_engine": engine,
            "tags": tags.TagsRunFacet(
                tags=[
                    tags.TagsRunFacetFields("holdfast_run_id", event.run_id),
                    tags.TagsRunFacetFields("holdfast_start", str(event.start)),
                    *(
                        tags.TagsRunFacetFields(f"holdfast_{name}", str(value))
                        for name, value in _figures(event).items()
                    ),
                ]
            ),
        }
        if event.error is not None:
            found["errorMessage"] = self._facets.error_message_run.ErrorMessageRunFacet(
                message=f"{type(event.error).__name__}: {summary_of(event.error)}",
                programmingLanguage="PYTHON",
            )
        return found

    def _output_facets(self, report: Report | None) -> dict[str, Any]:
        """Return what the commit has added."""
        if report is None or report.outcome != "committed":
            return {}
        statistics = self._facets.output_statistics_output_dataset
        return {
            "outputStatistics": statistics.OutputStatisticsOutputDatasetFacet(
                rowCount=report.rows, size=report.size_bytes, fileCount=report.files
            )
        }

    def _table_facets(self, event: Event) -> dict[str, Any]:
        found: dict[str, Any] = {}
        symlinks = self._facets.symlinks_dataset
        if event.table != event.location:
            found["symlinks"] = symlinks.SymlinksDatasetFacet(
                [symlinks.Identifier(self._job.namespace, event.table, "TABLE")]
            )
        if event.report is not None and event.report.snapshot_id is not None:
            version = self._facets.dataset_version_dataset.DatasetVersionDatasetFacet
            found["version"] = version(str(event.report.snapshot_id))
        return found


def _figures(event: Event) -> dict[str, float]:
    """Return how far a run is: rows, of them kept and failed, and costs."""
    seen = event.progress
    if seen is None:
        return {}
    return {
        "done_rows": seen.done_rows,
        "kept_rows": seen.kept_rows,
        "failed_rows": seen.quarantined_rows,
        "cost": seen.cost,
        "held_cost": seen.held_cost,
    }
