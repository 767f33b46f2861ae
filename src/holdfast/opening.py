"""Opening: a run's store and table, from arguments, the session's settings or the environment."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.engine.watch import of_each, run_ids, status
from holdfast.errors import LedgerDamagedError, MissingExtraError, SettingsError
from holdfast.ledger.ledger import Ledger, Ports
from holdfast.model.history import RunStatus
from holdfast.sinks.base import Sink
from holdfast.sinks.targets import Create, IcebergTable, LanceTable, Target
from holdfast.sources.base import PinnedScan
from holdfast.sources.lance import PinnedLanceScan
from holdfast.sources.scans import IcebergScan, LanceScan, Scan
from holdfast.spark import SparkSession
from holdfast.storage.locations import normalise
from holdfast.storage.objects import ObjectStorage

if TYPE_CHECKING:
    from holdfast.sinks.lance.columns import LanceColumnSink
    from holdfast.sources.lance_columns import PinnedColumnScan

_STORE_SETTING = "spark.holdfast.store"
_STORE_VARIABLE = "HOLDFAST_STORE"
_SCAN_SETTINGS = "spark.holdfast.scan."


def open_store(
    store: str | None, options: Mapping[str, str] | None, session: SparkSession | None
) -> tuple[str, ObjectStorage]:
    """Return the store's URI and how it is reached.

    Args:
        store: The user's argument, or None.
        options: The user's storage options, or None.
        session: The session whose settings fill in what is not given; None if there is no session.

    Raises:
        SettingsError: No store is named.
        HiddenSettingError: The session does not reveal a setting.
    """
    places = {
        "": store,
        _STORE_SETTING: _setting(session),
        _STORE_VARIABLE: os.environ.get(_STORE_VARIABLE),
    }
    origin, uri = next(((name, uri) for name, uri in places.items() if uri), ("", ""))
    if not uri:
        raise SettingsError(
            what="no store is named for the run's ledger",
            cure=f"pass Run(store=...), or --store to a command, or set {_STORE_SETTING} or "
            f"{_STORE_VARIABLE}",
        )
    if options is None:
        options = _settings_under(session, f"{_STORE_SETTING}.")
    try:
        return normalise(uri), ObjectStorage(options)
    except SettingsError as error:
        if origin:
            error.what = f"{origin}: {error.what}"
        raise


def open_table(  # noqa: PLR0913 - each is another fact of the table.
    target: Target,
    session: SparkSession | None,
    create: Create | None = None,
    schema: Callable[[], pa.Schema] = lambda: pa.schema([]),
    *,
    of_known_run: bool = False,
    only_looks: bool = False,
    before_create: Callable[[Sink], object] = lambda _: None,
) -> Sink:
    """Return the sink of a table.

    Args:
        target: Which table.
        session: The session whose settings name the catalog or hold storage options; None if the
            target has them itself.
        create: How to create the table if it does not exist.
        schema: Returns the schema for a table that is created without an explicit one.
        of_known_run: Whether a ledger already names the table as its run's table, so that it is
            only looked up.
        only_looks: Whether nothing may be written, not even an id of a Lance dataset.
        before_create: Called if the table does not exist, before it is created; may refuse.

    Raises:
        MissingExtraError: PyIceberg or Lance is not installed.
        SettingsError: The catalog or the table cannot be used.
    """
    settings_under = partial(_settings_under, session)
    if isinstance(target, LanceTable):
        with _installed("a Lance dataset", "lance"):
            from holdfast.sinks.lance import sink as lance  # noqa: PLC0415 - lance is optional.
            from holdfast.sinks.lance.fields import refuse_other_pylance  # noqa: PLC0415

            if target.namespace is not None:  # Loading it takes a second.
                from holdfast.sinks.lance.namespaces import located  # noqa: PLC0415

                target = located(target, before_create if create is not None else None)
        refuse_other_pylance()
        return lance.open_sink(
            target,
            settings_under=settings_under,
            create=create,
            default_schema=schema,
            without_id="refuse" if of_known_run else "look" if only_looks else "give",
            before_create=before_create,
        )
    with _installed("an Iceberg table", "iceberg"):
        from holdfast.sinks.iceberg import open as iceberg  # noqa: PLC0415 - so is pyiceberg.

    return iceberg.open_sink(
        target,
        settings_under=settings_under,
        create=create,
        default_schema=schema,
        before_create=before_create,
    )


def open_columns(
    target: LanceTable,
    session: SparkSession,
    columns: Sequence[str],
    where: pc.Expression | None,
) -> tuple[LanceColumnSink, PinnedColumnScan]:
    """Return a dataset as what is read and as what is written, for a run that computes columns.

    Args:
        target: The dataset.
        session: The session whose settings hold storage options that are not given.
        columns: The columns that are read.
        where: The rows that are read; None for all.

    Raises:
        MissingExtraError: Lance is not installed.
        SettingsError: It is a version that a post could not be made with.
    """
    with _installed("a Lance dataset", "lance"):
        from holdfast.sinks.lance import columns as lance  # noqa: PLC0415 - lance is optional.
        from holdfast.sinks.lance.fields import refuse_other_pylance  # noqa: PLC0415
        from holdfast.sources.lance_columns import PinnedColumnScan  # noqa: PLC0415

    refuse_other_pylance()
    sink = lance.open_sink(target, partial(_settings_under, session))
    scan = LanceScan(uri=sink.place.uri, columns=tuple(columns), where=where)
    return sink, PinnedColumnScan(scan, sink.place)


def configured_catalog(name: str) -> dict[str, str] | None:
    """Return PyIceberg's own configuration of a catalog, from its file or the environment.

    Args:
        name: The catalog's name.

    Raises:
        MissingExtraError: PyIceberg is not installed.
        SettingsError: The configuration cannot be read.
    """
    with _installed("an Iceberg table", "iceberg"):
        from holdfast.sinks.iceberg.catalog import configured  # noqa: PLC0415 - it is optional.

    return configured(name)


def open_scan(scan: Scan, session: SparkSession) -> PinnedScan:
    """Return a scan together with its storage.

    Args:
        scan: The scan that the user names.
        session: The session whose settings supply storage options that are not given.

    Raises:
        HiddenSettingError: The session does not reveal a setting.
        MissingExtraError: PyIceberg or Lance is needed but not installed.
        SettingsError: The table's catalog cannot be used.
    """
    if isinstance(scan, IcebergScan):
        return _open_iceberg_scan(scan, session)
    options = scan.options
    if options is None:
        options = _settings_under(session, _SCAN_SETTINGS)
    if isinstance(scan, LanceScan):
        return _open_lance_scan(scan, options)
    return scan.on(ObjectStorage(options))


def _open_iceberg_scan(scan: IcebergScan, session: SparkSession) -> PinnedScan:
    with _installed("an Iceberg table", "iceberg"):
        from holdfast.sinks.iceberg.open import table_loader  # noqa: PLC0415 - pyiceberg is optional.
        from holdfast.sources.iceberg import PinnedIcebergScan  # noqa: PLC0415

    named = scan.table
    target = (
        IcebergTable(named)
        if isinstance(named, str)
        else IcebergTable(named.name, catalog=named.catalog, branch=named.branch)
    )
    name, load = table_loader(target, partial(_settings_under, session))
    return PinnedIcebergScan(scan, name, target.branch, load)


def _open_lance_scan(scan: LanceScan, options: Mapping[str, str]) -> PinnedScan:
    with _installed("a Lance dataset", "lance"):
        from holdfast.sinks.lance.dataset import DatasetPlace  # noqa: PLC0415 - lance is optional.

    return PinnedLanceScan(scan, DatasetPlace(uri=scan.uri, options=dict(options)))


@contextlib.contextmanager
def _installed(what: str, extra: str) -> Iterator[None]:
    """Say what to install if a table format's library is missing.

    Raises:
        MissingExtraError: The library is not installed.
    """
    try:
        yield
    except ImportError as error:
        raise MissingExtraError(what=what, package=error.name or extra, extra=extra) from error


def active_session() -> SparkSession | None:
    """Return this thread's Spark session, if there is one."""
    try:
        from holdfast.spark.session import active  # noqa: PLC0415 - pyspark is optional.
    except MissingExtraError:
        return None
    return active()


def _setting(session: SparkSession | None) -> str:
    if session is None:
        return ""
    from holdfast.spark.session import setting  # noqa: PLC0415 - pyspark is optional.

    return setting(session, _STORE_SETTING)


def _settings_under(session: SparkSession | None, prefix: str) -> dict[str, str]:
    if session is None:
        return {}
    from holdfast.spark.session import settings_under  # noqa: PLC0415 - pyspark is optional.

    return settings_under(session, prefix)


def refuse_on_lance(target: Target, mode: str, *, by_filter: bool) -> None:
    """Refuse what cannot be done to a Lance dataset.

    Raises:
        SettingsError: The target is a dataset, and rows are replaced by partitions, key or filter.
    """
    by = {"overwrite_partitions": "partitions", "upsert": "a key"}.get(mode, "")
    lacks = by or ("a filter" if by_filter else "")
    if lacks and isinstance(target, LanceTable):
        raise SettingsError(
            what=f"{target.uri} is a Lance dataset, whose rows are replaced without {lacks}",
            cure="write to an Iceberg table; or call overwrite, which replaces ALL rows",
        )


CURE_OF_CREATE = (
    "hf.Create() without a schema creates the table with the input's columns, not with the "
    "transform's: ALTER the table so that the output fits, and run the same script again; or drop "
    "it, give hf.Create(schema=...), and start under another run id"
)


# ---- All runs of a store


def runs(
    store: str | None = None, *, store_options: Mapping[str, str] | None = None
) -> list[RunStatus]:
    """Return the state of every run in a store. Reads only the ledgers.

    A run whose ledger cannot be read is "damaged", with the reason in `error`. A folder that is not
    a run is left out. Neither hides the other runs.

    Args:
        store: The store's URI; by default as for `Run`.
        store_options: As for `Run`.

    Raises:
        SettingsError: No store is named.
        StoreUnavailableError: The store does not answer.
    """
    uri, storage = open_store(store, store_options, active_session())
    return of_each(
        lambda run_id: _status(Ledger.open(run_id, uri, storage, Ports())), run_ids(storage, uri)
    )


def _status(ledger: Ledger) -> RunStatus:
    try:
        return status(ledger)
    except LedgerDamagedError as error:
        return RunStatus.damaged(ledger.run_id, f"{error.uri}: {error.reason}")
