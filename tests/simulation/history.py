"""One history: drivers that are killed and started again, among others who do as they like."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from holdfast.engine.abort import abort
from holdfast.engine.choices import Choices
from holdfast.engine.drive import Driven, Driver
from holdfast.engine.ports import Ports
from holdfast.engine.prepare import Ledger, prepare
from holdfast.engine.quarantined import quarantine_chunks
from holdfast.engine.report import report_of
from holdfast.engine.status import run_folders, status
from holdfast.engine.sweep import sweep
from holdfast.errors import HoldfastError, RunCommittedError
from holdfast.ledger.layout import RunLayout
from holdfast.ledger.task_ports import TaskPorts
from holdfast.model.identity import Identity
from tests.simulation.chance import Chance
from tests.simulation.spark import SimSpark
from tests.simulation.store import SimStorage
from tests.simulation.table import SimTable
from tests.simulation.transforms import Mended, Transform
from tests.simulation.world import Actor, DiedError, Faults, World

STORE, RUN_ID = "s3://store", "r"
LAYOUT = RunLayout.of(STORE, RUN_ID)
_STARTS_MAX = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What does not change within a history."""

    rows: int
    places: int
    batch_rows: int
    checkpoint_every: float | None
    file_rows: int | None
    empty_table: bool
    unstable: bool
    # Rows whose transform fails; how many of them may; whether the code is mended in the end.
    poison: frozenset[int]
    max_errors: float
    is_mended: bool
    # A row whose transform fails the first time.
    flaky: int | None
    verify_input: bool
    # Whether the job works on what `run.remaining` gives.
    is_derived: bool
    rival: bool
    # What others do: names of methods of `Others`.
    others: tuple[str, ...]

    @classmethod
    def drawn(cls, chance: Chance) -> Setting:
        """Draw a setting; 0 everywhere gives the plainest one."""
        rows = (3, 1, 2, 4, 6, 0)[chance.of(6)]
        kinds = ("", *sorted(OTHERS))
        others = [kinds[chance.of(len(kinds), 0.5)] for _ in range(3)]
        return cls(
            rows=rows,
            places=(2, 1, 3)[chance.of(3)],
            batch_rows=(1, 2)[chance.of(2)],
            checkpoint_every=(0.2, None, 2.0)[chance.of(3)],
            file_rows=(None, 1, 2)[chance.of(3)],
            empty_table=chance.of(2, 0.5) == 1,
            unstable=chance.of(2, 0.4) == 1,
            poison=frozenset({1} if chance.of(2, 0.3) and rows > 1 else ()),
            max_errors=(1.0, 0)[chance.of(2, 0.4)],
            is_mended=chance.of(2, 0.5) == 1,
            flaky=0 if chance.of(2, 0.2) else None,
            verify_input=chance.of(2, 0.2) == 0,
            is_derived=chance.of(2, 0.2) == 1,
            rival=chance.of(2, 0.6) == 1,
            others=tuple(one for one in others if one),
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
    driven: Driven | None = None
    error: BaseException | None = None


@dataclass
class History:
    """Everything that happens in one history, and what is left of it."""

    seed: int
    given: Sequence[int] | None = None
    is_traced: bool = False
    world: World = field(init=False)
    setting: Setting = field(init=False)
    storage: SimStorage = field(init=False)
    # What stood there when all was done, and nothing swept.
    before_sweep: SimStorage = field(init=False)
    table: SimTable = field(init=False)
    starts: list[Start] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    # In which step an abort came to its end, and whether somebody rolled back or replaced.
    aborted_at: int | None = None
    is_disturbed: bool = False
    files_removed: bool = False
    is_damaged: bool = False
    # The code that drivers run now: mended, or not yet.
    is_mended: bool = False
    failed_once: set[int] = field(default_factory=set)
    _names: Any = field(default_factory=lambda: itertools.count(1))
    _nonces: Any = field(default_factory=lambda: itertools.count(1))

    def __post_init__(self) -> None:
        """Draw the setting."""
        chance = Chance(self.seed, self.given)
        self.setting = Setting.drawn(chance)
        faults = Faults(deaths=chance.of(4), calls=chance.of(6))
        self.world = World(chance, faults, is_traced=self.is_traced)
        self.storage, self.before_sweep = SimStorage(self.world), SimStorage(self.world)
        self.table = SimTable(
            self.world, empty=self.setting.empty_table, file_rows=self.setting.file_rows
        )

    def run(self) -> None:
        """Let it happen; then, with nothing going wrong any more, bring it to its end."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.world.spawn("user", self._user)
            if self.setting.rival:
                self.world.spawn("rival", self._user)
            for kind in self.setting.others:
                self.world.spawn(kind, lambda kind=kind: OTHERS[kind](self))  # type: ignore[misc]
            self.world.go_on()
            self.world.faults = Faults()
            self.is_mended = self.setting.is_mended
            for _ in range(2):
                self.world.spawn("last", self._start_and_wait)
                self.world.go_on()
            self.before_sweep.objects = dict(self.storage.objects)
            self.before_sweep.written_at = dict(self.storage.written_at)
            self.world.spawn("sweep", lambda: sweep_run(self))
            self.world.go_on()

    def ledger(self) -> Ledger:
        """Open the run's ledger, as a process of its own does."""
        world = self.world

        def new_nonce() -> str:
            return f"n{next(self._nonces)}"

        tasks = TaskPorts(
            now=lambda: world.clock,
            monotonic=lambda: world.clock,
            sleep=world.sleep,
            new_nonce=new_nonce,
        )
        ports = Ports(
            now=lambda: world.clock,
            sleep=world.sleep,
            new_nonce=new_nonce,
            jitter=lambda: 0.5,
            host="host",
            process_id=next(self._names),
            machine="",
            tasks=tasks,
        )
        return Ledger.open(RUN_ID, STORE, self.storage, ports)

    def _user(self) -> None:
        for _ in range(1 + self.world.chance.of(_STARTS_MAX)):
            self._start_and_wait()
            if self.world.chance.happens(0.3):
                self.world.sleep(5.0)

    def _start_and_wait(self) -> None:
        start = Start(name=f"driver {next(self._names)}")
        self.starts.append(start)
        spark = SimSpark(
            self.world,
            range(self.setting.rows),
            places=self.setting.places,
            unstable=self.setting.unstable,
        )

        def ended(driven: Driven | None, error: BaseException | None) -> None:
            start.driven, start.error = driven, error
            if isinstance(error, DiedError):
                for task in spark.tasks:
                    # Executors notice sooner or later that their driver is gone.
                    if not task.is_done and not self.world.chance.happens(0.5):
                        task.lives = False
            self.world.note(f"{start.name} ended: {driven and 'committed'} {error!r}")
            if driven is not None:
                str(report_of(RUN_ID, self.table.name, driven, 1.0))

        actor = self.world.spawn(start.name, lambda: self._drive(spark), ended=ended)
        spark.driver = actor
        self.world.wait_for(lambda: actor.is_done)

    def _drive(self, spark: SimSpark) -> Driven:
        setting, ledger = self.setting, self.ledger()
        view = self.table.load()
        identity = Identity(
            table=self.table.name,
            table_uuid=view.uuid,
            branch="main",
            mode="append",
            key=("id",),
            session_time_zone="UTC",
            ansi_mode="true",
            version="",
        )

        def called(batch: pa.RecordBatch, is_mended: bool) -> None:  # noqa: FBT001 - as it is called.
            self._called(ledger, batch, is_mended=is_mended)

        choices = Choices(
            transform=(Mended if self.is_mended else Transform)(called),
            verify_input=setting.verify_input,
            batch_rows=setting.batch_rows,
            checkpoint_every=setting.checkpoint_every,
            takeover=("now", "wait")[self.world.chance.of(2)],
            on_error="quarantine" if setting.poison else "raise",
            max_errors=setting.max_errors,
        )
        if not setting.is_derived:
            driver = Driver(ledger=ledger, sink=self.table, submitter=spark)
            return driver.append(view, identity, choices)
        prepared = prepare(ledger, spark, ("id",), choices)
        left = spark.left(prepared.book.finished) if not prepared.has_landed else []
        derived = SimSpark(
            self.world, left, places=setting.places, unstable=setting.unstable, tasks=spark.tasks
        )
        derived.driver = spark.driver
        driver = Driver(ledger=ledger, sink=self.table, submitter=derived, prepared=prepared)
        return driver.append(view, identity, choices)

    def _called(self, ledger: Ledger, batch: pa.RecordBatch, *, is_mended: bool) -> None:
        """A transform is called: count it, and let it fail if it is to."""
        ids = tuple(batch["id"].to_pylist())
        self.world.pause(f"transform {ids}{', mended' if is_mended else ''}")
        self.calls.append(Call(self.world.steps, ledger.log.own_claim, ids))
        if is_mended:
            return
        if self.setting.poison.intersection(ids):
            raise ValueError("poison")
        if {self.setting.flaky}.intersection(ids) - self.failed_once:
            self.failed_once.update(ids)
            raise ValueError("not this time")


def sweep_run(history: History) -> None:
    """Sweep, as a user does."""
    sweep(history.ledger(), lambda _identity: history.table)


def _quietly(act: Callable[[History], None]) -> Callable[[History], None]:
    """Return what a user does who takes no for an answer."""

    def done(history: History) -> None:
        _some_time(history)
        try:
            act(history)
        except HoldfastError as error:
            history.world.note(f"refused: {error!r}")

    return done


def _some_time(history: History) -> None:
    """Let others act first, for a while or for long."""
    chance = history.world.chance
    for _ in range(1 + chance.of(40) * (1, 5)[chance.of(2)]):
        history.world.pause("-")


def _abort(history: History) -> None:
    try:
        abort(history.ledger(), lambda _identity: history.table, "why not")
    except RunCommittedError:
        return
    history.aborted_at = history.world.steps
    history.world.note("aborted")


def _append(history: History) -> None:
    history.table.foreign_append()
    history.world.note("append")


def _roll_back(history: History) -> None:
    table = history.table
    parent = table.snapshots[table.head].parent_id if table.head is not None else None
    if parent is not None:
        history.is_disturbed = True
        table.roll_back(parent)
        history.world.note("roll back one snapshot")


def _replace(history: History) -> None:
    history.is_disturbed = True
    history.table.replace()
    history.world.note("replace the table")


def _make_again(history: History) -> None:
    history.is_disturbed = True
    history.table.make_again()
    history.world.note("drop the table and make it again")


def _expire(history: History) -> None:
    history.table.history_hidden = True
    history.world.note("hide the history")


def _drop_marks(history: History) -> None:
    history.table.drop_marks()
    history.world.note("forget all marks")


def _remove_orphans(history: History) -> None:
    """Take a staged file that no snapshot and no intent names, while nobody is about to commit."""
    table = history.table
    named = {file.path for one in table.ever for group in one.groups for file in group.files}
    objects = history.storage.objects
    # A rule of the store may take old objects of the ledger as well.
    mine = [uri for uri in objects if uri.endswith((".keys", ".chunk", ".failed"))]
    free = sorted({*table.files, *mine} - named)
    busy = [a for a in history.world.actors if a.name.startswith("driver") and a.waits_for is None]
    if free and not busy:
        path = free[history.world.chance.of(len(free))]
        if path in objects:
            del objects[path]
        else:
            table.lost_files.append(path)
            del table.files[path]
        history.files_removed = True
        history.world.note(f"remove {path}")


def _look_on(history: History) -> None:
    ledger = history.ledger()
    str(status(ledger))
    quarantine_chunks(history.ledger())
    run_folders(ledger.storage, STORE)


def _damage(history: History) -> None:
    """Turn one bit of one object over."""
    inside = sorted(uri for uri in history.storage.objects if uri.startswith(LAYOUT.folder))
    if inside:
        uri = inside[history.world.chance.of(len(inside))]
        data = bytearray(history.storage.objects[uri])
        data[history.world.chance.of(len(data))] ^= 1
        history.storage.objects[uri] = bytes(data)
        history.is_damaged = history.is_disturbed = True
        history.world.note(f"damage {uri}")


OTHERS: dict[str, Callable[[History], None]] = {
    "abort": _quietly(_abort),
    "sweeper": _quietly(sweep_run),
    "writer": _quietly(_append),
    "rollback": _quietly(_roll_back),
    "replace": _quietly(_replace),
    "made again": _quietly(_make_again),
    "expiry": _quietly(_expire),
    "marks": _quietly(_drop_marks),
    "orphans": _quietly(_remove_orphans),
    "onlooker": _quietly(_look_on),
    "damage": _quietly(_damage),
}


def is_task(actor: Actor) -> bool:
    """Whether an actor is a task of a job."""
    return "/task " in actor.name
