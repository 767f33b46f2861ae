"""`holdfast sweep RUN`: what an ended run no longer needs; with `--yes` it is deleted."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, cast

from holdfast.cli import console, plain
from holdfast.cli.arguments import (
    add_table_arguments,
    open_existing_store,
    open_known_ledger,
    sink_opener,
)
from holdfast.engine.cleanup import SweepPlan, carry_out, plan_sweep
from holdfast.engine.watch import run_ids, state
from holdfast.errors import HoldfastError, SettingsError
from holdfast.ledger.ledger import Ledger, Ports
from holdfast.ledger.store import walk_sizes
from holdfast.model.identity import Identity
from holdfast.model.report import counted, readable_size
from holdfast.sinks.base import Outcome, Sink, TableView
from holdfast.text import command

_DATA_FILES = "staged data files that are not in the table"
_MANIFESTS = "manifests of staged data files"
_MANIFEST = ".avro"
_ENDED = ("committed", "aborted")
# By the ending of an object's name.
_KINDS = {
    ".chunk": "chunks of output rows",
    ".keys": "keys of finished rows",
    ".json": "task records",
    ".failed": "failed rows that were retried",
}
_INPUTS = "the run's own copy of its input"
_PARTS = "work lists that later ones replaced"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Objects of one kind that a sweep deletes."""

    what: str
    objects: int
    size_bytes: int
    example: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments, apart from the store."""
    parser.add_argument("run", metavar="RUN", nargs="?", help="the run's id")
    parser.add_argument(
        "--all-ended",
        action="store_true",
        help="sweep all runs of the store that are committed or aborted",
    )
    parser.add_argument("--yes", action="store_true", help="delete; without it nothing is changed")
    add_table_arguments(parser, of_run=True)


def run(given: argparse.Namespace) -> int:
    """Show what would be deleted and why that is safe, or delete it.

    Returns 1 if one of the ended runs could not be swept; the others still are.

    Raises:
        SettingsError: There is no such run, or it is not known how to reach its table.
        RunUnfinishedError: The run may still resume.
        HoldfastError: The store or the catalog did not answer; call again.
    """
    if given.all_ended == (given.run is not None):
        raise SettingsError(
            what="sweep takes a run's id or --all-ended", cure="give one of the two"
        )
    if not given.all_ended:
        found = _sweep(given, open_known_ledger(given))
        if given.json:
            plain.print_json(found)
        return 0
    store, storage = open_existing_store(given)
    documents: list[dict[str, Any]] = []
    code = 0
    for run_id in run_ids(storage, store):
        ledger = Ledger.open(run_id, store, storage, Ports())
        try:
            if state(ledger) in _ENDED:
                documents.append(_sweep(given, ledger))
        except HoldfastError as error:
            plain.print_error(error)
            code = 1
    if given.json:
        plain.print_json({"store": store, "runs": documents})
    elif not documents:
        plain.print_line(f"No ended runs in {store}.")
    return code


def _sweep(given: argparse.Namespace, ledger: Ledger) -> dict[str, Any]:
    """Sweep one run, or list what would be deleted; print it unless JSON is wanted; return it."""
    open_sink = sink_opener(given)
    looks = open_sink if given.yes else _looking_only(ledger, open_sink)
    plan = plan_sweep(ledger, looks)
    kinds, without_lists = kinds_of(plan, walk_sizes(ledger.storage, ledger.layout.folder))
    safe, kept = why_safe(ledger, plan), what_stays(plan)
    if given.yes:
        swept = carry_out(ledger, open_sink, plan)
        if swept.out_of_reach:
            kinds = without_lists
            files = counted(swept.out_of_reach, "staged file")
            kept.append(f"{files}, and what lists them: {swept.reason}")
    if not given.json:
        _print(ledger, kinds, safe, kept, deleted=given.yes)
    return _json(ledger, kinds, safe, kept, deleted=given.yes)


def kinds_of(
    plan: SweepPlan, ledger_objects: Iterable[tuple[str, int]]
) -> tuple[list[Kind], list[Kind]]:
    """Count what is deleted, by kind, largest first; and what is if staged files cannot be.

    Args:
        plan: What is deleted.
        ledger_objects: All objects of the ledger, with their sizes: a long run has millions.
    """
    every, without_lists = _Tally(), _Tally()
    for path, size in plan.data_files.items():
        every.add(_MANIFESTS if path.endswith(_MANIFEST) else _DATA_FILES, path, size)
    for uri, size in ledger_objects:
        if uri in plan.ledger_objects:
            every.add(_kind_of(uri), uri, size)
            if not plan.lists_files(uri):
                without_lists.add(_kind_of(uri), uri, size)
    return every.kinds(), without_lists.kinds()


class _Tally:
    """Adds up objects by kind."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[int, int, str]] = {}

    def add(self, what: str, name: str, size: int) -> None:
        """Count one object."""
        objects, size_bytes, example = self._found.get(what, (0, 0, name))
        self._found[what] = objects + 1, size_bytes + size, min(example, name)

    def kinds(self) -> list[Kind]:
        """Return the kinds, largest first."""
        kinds = [
            Kind(what=what, objects=objects, size_bytes=size_bytes, example=example)
            for what, (objects, size_bytes, example) in self._found.items()
        ]
        return sorted(kinds, key=lambda kind: (-kind.size_bytes, kind.what))


def why_safe(ledger: Ledger, plan: SweepPlan) -> str:
    """Explain what proves that nothing to be deleted is needed."""
    receipt = ledger.log.receipt
    if plan.in_doubt:
        return (
            "the run was aborted; only files that this run's own records list are deleted, and "
            "no file of a post that is in doubt"
        )
    if receipt is None and not ledger.log.intents:
        return (
            "the run was aborted before anything was posted to the table, and no driver can post "
            "any more; only files that this run's own records list are deleted"
        )
    if receipt is None and not ledger.log.doubtful:
        return (
            "the run was aborted, and all of its posts were refused; only files that this run's "
            "own records list are deleted"
        )
    if receipt is None:
        return (
            "the run was aborted, and the table shows that none of its posts can still land; "
            "only files that this run's own records list are deleted"
        )
    return (
        f"the receipt says that the run landed as snapshot {receipt.snapshot_id} with "
        f"{counted(receipt.files, 'file')}; these are not deleted, and only files that this "
        "run's own records list are"
    )


def what_stays(plan: SweepPlan) -> list[str]:
    """Explain what is kept, and why."""
    kept = ["the log and run.json: a later start reads in them how the run ended"]
    if len(plan.kept_files) > (plan.live or 0):
        what = "are part of the snapshot"
        if plan.in_doubt:
            what = f"may be part of the table: {plan.reason}"
        # Data files as `status` counts them; of files that others use, only the total is known.
        paths = () if plan.live else plan.kept_files
        manifests = sum(1 for path in paths if path.endswith(_MANIFEST))
        rest = len(plan.kept_files) - (plan.live or 0) - manifests
        listed = f" and {counted(manifests, 'manifest')}" if manifests else ""
        kept.append(f"{counted(rest, 'file')}{listed} that {what}")
    if plan.live:
        files = counted(plan.live, "file")
        kept.append(
            f"{files} that snapshots of the table reach, though this ledger does not say that they "
            "have landed: was it copied, restored from a backup, or truncated?"
        )
    failed = sum(1 for uri in plan.kept_objects if uri.endswith(".failed"))
    if failed:
        kept.append(f"{counted(failed, 'object')} with failed rows")
    if lists := len(plan.kept_objects) - failed:
        kept.append(f"{counted(lists, 'list')} of what has landed or was read")
    return kept


def _kind_of(uri: str) -> str:
    if "/parts/" in uri:
        return _PARTS
    if "/input/" in uri:
        return _INPUTS
    return next((what for end, what in _KINDS.items() if uri.endswith(end)), "other objects")


class _LookingOnly:
    """A sink that a dry run may query, and that posts nothing."""

    def __init__(self, sink: Sink, run_id: str) -> None:
        self._sink = sink
        self._run_id = run_id

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the sink has.
        return getattr(self._sink, name)

    def post_empty(self, view: TableView) -> Outcome:  # noqa: ARG002 - the sink's signature.
        """Refuse: the abort is not complete.

        Raises:
            SettingsError: Always.
        """
        raise SettingsError(
            what=f"it is not yet known whether a post of run {self._run_id!r} can still land, "
            "and a dry run writes nothing to the table",
            cure=f"run {command('abort', self._run_id)} again, which settles it",
        )


def _looking_only(
    ledger: Ledger, open_sink: Callable[[Identity], Sink]
) -> Callable[[Identity], Sink]:
    return lambda identity: cast("Sink", _LookingOnly(open_sink(identity), ledger.run_id))


def _json(
    ledger: Ledger, kinds: Iterable[Kind], safe: str, kept: list[str], *, deleted: bool
) -> dict[str, Any]:
    return {
        "run_id": ledger.run_id,
        "deleted": deleted,
        "kinds": [
            {
                "what": kind.what,
                "objects": kind.objects,
                "size_bytes": kind.size_bytes,
                "example": kind.example,
            }
            for kind in kinds
        ],
        "objects": sum(kind.objects for kind in kinds),
        "size_bytes": sum(kind.size_bytes for kind in kinds),
        "why_safe": safe,
        "kept": kept,
    }


def _print(ledger: Ledger, kinds: list[Kind], safe: str, kept: list[str], *, deleted: bool) -> None:
    out, folder = console.make_console(), f"{ledger.layout.folder}/"
    objects, size = sum(kind.objects for kind in kinds), sum(kind.size_bytes for kind in kinds)
    if not kinds:
        console.heading(out, f"Run {ledger.run_id} has nothing left to delete")
    else:
        would = "Deleted" if deleted else "Would delete"
        whole = f"{counted(objects, 'object')} ({readable_size(size)})"
        console.heading(out, f"{would} {whole} of run {ledger.run_id}")
        table = console.listing("OBJECTS", "SIZE", "WHAT", right=("OBJECTS", "SIZE"))
        for kind in kinds:
            table.add_row(f"{kind.objects:,}", readable_size(kind.size_bytes), kind.what)
            if not deleted:
                table.add_row("", "", f"such as {kind.example.removeprefix(folder)}", style="dim")
        console.show(out, table)
        out.print()
    lines = [("safe", f"{safe}.")] if kinds else []
    lines += [("kept", kept[0]), *(("", text) for text in kept[1:])]
    if kinds and not deleted:
        lines.append(("next", f"{command('sweep', ledger.run_id, '--yes')} deletes it"))
    console.facts(out, lines)
