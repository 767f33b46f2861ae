"""The live data files of a table, as a change that removes rows finds them in the manifests."""

from __future__ import annotations

from dataclasses import dataclass

from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import Table

from holdfast.sinks.iceberg.file_io import file_bytes
from holdfast.sinks.iceberg.loss import live_manifests
from holdfast.sinks.iceberg.rewrite import LiveFile, Manifest
from holdfast.sinks.iceberg.rewrite_rows import AppliedDeletes, TargetFile


@dataclass(frozen=True, kw_only=True)
class Found:
    """A data file, and the deletes that apply to it."""

    live: LiveFile
    data_file: DataFile
    spec: PartitionSpec
    deletes: list[LiveFile]

    def target(self) -> TargetFile:
        """Return the file as a rewriter takes it."""
        return TargetFile.of("lake.db.t", self.data_file, self.deletes)


def found_files(table: Table) -> list[Found]:
    """Return the data files of the newest snapshot, sorted by path."""
    specs = table.specs()
    manifests = [
        (
            Manifest(listed, file_bytes(table.io, listed.manifest_path)),
            specs[listed.partition_spec_id],
        )
        for listed in live_manifests(table.io, table.current_snapshot())
    ]
    plain = [spec_id for spec_id, spec in specs.items() if spec.is_unpartitioned()]
    deletes = AppliedDeletes([file for made, _ in manifests for file in made.files], plain)
    return sorted(
        (
            Found(
                live=file,
                data_file=data_file,
                spec=specs[file.spec_id],
                deletes=deletes.to(file),
            )
            for manifest, spec in manifests
            for file, data_file in manifest.data_files(manifest.files, spec)
            if file.content == 0
        ),
        key=lambda found: found.live.path,
    )
