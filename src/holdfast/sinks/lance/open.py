"""From what a user names to an open sink; the dataset is created if asked to."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow as pa
from lance import LanceDataset, LanceOperation, Transaction
from lance.schema import LanceSchema

from holdfast.errors import CommitRefusedError, SettingsError, TableMissingError
from holdfast.failpoints import failpoint
from holdfast.model.lasting import lasts
from holdfast.plain_text import told
from holdfast.sinks.base import Sink
from holdfast.sinks.lance.dataset import DatasetPlace
from holdfast.sinks.lance.sink import LanceSink
from holdfast.sinks.targets import Create, LanceTable
from holdfast.storage.locations import normalise

_SETTINGS = "spark.holdfast.lance."
# What `Create(properties=)` may say.
_STABLE_ROW_IDS = "enable_stable_row_ids"


def open_sink(  # noqa: PLR0913 - each is another fact of the dataset.
    target: LanceTable,
    *,
    settings_under: Callable[[str], Mapping[str, str]],
    create: Create | None,
    default_schema: Callable[[], pa.Schema],
    of_known_run: bool = False,
    before_create: Callable[[Sink], object] = lambda _: None,
) -> LanceSink:
    """Open the dataset and, if asked to, create it.

    Args:
        target: What the user named.
        settings_under: Gives the session's settings below a prefix.
        create: How to create the dataset if there is none.
        default_schema: Gives the new dataset's schema when the user gave none.
        of_known_run: Whether a ledger names the dataset, as that of a run.
        before_create: Called when there is no dataset, before one is created; may refuse it.

    Raises:
        SettingsError: An argument cannot be used.
        CommitRefusedError: The dataset could not be created.
        StoreUnavailableError: The store does not answer.
    """
    options = target.storage_options
    if options is None:
        options = settings_under(_SETTINGS)
    place = DatasetPlace(uri=normalise(target.uri), options=dict(options))
    sink = LanceSink(
        place,
        rows_per_file=target.max_rows_per_file,
        bytes_per_file=target.max_bytes_per_file,
        of_known_run=of_known_run,
    )
    if create is not None:
        try:
            sink.load()
        except TableMissingError:
            before_create(sink)
            schema = create.schema if create.schema is not None else default_schema()
            _create(place, create, schema)
    return sink


def _create(place: DatasetPlace, create: Create, schema: pa.Schema) -> None:
    """Create the dataset; if another start was faster, leave its dataset alone.

    Raises:
        SettingsError: What the user asks for does not exist in Lance.
        CommitRefusedError: It could not be created.
    """
    if create.partition_by:
        raise SettingsError(
            what="Create(partition_by=) for a Lance dataset, which has no partitions",
            cure="leave it out",
        )
    if unknown := set(create.properties) - {_STABLE_ROW_IDS}:
        raise SettingsError(
            what=f"Create(properties=) has {min(unknown)!r}, which means nothing here",
            cure=f"give {_STABLE_ROW_IDS}, or create the dataset with Lance itself",
        )
    if not isinstance(schema, pa.Schema):
        raise SettingsError(
            what=f"Create(schema=) is a {type(schema).__name__}", cure="give a pyarrow.Schema"
        )
    # Not `write_dataset(mode="create")`: of two at once both may land, the later over the earlier.
    # Without a retry Lance puts version 1 there, or nothing.
    made = Transaction(
        read_version=0,
        operation=LanceOperation.Overwrite(LanceSchema.from_pyarrow(schema), []),
    )
    options = place.lance_options
    failpoint("before-lance-create")
    try:
        LanceDataset.commit(
            place.uri,
            made,
            storage_options=options,
            max_retries=0,
            enable_stable_row_ids=create.properties.get(_STABLE_ROW_IDS, "").lower() == "true",
        )
    except Exception as error:  # noqa: BLE001 - Lance has no error of its own for a rival.
        try:
            place.open()  # Somebody's, or our own whose answer was lost.
        except TableMissingError:
            reason, cause = told(error, place.options)
            raise CommitRefusedError(
                table=place.uri, reason=reason, retry_safe=not lasts(error)
            ) from cause
    failpoint("after-lance-create")
