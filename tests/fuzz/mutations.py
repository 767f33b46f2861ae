"""Mutations: what stores, backups, copy tools and people do to a ledger, drawn at random.

A place in an object is drawn as a share of its length, and an object by its rank, so that a seed
means nearly the same in another process: there, names and times differ.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.fuzz.forgery import Forger, role_of
from tests.fuzz.jobs import JOBS, Job, Lake
from tests.ledgers.record import HERE as RECORDED

_VERSIONS = ("0.1", "format-1")
_STRAYS = ("log/00000099.json", "log/00000001.json.tmp", "log/x", "parts/x", "tasks/x.json", "x")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """What was done to a ledger."""

    kind: str
    what: str

    @property
    def is_forged(self) -> bool:
        """Whether records were sealed again with knowledge of the format."""
        return self.kind.startswith("reseal")

    @property
    def is_last(self) -> bool:
        """Whether nothing may follow it: a change behind a link hits another run."""
        return self.kind == "link"


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """Damages the ledger of one run."""

    lake: Lake
    job: Job
    rng: Random
    # Files that the run has written and no table reaches.
    staged: set[str]
    # Only mutations of this name, or all.
    only: str | None = None

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return self.lake.folder / "store" / self.job.run_id

    def strike(self) -> Mutation | None:
        """Apply one mutation; None if there is nothing to apply it to."""
        name = self.only or self.rng.choice(_WEIGHTED)
        what = KINDS[name](self)
        return Mutation(kind=name, what=what) if what else None

    # ---- what is there -------------------------------------------------------------------------
    def objects(self, folder: Path | None = None) -> list[Path]:
        """Return all objects of a run."""
        return sorted(item for item in (folder or self.folder).rglob("*") if item.is_file())

    def one(self, objects: list[Path]) -> Path | None:
        """Draw an object: first its role, as there are many more records of tasks."""
        roles = sorted({role_of(item) for item in objects})
        if not roles:
            return None
        role = self.rng.choice(roles)
        return self.rng.choice([item for item in objects if role_of(item) == role])

    def other_run(self) -> Path:
        """Draw another run's folder."""
        others = [job.run_id for job in JOBS if job.run_id != self.job.run_id]
        return self.lake.folder / "store" / self.rng.choice(others)

    def name(self, path: Path) -> str:
        """Return an object's name for printing."""
        for folder in (self.lake.folder / "store", RECORDED):
            if path.is_relative_to(folder):
                return str(path.relative_to(folder))
        return str(path)


# ---- bytes -----------------------------------------------------------------------------------
def _rewritten(change: Callable[[Random, bytes], bytes]) -> Callable[[Damage], str]:
    def strike(damage: Damage) -> str:
        path = damage.one(damage.objects())
        if path is None:
            return ""
        path.write_bytes(change(damage.rng, path.read_bytes()))
        return damage.name(path)

    return strike


def _flipped(rng: Random, data: bytes) -> bytes:
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 8)) if data else 0):
        found[int(rng.random() * len(found))] ^= 1 << rng.randrange(8)
    return bytes(found)


def _cut_short(rng: Random, data: bytes) -> bytes:
    return data[: int(rng.choice((0.0, rng.random(), 0.99)) * len(data))]


def _extended(rng: Random, data: bytes) -> bytes:
    return data + rng.choice((b"\n", b"\0" * 16, rng.randbytes(40), data))


def _zeroed(_rng: Random, data: bytes) -> bytes:
    return bytes(len(data))


# ---- whole objects ---------------------------------------------------------------------------
def _swap(damage: Damage) -> str:
    first = damage.one(damage.objects())
    second = first and _alike(damage, first, damage.objects())
    if first is None or second is None:
        return ""
    item, other = first.read_bytes(), second.read_bytes()
    first.write_bytes(other)
    second.write_bytes(item)
    return f"{damage.name(first)} and {damage.name(second)}"


def _alike(damage: Damage, path: Path, objects: list[Path]) -> Path | None:
    """Draw an object of the same role, of the same name if one has it."""
    same = [item for item in objects if item != path and role_of(item) == role_of(path)]
    namesakes = [item for item in same if item.name == path.name]
    if namesakes and damage.rng.random() < 0.7:
        same = namesakes
    return damage.rng.choice(same) if same else None


def _remove(folder: Path) -> None:
    """Remove a folder; an earlier mutation may have removed it, or turned it into a link."""
    if folder.is_symlink():
        folder.unlink()
    else:
        shutil.rmtree(folder, ignore_errors=True)


def _copied_over(damage: Damage, target: Path | None, source: Path | None) -> str:
    if target is None or source is None:
        return ""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(source.read_bytes())
    return f"{damage.name(target)} is {damage.name(source)}"


def _repeat(damage: Damage) -> str:
    target = damage.one(damage.objects())
    return _copied_over(damage, target, target and _alike(damage, target, damage.objects()))


def _delete(damage: Damage) -> str:
    path = damage.one(damage.objects())
    if path is None:
        return ""
    path.unlink()
    return damage.name(path)


def _delete_folder(damage: Damage) -> str:
    folders = sorted(item for item in damage.folder.rglob("*") if item.is_dir())
    if not folders:
        return ""
    path = damage.rng.choice([*folders, damage.folder])
    _remove(path)
    return damage.name(path)


def _lose_end(damage: Damage) -> str:
    """Restore an old backup: the log ends earlier, but tasks and parts may be there."""
    records = damage.objects(damage.folder / "log")
    if not records:
        return ""
    kept = damage.rng.randrange(len(records))
    for path in records[kept:]:
        path.unlink()
    return f"{damage.job.run_id}: the log ends after {kept} of {len(records)} records"


def _lose_staged(damage: Damage) -> str:
    files = sorted(damage.staged)
    if not files:
        return ""
    path = Path(damage.rng.choice(files))
    path.unlink(missing_ok=True)
    return path.name


def _stray(damage: Damage) -> str:
    path = damage.folder / damage.rng.choice(_STRAYS)
    source = damage.one(damage.objects())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(source.read_bytes() if source and damage.rng.random() < 0.7 else b"")
    return damage.name(path)


def _link(damage: Damage) -> str:
    """Link a folder of the ledger to another run's."""
    name = damage.rng.choice(("log", "parts", "tasks"))
    path, other = damage.folder / name, damage.other_run() / name
    if not path.is_dir() or not other.is_dir():
        return ""
    _remove(path)
    path.symlink_to(other)
    return f"{damage.name(path)} leads to {damage.name(other)}"


# ---- objects of others -----------------------------------------------------------------------
def _foreign(damage: Damage) -> str:
    target = damage.one(damage.objects())
    others = damage.objects(damage.other_run())
    return _copied_over(damage, target, target and _alike(damage, target, others))


def _foreign_at_its_name(damage: Damage) -> str:
    """Copy one object from a wrong folder, under its own name."""
    other = damage.other_run()
    source = damage.one(damage.objects(other))
    target = source and damage.folder / source.relative_to(other)
    return _copied_over(damage, target, source)


def _foreign_next(damage: Damage) -> str:
    """Copy another run's record with just the number that comes next."""
    number = len(damage.objects(damage.folder / "log")) + 1
    names = [job.run_id for job in JOBS if job.run_id != damage.job.run_id]
    sources = [damage.lake.folder / "store" / item / f"log/{number:08d}.json" for item in names]
    found = [item for item in sources if item.is_file()]
    if not found:
        return ""
    source = damage.rng.choice(found)
    return _copied_over(damage, damage.folder / "log" / source.name, source)


def _copied_folders(damage: Damage, other: Path, names: tuple[str, ...], after: int = 0) -> str:
    for name in names:
        for source in damage.objects(other / name):
            target = damage.folder / source.relative_to(other)
            if name != "log" or source.name > f"{after:08d}.json":
                _copied_over(damage, target, source)
    begin = f" after record {after}" if after else ""
    return f"{damage.job.run_id} has {', '.join(names)} of {damage.name(other)}{begin}"


def _foreign_log(damage: Damage) -> str:
    _remove(damage.folder / "log")
    return _copied_folders(damage, damage.other_run(), ("log", "parts"))


def _foreign_end(damage: Damage) -> str:
    after = damage.rng.randrange(1, 5)
    return _copied_folders(damage, damage.other_run(), ("log", "parts"), after)


def _foreign_tasks(damage: Damage) -> str:
    return _copied_folders(damage, damage.other_run(), ("tasks",))


def _foreign_folder(damage: Damage) -> str:
    other = damage.other_run()
    if damage.rng.random() < 0.5:
        _remove(damage.folder)
    whole = tuple(sorted(item.name for item in other.iterdir() if item.is_dir()))
    _copied_over(damage, damage.folder / "run.json", other / "run.json")
    return _copied_folders(damage, other, whole) + " and its run.json"


def _recorded(damage: Damage) -> Path:
    """Draw a ledger that an earlier version has written."""
    version = RECORDED / damage.rng.choice(_VERSIONS)
    return damage.rng.choice(
        sorted(item / "r" for item in version.iterdir() if (item / "r").is_dir())
    )


def _older(damage: Damage) -> str:
    target = damage.one(damage.objects())
    return _copied_over(damage, target, target and _alike_older(damage, target))


def _alike_older(damage: Damage, target: Path) -> Path | None:
    return _alike(damage, target, damage.objects(_recorded(damage)))


def _older_log(damage: Damage) -> str:
    _remove(damage.folder / "log")
    return _copied_folders(damage, _recorded(damage), ("log", "parts"))


# ---- sealed again ----------------------------------------------------------------------------
def _resealed(how: str) -> Callable[[Damage], str]:
    def strike(damage: Damage) -> str:
        forger = Forger(folder=damage.folder, rng=damage.rng, other=damage.other_run())
        what: str = getattr(forger, how)()
        return what and f"{damage.job.run_id}/{what}"

    return strike


KINDS: dict[str, Callable[[Damage], str]] = {
    "flip": _rewritten(_flipped),
    "truncate": _rewritten(_cut_short),
    "extend": _rewritten(_extended),
    "zero": _rewritten(_zeroed),
    "swap": _swap,
    "repeat": _repeat,
    "delete": _delete,
    "delete folder": _delete_folder,
    "lose the log's end": _lose_end,
    "lose a staged file": _lose_staged,
    "stray object": _stray,
    "link": _link,
    "foreign object": _foreign,
    "foreign object at its own name": _foreign_at_its_name,
    "foreign record that comes next": _foreign_next,
    "foreign log": _foreign_log,
    "foreign end of a log": _foreign_end,
    "foreign tasks": _foreign_tasks,
    "foreign folder": _foreign_folder,
    "older object": _older,
    "older log": _older_log,
    "reseal with another type": _resealed("retype"),
    "reseal without a field": _resealed("lose_field"),
    "reseal with another's value": _resealed("borrow"),
    "reseal with another's files": _resealed("covet"),
    "reseal an object and its digest": _resealed("redigest"),
    "reseal a list of work": _resealed("rework"),
}
# Some find more than others.
_TWICE = ("flip", "delete", "foreign record that comes next", "reseal with another type")
_WEIGHTED = (*KINDS, *_TWICE, "reseal with another type")
