"""What a driver does after its last task has ended: from the seal to the receipt, step by step."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from holdfast.engine.commit import Commit, Landed
from holdfast.engine.resolve import merge, renew
from holdfast.engine.workbook import Workbook
from holdfast.ledger.layout import tasks_name
from holdfast.ledger.ledger import Ledger, Ports
from holdfast.ledger.run_log import open_run_file
from holdfast.model.coverage import Coverage
from holdfast.model.identity import Identity
from holdfast.model.records import Claim, Plan
from holdfast.model.work import StagedGroup, TaskRecord, Work
from holdfast.sinks.base import Change, Sink
from holdfast.storage.objects import ObjectStorage

# Benchmarks of large tables can be tried with a part of their size.
SCALE = float(os.environ.get("HOLDFAST_BENCH_SCALE", "1"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """A run whose tasks have all ended."""

    commit: Commit
    book: Workbook

    @classmethod
    def of(
        cls,
        sink: Sink,
        store: str,
        options: Mapping[str, str],
        tasks: Sequence[Sequence[StagedGroup]],
    ) -> Publication:
        """Claim a new run, and take what its tasks have staged.

        Args:
            sink: The table.
            store: Where ledgers are.
            options: The store's options.
            tasks: What each task has staged.
        """
        view, run_id = sink.load(), f"bench-{uuid.uuid4().hex}"
        ledger = Ledger.open(run_id, store, ObjectStorage(options), Ports())
        identity = Identity(
            table=sink.name,
            table_uuid=view.uuid,
            branch="main",
            mode="append",
            key=("id",),
            session_time_zone="UTC",
            ansi_mode="true",
            version="",
        )
        run_file = open_run_file(
            ledger.storage,
            ledger.layout,
            run_id=run_id,
            identity=identity,
            nonce=ledger.ports.new_nonce(),
            sleep=ledger.ports.sleep,
        )
        ledger.log.belongs_to(run_file)
        claim = ledger.log.claim(
            Claim(
                holdfast_version="bench",
                host="bench",
                process_id=1,
                machine="bench",
                code="bench",
                checkpoint_every_s=None,
            )
        )
        folder = tasks_name(claim.number)
        ledger.log.append(
            Plan(
                job="rows",
                input=None,
                remaining_rows=None,
                chunks=0,
                schema=view.schema,
                tasks=folder,
            )
        )
        book = Workbook(ledger)
        coverage = Coverage(rows=3, low=1, high=1, keys_bytes=0)
        records = (
            TaskRecord(
                name=f"{folder}/rows/{place:06d}/000000000000/0000",
                coverage=coverage,
                seconds=1.0,
                groups=tuple(groups),
            )
            for place, groups in enumerate(tasks)
        )
        book.rename(Work(records=tuple(records)))
        return cls(commit=Commit(ledger=ledger, run_file=run_file, sink=sink), book=book)

    def publish(self) -> Landed:
        """Seal the work, and publish it."""
        ledger, book = self.commit.ledger, self.book
        renew(ledger, self.commit, book)
        reference = book.seal()
        adds = merge(ledger, self.commit, book)
        commit = replace(self.commit, merged=adds.merged)
        return commit.publish(Change(adds=adds.groups), reference, book.schemas)
