"""Picture: all files of a lake at one moment, to restore and to compare with later."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lance

from holdfast.ledger.layout import RunLayout
from holdfast.ledger.task_log import read_task_records
from holdfast.sinks.iceberg.catalog import open_catalog
from holdfast.storage.objects import ObjectStorage
from tests.fuzz.jobs import DATASET, JOBS, MAIN, NEIGHBOUR, OLD, Job, Lake, Row, text_of

# For each file: its inode, when it was written, and its size.
_Facts = tuple[int, int, int]
_LINK: _Facts = (-1, -1, -1)


def _facts(path: str) -> _Facts:
    if os.path.islink(path):  # noqa: PTH114 - a hot loop over strings.
        return _LINK
    found = os.stat(path)  # noqa: PTH116
    return found.st_ino, found.st_mtime_ns, found.st_size


def _walk(folder: Path) -> Iterator[tuple[str, bool]]:
    """Yield all paths below a folder, and whether each is a folder; links are not followed."""
    for parent, folders, files in os.walk(folder):
        for name in folders:
            path = f"{parent}/{name}"
            yield path, not os.path.islink(path)  # noqa: PTH114
        for name in files:
            yield f"{parent}/{name}", False


@dataclass
class Picture:
    """The files of a folder, and what the system says about them."""

    folder: Path
    contents: dict[str, bytes] = field(default_factory=dict)
    folders: set[str] = field(default_factory=set)
    facts: dict[str, _Facts] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: Path, before: Picture | None = None) -> Picture:
        """Read all files.

        Args:
            folder: The folder to read.
            before: An earlier picture: unchanged files are taken from it.
        """
        found = cls(folder)
        known = before or cls(folder)
        for path, is_folder in _walk(folder):
            if is_folder:
                found.folders.add(path)
                continue
            facts = found.facts[path] = _facts(path)
            if known.facts.get(path) == facts:
                found.contents[path] = known.contents[path]
            else:
                # A link may point to a folder.
                found.contents[path] = b"" if facts == _LINK else Path(path).read_bytes()
        return found

    def put_back(self) -> None:
        """Restore the folder. An unchanged file is not written: it keeps its age."""
        for path, is_folder in list(_walk(self.folder)):
            if is_folder and path not in self.folders:
                shutil.rmtree(path, ignore_errors=True)
            elif not is_folder and path not in self.contents and os.path.lexists(path):
                Path(path).unlink()
        for path in sorted(self.folders):
            Path(path).mkdir(exist_ok=True)
        for path, data in self.contents.items():
            if not os.path.lexists(path) or _facts(path) != self.facts[path]:
                Path(path).unlink(missing_ok=True)
                Path(path).write_bytes(data)
                self.facts[path] = _facts(path)

    def changed(self) -> dict[str, str]:
        """Return the files that are "gone" or "changed" since, by path, without new ones."""
        found = {}
        for path, facts in self.facts.items():
            if not os.path.lexists(path):
                found[path] = "gone"
            elif _facts(path) != facts and Path(path).read_bytes() != self.contents[path]:
                found[path] = "changed"
        return found


def pointer_of(lake: Lake, table: str) -> bytes:
    """Return the object that names a table's newest version."""
    if table.endswith(".lance"):
        names = os.listdir(f"{lake.dataset(table)}/_versions")  # noqa: PTH208 - names alone.
        return " ".join(sorted(names)).encode()
    return (lake.folder / "catalog.db").read_bytes()


def rows_of(lake: Lake, table: str) -> Counter[Row]:
    """Read a table as its users do."""
    if table.endswith(".lance"):
        found = lance.dataset(lake.dataset(table)).to_table()
    else:
        found = open_catalog("lake", lake.catalog).load_table(table).scan().to_arrow()
    ids = found["id"].to_pylist()
    texts = [text_of(item) for item in ids] if table == OLD else found["text"].to_pylist()
    return Counter(zip(ids, texts, strict=True))


def live_files(lake: Lake, table: str) -> set[str]:
    """Return every file that a snapshot or version of a table reaches, as a path."""
    if table.endswith(".lance"):
        return _reached_in_lance(lake.dataset(table))
    handle = open_catalog("lake", lake.catalog).load_table(table)
    found = {
        handle.metadata_location,
        *(item.metadata_file for item in handle.metadata.metadata_log),
    }
    for snapshot in handle.metadata.snapshots:
        found.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(handle.io):
            found.add(manifest.manifest_path)
            entries = manifest.fetch_manifest_entry(handle.io)
            found.update(entry.data_file.file_path for entry in entries)
    return {str(uri).removeprefix("file://") for uri in found}


def _reached_in_lance(uri: str) -> set[str]:
    found = {str(item) for item in Path(uri, "_versions").rglob("*.manifest")}
    for version in lance.dataset(uri).versions():
        dataset: Any = lance.dataset(uri, version=version["version"])
        for fragment in dataset.get_fragments():
            found.update(f"{uri}/data/{item.path}" for item in fragment.data_files())
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """The state before anything was damaged."""

    rows: dict[str, Counter[Row]]
    # The version of each table.
    pointers: dict[str, bytes]
    # Every file that some version of some table reaches.
    live: set[str]
    # Files that each run has written and that no table reaches.
    staged: dict[str, set[str]]

    @classmethod
    def of(cls, lake: Lake) -> Truth:
        """Read all tables and all ledgers."""
        tables = (MAIN, NEIGHBOUR, DATASET, OLD)
        live = {path for table in tables for path in live_files(lake, table)}
        return cls(
            rows={table: rows_of(lake, table) for table in tables},
            pointers={table: pointer_of(lake, table) for table in tables},
            live=live,
            staged={job.run_id: _written_by(lake, job) - live for job in JOBS},
        )


def _written_by(lake: Lake, job: Job) -> set[str]:
    storage, layout = ObjectStorage(), RunLayout.of(lake.store, job.run_id)
    records = read_task_records(storage, layout, storage.list(layout.tasks))
    paths = [path for item in records for group in item.groups for path in group.paths]
    # Lance names its files within the dataset.
    return {
        path.removeprefix("file://")
        if path.startswith(("/", "file:"))
        else f"{lake.dataset(job.table)}/data/{path}"
        for path in paths
    }
