"""One history: drivers that are killed and started again, while other actors do as they like."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from holdfast.engine.claim import _PREPARED_FOR_S, prepare
from holdfast.engine.cleanup import sweep
from holdfast.engine.drive import Driver
from holdfast.engine.options import WriteOptions
from holdfast.engine.resolve import refuse_doubt
from holdfast.errors import HoldfastError, RunAbortedError
from holdfast.ledger.layout import RunLayout
from holdfast.ledger.ledger import Ledger, Ports, TaskPorts
from holdfast.ledger.run_log import RunLog
from holdfast.model.history import unix_seconds
from holdfast.model.identity import Identity
from holdfast.model.records import Abort, Claim, Ready, Receipt, Record, Stop
from holdfast.model.report import Report
from holdfast.model.usage import Usage
from holdfast.rehearsal import commit_options, ready_of
from holdfast.sinks.base import Sink, TableView, WriteMode
from holdfast.worker.transforms import per_row
from tests.fakes.memory_scan import MemoryScan, MemoryScanInput
from tests.fakes.unpinned import Unpinned
from tests.simulation.chance import Chance
from tests.simulation.columns import GONE, KEY, filled
from tests.simulation.deeds import DEEDS
from tests.simulation.filtered_table import WHERE, FilteredTable
from tests.simulation.keyed_table import KeyedTable
from tests.simulation.lance_table import LanceSimTable
from tests.simulation.scale import scaled_down
from tests.simulation.setting import Setting, TableFormat
from tests.simulation.signals import simulated_signals
from tests.simulation.spark import SimSpark
from tests.simulation.store import SimStorage
from tests.simulation.table import SimTable
from tests.simulation.transforms import Mended, Misfit, Outsider, Transform
from tests.simulation.world import Actor, DiedError, Faults, World

STORE, RUN_ID = "s3://store", "r"
LAYOUT = RunLayout.of(STORE, RUN_ID)
_STARTS_MAX = 3
# The call before which an actor may stall: most histories have ended by then.
_STALLS_BEFORE = 300
# How long it takes until a user starts an abandoned job again.
LONG_S = 5_000.0
# How long a driver of a history may give no sign of life.
_LONGEST_QUIET_S = 120.0

WRITE_MODES: tuple[WriteMode, ...] = ("copy-on-write", "merge-on-read")
# What a user may choose by mistake; the first is not a mistake.
_SLIPS: tuple[dict[str, Any], ...] = (
    {},
    {"retries": -1},
    {"one_to_one": "some"},
    {"checkpoint_every": "soon"},
    {"max_errors": 1.5},
    {"cost": -1},
    {"transform": per_row(lambda row: row)},
)


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the transform."""

    step: int
    claim: int
    ids: tuple[int, ...]


@dataclass(slots=True)
class Start:
    """One start of the script, and how it ended."""

    name: str
    driven: Report | None = None
    error: BaseException | None = None


@dataclass
class History:
    """Everything that happens in one history, and what is left of it."""

    seed: int
    # What others may do to a table of each format, by name.
    others: Mapping[TableFormat, Mapping[str, Callable[[History], None]]]
    given: Sequence[int] | None = None
    is_traced: bool = False
    world: World = field(init=False)
    setting: Setting = field(init=False)
    storage: SimStorage = field(init=False)
    # The store when all was done, before the sweep.
    before_sweep: SimStorage = field(init=False)
    table: SimTable = field(init=False)
    starts: list[Start] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    # What others have done, by its name in `DEEDS`, and which errors they got.
    deeds: set[str] = field(default_factory=set)
    refusals: list[HoldfastError] = field(default_factory=list)
    # Violations that were seen while they happened.
    wrong: list[str] = field(default_factory=list)
    # The step in which an abort ended without doubt, and whether the table was rolled back or
    # replaced.
    aborted_at: int | None = None
    is_disturbed: bool = False
    files_removed: bool = False
    versions_removed: bool = False
    is_damaged: bool = False
    is_rewound: bool = False
    # Whether the ledger is not what drivers have written: restored, cut, or used in two places.
    is_ledger_moved: bool = False
    copies: list[SimStorage] = field(default_factory=list)
    # Whether the last sweep has ended.
    is_swept: bool = False
    # Whether faults have ended.
    is_ending: bool = False
    # The code that drivers run now: fixed, or not yet.
    is_mended: bool = False
    failed_once: set[int] = field(default_factory=set)
    # The inputs that starts of the script have read.
    inputs: list[list[int | None]] = field(default_factory=list)
    _users: list[Actor] = field(default_factory=list)
    # The actor that opened a ledger, by process id.
    _processes: dict[int, Actor | None] = field(default_factory=dict)
    _names: Any = field(default_factory=lambda: itertools.count(1))
    _nonces: Any = field(default_factory=lambda: itertools.count(1))

    def __post_init__(self) -> None:
        """Draw the setting."""
        chance = Chance(self.seed, self.given)
        self.setting = Setting.drawn(
            chance, {table_format: sorted(kinds) for table_format, kinds in self.others.items()}
        )
        faults = Faults(deaths=chance.of(4), calls=chance.of(6))
        self.world = World(chance, faults, is_traced=self.is_traced)
        for _ in range(chance.of(3, 0.4)):
            step = chance.of(_STALLS_BEFORE)
            self.world.stalls[step] = (20.0, 300.0, LONG_S)[chance.of(3)]
        self.storage, self.before_sweep = SimStorage(self.world), SimStorage(self.world)
        self.storage.overwrites = self.setting.unsafe_store
        filtered = KeyedTable if self.setting.is_keyed else FilteredTable
        iceberg = filtered if self.setting.is_filtered else SimTable
        kind = LanceSimTable if self.setting.format == "lance" else iceberg
        self.table = kind(
            self.world, empty=self.setting.empty_table, file_rows=self.setting.file_rows
        )
        if isinstance(self.table, KeyedTable):
            self.table.deleting = self.setting.deleting

    def run(self) -> None:
        """Run it; then, without further faults, bring it to its end."""
        with scaled_down(self.setting), simulated_signals(self.world):
            self._users = [
                self.world.spawn(name, self._user)
                for name in ("user", "rival")[: 1 + self.setting.rival]
            ]
            for kind in self.setting.others:
                act = self.others[self.setting.format][kind]
                self.world.spawn(kind, lambda act=act: act(self))  # type: ignore[misc]
            self.world.go_on()
            self.world.faults, self.is_ending = Faults(), True
            self.world.stalls = {}
            self.is_mended = self.setting.is_mended
            for _ in range(2):
                self.world.spawn("last", self.start_and_wait)
                self.world.go_on()
            self.before_sweep.objects = dict(self.storage.objects)
            self.before_sweep.written_at = dict(self.storage.written_at)
            self.world.spawn("sweep", self.sweep)
            self.world.go_on()

    @property
    def has_users(self) -> bool:
        """Whether a user may still start the script."""
        return any(not user.is_done for user in self._users)

    def did(self, deed: str, what: str = "") -> None:
        """Record what an actor has done."""
        self.deeds.add(deed)
        self.world.note(f"{deed} {what}".rstrip())

    def is_harmless(self, *, in_doubt: bool) -> bool:
        """Whether nothing was done that the last start may fail because of.

        Args:
            in_doubt: Whether the log has an intent that was posted but not answered.
        """
        done = [DEEDS[deed] for deed in self.deeds]
        if self.setting.spares_others and any(deed.changes_files for deed in done):
            return False
        return all(deed.is_harmless or (deed.needs_doubt and not in_doubt) for deed in done)

    def sweep(self, open_sink: Callable[[Identity], Sink] | None = None) -> None:
        """Sweep the run, as a user does."""
        self.is_swept = False
        sweep(self.ledger(), open_sink or (lambda _identity: self.table))
        self.is_swept = True

    def some_time(self) -> None:
        """Let others act first: for a while, for long, or until a driver is about to publish."""
        world, chance = self.world, self.world.chance
        if chance.happens(0.2):
            world.wait_for(lambda: self.table.posts_begun > 0 or not self.has_users)
            steps = chance.of(8)
        else:
            steps = chance.of(40) * (1, 5)[chance.of(2)]
        for _ in range(1 + steps):
            world.pause("-")

    def ledger(self, storage: SimStorage | None = None) -> Ledger:
        """Open the run's ledger, or a copy of it, as a process of its own does."""
        world, process_id = self.world, next(self._names)
        self._processes[process_id] = world.current

        def is_running(process_id: int) -> bool:
            actor = self._processes[process_id]
            return actor is not None and actor.lives and not actor.is_done

        def new_nonce() -> str:
            return f"n{next(self._nonces)}"

        tasks = TaskPorts(
            now=lambda: world.clock,
            monotonic=lambda: world.clock,
            sleep=world.sleep,
            new_nonce=new_nonce,
            usage=lambda: Usage(at=world.clock),
        )
        ports = Ports(
            now=lambda: world.clock,
            sleep=world.sleep,
            new_nonce=new_nonce,
            jitter=lambda: 0.5,
            host="host",
            process_id=process_id,
            machine="here" if self.setting.same_machine else "",
            is_running=is_running,
            tasks=tasks,
            beside=world.beside,
            new_lock=world.new_lock,
            drivers=[],
        )
        return Ledger.open(RUN_ID, STORE, storage or self.storage, ports)

    def _watch_claims(self, log: RunLog) -> None:
        """Notice a start that should wait, but takes the run from a living driver."""
        try_claim, driver = log.try_claim, self.world.current

        def claim(body: Claim | Abort) -> Record | None:
            record = try_claim(body)
            earlier = [number for number in log.claims if record and number < record.number]
            if earlier and self._is_at_work(log, max(earlier), driver):
                self.wrong.append(f"record {max(earlier)}: its driver is alive, and was stopped")
            return record

        log.try_claim = claim  # type: ignore[method-assign]

    def _is_at_work(self, log: RunLog, number: int, other: Actor | None) -> bool:
        """Whether the driver of a claim is alive, and nothing has held up its signs of life."""
        owner, counts = self._processes[log.claims[number].process_id], self.world.counts
        if owner is None or owner is other or owner.is_done or not owner.lives:
            return False
        is_heard = not counts["lost answers"] and not self.is_ledger_moved and not self.is_damaged
        unheard_until = max(owner.stopped_until, owner.unheard_until)
        was_stopped = unheard_until > self.world.clock - _LONGEST_QUIET_S
        ends = (record.body for record in log.records[number:])
        has_ended = any(isinstance(body, Stop | Ready | Receipt | Abort) for body in ends)
        return is_heard and not was_stopped and not has_ended and not self._is_late(log, number)

    def _is_late(self, log: RunLog, number: int) -> bool:
        """Whether `remaining` made the claim longer ago than its driver gives signs of life."""
        process = log.claims[number].process_id
        first = min(other for other, claim in log.claims.items() if claim.process_id == process)
        age_s = self.world.clock - unix_seconds(log.records[number - 1].written_at)
        return self.setting.is_derived and first == number and age_s > _PREPARED_FOR_S

    def _user(self) -> None:
        for _ in range(1 + self.world.chance.of(_STARTS_MAX)):
            self.start_and_wait()
            if self.world.chance.happens(0.3):
                self.world.sleep((5.0, LONG_S)[self.world.chance.of(2)])

    def start_and_wait(self, copy: SimStorage | None = None) -> None:
        """Start the script, on the ledger or on a copy of it, and wait for its end."""
        start = Start(name=f"driver {next(self._names)}")
        self.starts.append(start)
        ids = self.setting.ids(len(self.starts))
        self.inputs.append([id_ for id_ in ids if id_ not in self.setting.left_out])
        spark = SimSpark(self.world, ids, self.setting)

        def ended(driven: Report | None, error: BaseException | None) -> None:
            start.driven, start.error = driven, error
            if isinstance(error, DiedError):
                for task in spark.tasks:
                    # Executors notice after a while that their driver is gone.
                    if not task.is_done and not self.world.chance.happens(0.5):
                        task.lives = False
            self.world.note(f"{start.name} ended: {driven and 'committed'} {error!r}")
            if driven is not None:
                str(driven)

        actor = self.world.spawn(start.name, lambda: self._drive(spark, ids, copy), ended=ended)
        spark.driver = actor
        self.world.wait_for(lambda: actor.is_done)

    def _drive(self, spark: SimSpark, ids: Sequence[int | None], copy: SimStorage | None) -> Report:
        setting, ledger = self.setting, self.ledger(copy)
        view = self.table.load()
        identity = Identity(
            table=self.table.name,
            table_uuid=view.uuid,
            branch="main",
            mode=setting.mode,
            key=() if setting.is_scan else ("id",),
            input="scan" if setting.is_scan else "",
            session_time_zone="UTC",
            ansi_mode="true",
            version="",
            where=WHERE if setting.has_filter else "",
            on=(KEY,) if setting.is_keyed else (),
            delete_column=GONE if setting.deleting else "",
        )

        options = self._options(ledger, view)
        if options.takeover == "wait" and copy is None:
            self._watch_claims(ledger.log)
        report = self._written(ledger, view, identity, options, spark, ids)
        if report.outcome != "ready" or self.world.chance.happens(0.2):
            return report
        return self._committed(spark, copy)

    def _committed(self, spark: SimSpark, copy: SimStorage | None) -> Report:
        """Commit what is staged, at once or after a while, as `Run.commit` does."""
        if self.world.chance.happens(0.3):
            self.world.sleep((5.0, LONG_S)[self.world.chance.of(2)])
        ledger = self.ledger(copy)
        run_file, ready = ready_of(ledger, or_landed=True)
        view = self.table.load()
        identity = replace(run_file.identity, table_uuid=view.uuid)
        options = commit_options(identity, ready, {"takeover": "now"})
        later = SimSpark(self.world, [], self.setting, spark.tasks)
        later.driver = spark.driver
        driver = Driver(ledger=ledger, sink=self.table, input=Unpinned(later), ready=ready)
        self.world.counts["commits of what was ready"] += 1
        return driver.write(view, identity, options)

    def _written(  # noqa: PLR0913, PLR0917 - the parts of one start.
        self,
        ledger: Ledger,
        view: TableView,
        identity: Identity,
        options: WriteOptions,
        spark: SimSpark,
        ids: Sequence[int | None],
    ) -> Report:
        """Write the input, as the script does."""
        setting = self.setting
        if setting.is_scan:
            pause = self.world.pause
            scan = MemoryScan(ids, left_out=setting.left_out, before_listing=pause)
            driver = Driver(ledger=ledger, sink=self.table, input=MemoryScanInput(scan, spark))
            return driver.write(view, identity, options)
        if not setting.is_derived:
            driver = Driver(ledger=ledger, sink=self.table, input=Unpinned(spark))
            return driver.write(view, identity, options)
        try:
            prepared = prepare(ledger, spark, ("id",), options)
        except RunAbortedError:  # As `Run.remaining` does.
            refuse_doubt(ledger, lambda _identity: self.table)
            raise
        left = spark.left(prepared.book.finished) if not prepared.has_landed else []
        derived = SimSpark(self.world, left[setting.loses_a_row :], setting, spark.tasks)
        derived.driver = spark.driver
        driver = Driver(ledger=ledger, sink=self.table, input=Unpinned(derived), prepared=prepared)
        return driver.write(view, identity, options)

    def _options(self, ledger: Ledger, view: TableView) -> WriteOptions:
        setting, chance = self.setting, self.world.chance
        columns = self.table.columns_seen(view)
        if len(columns) > 1 and chance.of(2, 0.3):
            columns = ()  # The script has not changed, and does not know the new columns.

        def called(batch: pa.RecordBatch, is_mended: bool) -> dict[str, pa.Array]:  # noqa: FBT001
            self._called(ledger, batch, is_mended=is_mended)
            ids = batch["id"].cast(pa.int64()).to_pylist()
            more = filled(columns, ids) if columns else {}
            if setting.deleting:
                more[GONE] = pa.array([id_ in setting.deleting for id_ in ids])
            return more

        outsider = Outsider if setting.outside else Transform
        faulty = Misfit if setting.misfit else outsider
        chosen: dict[str, Any] = {
            "transform": (Mended if self.is_mended else faulty)(called),
            # A script that is older than a column of the table leaves it NULL.
            "missing_columns": "error" if columns else "null",
            "verify_input": "keys" if setting.verify_input else False,
            "batch_rows": setting.batch_rows,
            "checkpoint_every": setting.checkpoint_every,
            "takeover": ("now", "wait", "never")[chance.of(2 if self.is_ending else 3)],
            "if_committed": ("compare", "return")[chance.of(2, 0.2)],
            "strict_code": setting.strict_code,
            "on_error": "quarantine" if setting.poison else "raise",
            "max_errors": setting.max_errors,
            "cost": 1.0 if setting.is_priced else 0.0,
            "budget": None if self.is_ending else setting.budget,
            "allow_empty": True,
            "isolation_level": "snapshot" if setting.spares_others else "serializable",
            "where": WHERE if setting.has_filter else None,
            "on": KEY if setting.is_keyed else None,
            # A start may use another mode than the one before it.
            "write_mode": WRITE_MODES[chance.of(2)] if setting.is_keyed else None,
            "delete_column": GONE if setting.deleting else None,
            "commit": self.is_ending or not setting.is_staged,
        }
        faults = self.world.faults
        slip = _SLIPS[chance.of(len(_SLIPS), 0.04)] if faults.calls else {}
        faults.calls -= bool(slip)
        return WriteOptions(**chosen | slip)

    def _called(self, ledger: Ledger, batch: pa.RecordBatch, *, is_mended: bool) -> None:
        """Count a call of the transform, and let it fail if it should."""
        ids = tuple(int(id_) for id_ in batch["id"].to_pylist())
        self.world.pause(f"transform {ids}{', mended' if is_mended else ''}")
        self.calls.append(Call(self.world.steps, ledger.log.own_claim, ids))
        if is_mended:
            return
        if self.setting.poison.intersection(ids):
            raise ValueError("poison")
        if {self.setting.flaky}.intersection(ids) - self.failed_once:
            self.failed_once.update(ids)
            raise ValueError("not this time")
