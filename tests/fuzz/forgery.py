"""Forgery: objects of a ledger that are changed and then sealed again, so that every digest fits.

Only declared types, bounds, and what records say about each other can catch them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.model.records import open_json, seal_json

# Values of another type, or values that no writer of ours makes.
_ODD_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 7, 2**31, 2**63 - 1, 2**63, -(2**63), 10**30, 0.5, -0.5, 1e308,
    "", "x", "0", "..", "../..", "a/b", "/", "file:///", "\0", "\x1b[31m", "é" * 300, "1" * 400,
    "9999-12-31T23:59:59+00:00", "0001-01-01T00:00:00+00:00", [], {}, [[]], [None], {"": None},
    {"x": {"y": []}}, ["x", 0], [[0, 1]], [[1, 0]], [[-1, 5]], [[0, 2**62]],
)  # fmt: skip
# So deep that an unbounded walk through it ends in a RecursionError.
_DEPTH = 600

_Slot = tuple[Any, Any]


def role_of(path: Path) -> str:
    """Return what an object of a ledger is for."""
    folder = next((item for item in ("log", "parts", "tasks", "input") if item in path.parts), "")
    return folder + path.suffix


def _slots(value: Any) -> Iterator[_Slot]:  # noqa: ANN401 - any JSON.
    """Yield each place of a value in a JSON document: its container, and its key."""
    if isinstance(value, dict):
        for key in value:
            yield value, key
            yield from _slots(value[key])
    elif isinstance(value, list):
        for number, part in enumerate(value):
            yield value, number
            yield from _slots(part)


def _opened(path: Path) -> dict[str, Any]:
    """Return what is sealed in an object; nothing if it is damaged already."""
    try:
        return open_json(path.read_bytes())
    except ValueError:
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Forger:
    """Changes sealed objects of one run."""

    folder: Path
    rng: Random
    # Another run's folder, to take values from.
    other: Path

    def retype(self) -> str:
        """Give a field a value of another type, or one out of bounds."""
        path, content = self._sealed(self.folder)
        if path is None:
            return ""
        what = self._change(content)
        path.write_bytes(seal_json(content))
        return f"{self._name(path)}: {what}"

    def lose_field(self) -> str:
        """Remove a field, or add one that no version knows."""
        path, content = self._sealed(self.folder)
        if path is None:
            return ""
        holders = [slot for slot in _slots(content) if isinstance(slot[0], dict)]
        holder, key = self.rng.choice(holders)
        if self.rng.random() < 0.5:
            del holder[key]
            what = f"no {key}"
        else:
            holder["surprise"] = self.rng.choice(_ODD_VALUES)
            what = f"a surprise beside {key}"
        path.write_bytes(seal_json(content))
        return f"{self._name(path)}: {what}"

    def borrow(self) -> str:
        """Give a field the value that it has in another record, of this run or of another."""
        path, content = self._sealed(self.folder)
        source, other = self._sealed(self.rng.choice((self.folder, self.other)))
        if path is None or source is None:
            return ""
        slots: dict[Any, list[_Slot]] = {}
        for slot in _slots(other):
            slots.setdefault(slot[1], []).append(slot)
        shared = [slot for slot in _slots(content) if slot[1] in slots and slot[1] != "digest"]
        if not shared:
            return ""
        holder, key = self.rng.choice(shared)
        lender = self.rng.choice(slots[key])
        holder[key] = lender[0][key]
        path.write_bytes(seal_json(content))
        return f"{self._name(path)}: {key} of {source.parent.name}/{source.name}"

    def covet(self) -> str:
        """Let a task record list files of another run as its own, landed or staged."""
        own = [item for item in self._files(self.folder) if role_of(item) == "tasks.json"]
        theirs = [item for item in self._files(self.other) if role_of(item) == "tasks.json"]
        found = [content for item in theirs if (content := _opened(item)).get("groups")]
        path = self.rng.choice(own) if own else None
        content = _opened(path) if path else {}
        if path is None or not found or not isinstance(content.get("groups"), list):
            return ""
        groups = self.rng.choice(found)["groups"]
        content["groups"] = [*content["groups"], *groups] if self.rng.random() < 0.5 else groups
        path.write_bytes(seal_json(content))
        return f"{self._name(path)}: groups of {self.other.name}"

    def redigest(self) -> str:
        """Damage an object that records name by its digest, and put the new digest into them."""
        blobs = [item for item in self._files(self.folder) if item.suffix != ".json"]
        if not blobs:
            return ""
        path = self.rng.choice(blobs)
        before = path.read_bytes()
        after = self._spoilt(before, path)
        self._replace(path, before, after)
        return f"{self._name(path)}: {len(before)} bytes became {len(after)}, and the digest fits"

    def rework(self) -> str:
        """Change a row of a part, and put the new digest into the records that name it."""
        parts = [item for item in self._files(self.folder) if item.parent.name == "parts"]
        if not parts:
            return ""
        path = self.rng.choice(parts)
        before = path.read_bytes()
        try:
            table = pq.read_table(pa.BufferReader(before))
        except (pa.ArrowException, OSError):  # It is damaged already.
            return ""
        rows, what = table.to_pylist(), ""
        if not rows:
            return ""
        number = self.rng.randrange(len(rows))
        if table.column_names == ["record"]:
            content = json.loads(rows[number]["record"])
            what = self._change(content)
            rows[number]["record"] = json.dumps(content, sort_keys=True)
        else:
            what = self._change(rows[number])
        if self.rng.random() < 0.2:
            rows.append(self.rng.choice(rows))
        buffer = pa.BufferOutputStream()
        try:
            pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), buffer)
        except (pa.ArrowException, OverflowError, ValueError, TypeError):
            return ""  # A column of pins has a type: not every value can be written there.
        self._replace(path, before, buffer.getvalue().to_pybytes())
        return f"{self._name(path)} row {number}: {what}"

    # ---- how -----------------------------------------------------------------------------------
    def _files(self, folder: Path) -> list[Path]:
        return sorted(item for item in folder.rglob("*") if item.is_file())

    def _sealed(self, folder: Path) -> tuple[Path | None, dict[str, Any]]:
        """Draw an object that can be opened: a record of the log as often as one of a task."""
        found: dict[str, list[Path]] = {}
        for path in self._files(folder):
            if path.suffix == ".json":
                found.setdefault(role_of(path), []).append(path)
        for _ in range(5 if found else 0):
            path = self.rng.choice(found[self.rng.choice(sorted(found))])
            if content := _opened(path):
                return path, content
        return None, {}

    def _change(self, content: dict[str, Any]) -> str:
        holder, key = self._drawn(content)
        before, after = holder[key], self.rng.choice(_ODD_VALUES)
        if isinstance(after, str) and isinstance(before, str) and self.rng.random() < 0.5:
            after = before[: int(self.rng.random() * len(before))] + after
        if self.rng.random() < 0.05:
            after = json.loads("[" * _DEPTH + "]" * _DEPTH)
        holder[key] = after
        return f"{key} = {before!r:.60} became {after!r:.60}"

    def _drawn(self, content: dict[str, Any]) -> _Slot:
        """Draw a place: first its name, as lists have many places of one name."""
        slots: dict[str, list[_Slot]] = {}
        for slot in _slots(content):
            slots.setdefault(str(slot[1]), []).append(slot)
        return self.rng.choice(slots[self.rng.choice(sorted(slots))])

    def _spoilt(self, data: bytes, path: Path) -> bytes:
        alike = [item for item in self._files(self.other) if item.suffix == path.suffix]
        if alike and self.rng.random() < 0.3:
            return self.rng.choice(alike).read_bytes()
        if not data or self.rng.random() < 0.2:
            return data[: int(self.rng.random() * len(data))]
        found = bytearray(data)
        for _ in range(self.rng.choice((1, 1, 2, 8))):
            found[int(self.rng.random() * len(found))] = self.rng.randrange(256)
        return bytes(found)

    def _replace(self, path: Path, before: bytes, after: bytes) -> None:
        """Rewrite an object, and put its digest and size into all records that name it."""
        old, new = (hashlib.sha256(item).hexdigest() for item in (before, after))
        path.write_bytes(after)
        for file in self._files(self.folder):
            data = file.read_bytes()
            if file.suffix != ".json" or old.encode() not in data:
                continue
            content = _opened(file)
            for holder, key in list(_slots(content)):
                if holder[key] == old:
                    holder[key] = new
                    if "size_bytes" in holder:
                        holder["size_bytes"] = len(after)
            if content:
                file.write_bytes(seal_json(content))

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self.folder))
