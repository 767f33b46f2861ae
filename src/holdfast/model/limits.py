"""Limits: how much a worker holds in memory, and how much is read from one ledger object."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.errors import SettingsError

# The size of an upload's parts. S3 takes 10,000 parts of at least 5 MiB: up to 80 GB an object.
PART_BYTES = 8 * 1024 * 1024

# Objects in a store may be crafted: a few bytes can unpack into more than any memory, or nest
# deeper than any stack. These bounds are far above what Holdfast writes. The size of a JSON record,
# and the depth of the values in it that only a sink understands:
JSON_BYTES_MAX = 256 * 1024 * 1024
JSON_DEPTH_MAX = 64
# One decoded Parquet object, by its footer and as read.
DECODED_BYTES_MAX = 4 * 1024**3
# A decoded Arrow object, as a multiple of its stored bytes. They are written with LZ4, which cannot
# pack more than 255 bytes into one; small objects may have more overhead.
DECODED_RATIO_MAX = 256
DECODED_BYTES_FREE = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much a worker process may hold at a time.

    They belong to one start, not to the run: a resume may use others. How many bytes of rows are
    buffered for a row group is the table's own setting, `write.parquet.row-group-size-bytes`.

    Args:
        batch_bytes: The largest batch that the transform gets, unless a single row is larger. Its
            output and intermediate values take about as much again; larger output is written in
            pieces of this size.
        open_files: How many data files a task writes at a time; it closes the least recently used
            one when it needs another. As many closed ones may still be uploading. Each holds up
            to 8 MiB that do not make a part yet.
        in_flight_bytes: How many bytes may be in flight to the store, and how many from it. At
            least 8 MiB, which is one part of an upload.

    Raises:
        SettingsError: A limit is not a whole number, or too small to work with.
    """

    batch_bytes: int = 32 * 1024 * 1024
    open_files: int = 16
    in_flight_bytes: int = 64 * 1024 * 1024

    def __post_init__(self) -> None:
        """Refuse unusable limits.

        Raises:
            SettingsError: A limit is not a whole number, or too small.
        """
        refuse_below(1, "Limits", batch_bytes=self.batch_bytes, open_files=self.open_files)
        refuse_below(PART_BYTES, "Limits", in_flight_bytes=self.in_flight_bytes)


def refuse_below(least: int, owner: str, **settings: int) -> None:
    """Refuse settings that are not whole numbers of at least `least`.

    Raises:
        SettingsError: A setting is not a whole number, or too small.
    """
    for name, value in settings.items():
        if type(value) is not int or value < least:
            raise SettingsError(
                what=f"{owner}({name}={value!r})", cure=f"give a whole number of at least {least}"
            )


DEFAULT_LIMITS = Limits()
