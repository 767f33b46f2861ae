"""One write, from the user's arguments to the engine: opens table and input, and drives them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from holdfast.engine.claim import Prepared, refuse_new_table
from holdfast.engine.drive import Driver, MovingRows, warn_of_doubts
from holdfast.engine.options import Mode, WriteOptions
from holdfast.errors import SchemaMismatchError, SettingsError
from holdfast.inputs import Input
from holdfast.ledger.ledger import Ledger
from holdfast.model.identity import Identity
from holdfast.model.records import Ready
from holdfast.model.report import Report
from holdfast.opening import CURE_OF_CREATE, open_table, refuse_on_lance
from holdfast.progress.events import Event, Listener, heard
from holdfast.progress.watching import shown
from holdfast.sinks.base import Sink, TableView, WriterSpec
from holdfast.sinks.conform import Conformer
from holdfast.sinks.targets import Create, Target
from holdfast.spark import SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class Writing:
    """One write of a run, with its table and its input open."""

    target: Target
    create: Create | None
    options: WriteOptions
    given: Input
    ledger: Ledger
    sink: Sink
    view: TableView
    identity: Identity
    # What to do about rows of the table that others move, if they are the input.
    moving: MovingRows | None = None
    # What is committed, if all is staged.
    ready: Ready | None = None

    @classmethod
    def prepare(  # noqa: PLR0913 - the user's choices, and how they are opened.
        cls,
        mode: Mode,
        target: Target,
        *,
        open_given: Callable[[], Input],
        open_ledger: Callable[[SparkSession], Ledger],
        options: WriteOptions,
        create: Create | None,
        of_run: Mapping[str, str],
    ) -> Writing:
        """Open the input, the ledger and the table, and create the table if the user says so.

        Args:
            mode: What becomes of the table's rows.
            target: The table.
            open_given: Opens the input.
            open_ledger: Opens the ledger, given the input's session.
            options: The user's options.
            create: How to create the table if it does not exist.
            of_run: The parts of the run's identity that belong to the `Run`.

        Raises:
            SettingsError: An argument or a setting cannot be used.
            HoldfastError: The table cannot be opened.
        """
        from holdfast.spark import session as spark  # noqa: PLC0415 - pyspark is optional.

        if not (create is None or isinstance(create, Create)):
            raise SettingsError(what=f"create={create!r}", cure="give hf.Create(...), or None")
        refuse_on_lance(target, mode, by_filter=options.where is not None)
        given = open_given()
        if given.identity:  # Comparing the files of a scan costs next to nothing.
            options = replace(options, verify_input="keys")
        spark.refuse_wap(given.session)
        ledger = open_ledger(given.session)
        identity_on = partial(
            Identity,
            branch=target.branch,
            mode=mode,
            where=options.where_text,
            on=options.on_columns,
            delete_column=options.delete_column or "",
            key=given.key,
            input=given.identity,
            **of_run,
            **spark.semantics(given.session),
        )
        refuse = partial(refuse_new_table, ledger, identity_on)
        sink = open_table(target, given.session, create, given.schema, before_create=refuse)
        view = sink.load()
        return cls(
            target=target,
            create=create,
            options=options,
            given=given,
            ledger=ledger,
            sink=sink,
            view=view,
            identity=identity_on(table=sink.name, table_uuid=view.uuid),
        )

    def run(
        self,
        prepared: Prepared | None,
        complete: Callable[[Report], Report],
        *,
        progress: bool | None,
        listeners: Sequence[Listener],
    ) -> Report:
        """Write, and return the report.

        Args:
            prepared: What `remaining` has claimed and measured.
            complete: Puts into the report what only the caller knows.
            progress: Whether to show progress; None to decide by where the output goes.
            listeners: What is told what happens.

        Raises:
            SchemaMismatchError: The output does not fit the table.
            HoldfastError: Any other error; durable work is kept.
        """
        about = Event(
            kind="started",
            at=0.0,
            run_id=self.ledger.run_id,
            table=self.sink.name,
            location=self.view.location,
            inputs=self.given.reads,
        )
        with heard(listeners, self.ledger, about) as told:
            told.report = report = complete(self._run(prepared, progress=progress))
        return report

    def _run(self, prepared: Prepared | None, *, progress: bool | None) -> Report:
        """Write, and return the report.

        Raises:
            SchemaMismatchError: The output does not fit the table.
            HoldfastError: Any other error; durable work is kept.
        """
        given, sink, options = self.given, self.sink, self.options

        def check_output(spec: WriterSpec) -> None:
            if options.transform is None:  # Known now: fail before any task starts.
                Conformer(spec.table, given.schema(), spec.schema, may_lack=spec.may_lack)

        driver = Driver(
            ledger=self.ledger,
            sink=sink,
            input=given,
            prepared=prepared,
            check_output=check_output,
            moving=self.moving,
            ready=self.ready,
        )
        try:
            with shown(self.ledger, sink.name, wanted=progress, tasks=self._tasks):
                report = driver.write(self.view, self.identity, options)
        except SchemaMismatchError as error:
            if self.create and self.create.schema is None and options.transform is not None:
                error.cure = CURE_OF_CREATE
            raise
        self._forget_cached_table()
        if self.ready is None:
            warn_of_doubts(report)
        if report.snapshot_id is not None:
            report = replace(report, unindexed_rows=sink.unindexed_rows())
        return report if given.compares else replace(report, input_compared=None)

    def _tasks(self) -> tuple[int, int] | None:
        """Return how many of Spark's current tasks have ended, and how many there are."""
        if self.given.session is None:
            return None
        from holdfast.spark.session import tasks_running  # noqa: PLC0415 - pyspark is optional.

        return tasks_running(self.given.session)

    def _forget_cached_table(self) -> None:
        if self.given.session is not None:
            from holdfast.spark.session import forget_cached_table  # noqa: PLC0415 - as above.

            forget_cached_table(self.given.session, self.target)
