"""What one core of this machine can do: read Parquet, write Parquet to S3; nothing else."""

from __future__ import annotations

import sys

import pyarrow as pa
import pyarrow.parquet as pq

from bench.session import open_stack
from holdfast.storage.objects import ObjectStorage
from holdfast.storage.upload import ArrowFile


def main(folder: str, files: list[str]) -> None:
    """Copy the files' rows: decode them, and encode them as the sink does."""
    pa.set_cpu_count(1)
    storage = ObjectStorage(open_stack().s3.store_options())
    for number, name in enumerate(files):
        with pq.ParquetFile(name) as source:
            file = ArrowFile(storage.open_sink(f"{folder}/{number}-{name.rsplit('/', 1)[1]}"))
            with pq.ParquetWriter(
                pa.PythonFile(file, mode="w"), source.schema_arrow, compression="zstd"
            ) as writer:
                for group in range(source.num_row_groups):
                    writer.write_table(source.read_row_group(group, use_threads=False))
            file.finish()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
