"""The guards that exactly-once hangs on where the table is an Iceberg table."""

from __future__ import annotations

from tests.guards.guard import Guard

_SINK = "tests/unit/test_iceberg_sink.py"
_PRESENCE = "tests/unit/test_iceberg_presence.py"


def _rule(name: str) -> Guard:
    """Return one retention rule of a branch, as a guard."""
    return Guard(
        name=f"Iceberg: a post keeps the {name} of its branch",
        file="sinks/iceberg/snapshots.py",
        before=f"            {name}=ref.{name} if ref else None,\n",
        after="",
        test=f"{_SINK} -k retention",
    )


ICEBERG_GUARDS = (
    Guard(
        name="Iceberg: a manifest that holds only existing files is kept",
        file="sinks/iceberg/snapshots.py",
        before="        if manifest.has_added_files() or manifest.has_existing_files()\n",
        after="        if manifest.has_added_files()\n",
        test=f"{_SINK} -k only_existing",
    ),
    _rule("max_ref_age_ms"),
    _rule("max_snapshot_age_ms"),
    _rule("min_snapshots_to_keep"),
    Guard(
        name="Iceberg: the oldest marks are dropped, in whatever order they come",
        file="sinks/mark_text.py",
        before="    others = sorted(\n",
        after="    others = list(\n",
        test="tests/unit/test_iceberg_marks.py",
    ),
    Guard(
        name="Iceberg: an intent whose number another snapshot has got is dead",
        file="sinks/iceberg/marks.py",
        before="        if doubted and doubted - _taken(metadata, io, branch):\n",
        after="        if doubted:\n",
        test=f"{_PRESENCE} -k dead",
    ),
    Guard(
        name="Iceberg: the numbers of expired snapshots are read from manifests",
        file="sinks/iceberg/marks.py",
        before="        taken |= {one.sequence_number for one in head.manifests(io)}\n",
        after="        pass\n",
        test=f"{_PRESENCE} -k dead",
    ),
    Guard(
        name="Iceberg: a run without rows is found at the head",
        file="sinks/iceberg/marks.py",
        before="        if mark.snapshot_id in (snapshot.snapshot_id, parent_id):\n",
        after="        if mark.snapshot_id == parent_id:\n",
        test=f"{_PRESENCE} -k without_rows",
    ),
    Guard(
        name="Iceberg: a horizon or count that is no number is an error",
        file="sinks/iceberg/marks.py",
        before="    if not text.isdecimal():\n",
        after="    if not text.isdecimal():\n        return 0\n    if False:\n",
        test="tests/unit/test_iceberg_marks.py",
    ),
    Guard(
        name="Iceberg: a partition spec that is gone stops the commit",
        file="sinks/iceberg/sink.py",
        before="        self._refuse_lost_specs(table, groups)\n        self._refuse_missing(",
        after="        self._refuse_missing(",
        test=f"{_SINK} -k spec",
    ),
)
