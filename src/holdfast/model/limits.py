"""Limits: how much a worker holds in memory, and how much is read of one object of a ledger."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.errors import SettingsError

# What an object is sent in. S3 takes 10,000 parts of at least 5 MiB: an object can have 80 GB.
PART_BYTES = 8 * 1024 * 1024

# Objects in a store may be crafted: a few bytes can unpack into more than any memory, or nest
# deeper than any stack. These bounds are far above what Holdfast writes. A JSON record, and what in
# it only a sink understands:
JSON_BYTES_MAX = 256 * 1024 * 1024
JSON_DEPTH_MAX = 64
# One Parquet object, once decoded, by its own footer.
DECODED_BYTES_MAX = 4 * 1024**3
# An Arrow object, as a multiple of its stored bytes. LZ4, in which they are written, cannot pack
# more than 255 bytes into one; what is small may have more around it.
DECODED_RATIO_MAX = 256
DECODED_BYTES_FREE = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much a worker process may hold at a time.

    They belong to one start, not to the run: a resume may use others. How many bytes of rows wait
    for their row group is the table's own setting, `write.parquet.row-group-size-bytes`.

    Args:
        batch_bytes: How large a batch the transform gets at most, unless a single row is larger.
            Its output, and what it makes on the way, are about as large again; output that is
            larger is written in pieces of this size.
        open_files: How many data files a task writes at a time; it closes the one not used for
            longest when it needs another. As many closed ones may still be on their way. Each
            holds up to 8 MiB that do not make a part yet.
        in_flight_bytes: How many bytes may be on their way to the store, and how many from it.
            At least 8 MiB, which is one part of an upload.

    Raises:
        SettingsError: A limit is no whole number, or too small to work with.
    """

    batch_bytes: int = 32 * 1024 * 1024
    open_files: int = 16
    in_flight_bytes: int = 64 * 1024 * 1024

    def __post_init__(self) -> None:
        """Refuse what nobody can work with.

        Raises:
            SettingsError: A limit is no whole number, or too small.
        """
        refuse_below(1, "Limits", batch_bytes=self.batch_bytes, open_files=self.open_files)
        refuse_below(PART_BYTES, "Limits", in_flight_bytes=self.in_flight_bytes)


def refuse_below(least: int, owner: str, **settings: int) -> None:
    """Refuse settings that are no whole numbers, or smaller.

    Raises:
        SettingsError: One is.
    """
    for name, value in settings.items():
        if type(value) is not int or value < least:
            raise SettingsError(
                what=f"{owner}({name}={value!r})", cure=f"give a whole number of at least {least}"
            )


DEFAULT_LIMITS = Limits()
