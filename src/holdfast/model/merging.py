"""What an upsert does to its table: figures that are decided with a post, and are kept."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.model.stored import Count


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeCounts:
    """What an upsert does to the table that its post builds on. Stored with intent and receipt."""

    # New rows whose key is in the table, and those whose key is not.
    matched: Count
    inserted: Count
    # Rows of the table that go beyond one for each key.
    doubled: Count
    # Files whose rows were looked at, since the run began; of them, those that lose a row in this
    # post, and the rows of these that stay.
    searched_files: Count
    rewritten_files: Count
    carried_rows: Count
    # How many posts of the run came before this one, each planned again.
    replans: Count
    # Keys of rows to delete that are in the table. Not in older ledgers.
    deleted: Count = 0

    @property
    def keys_text(self) -> str:
        """Say what became of keys: the same words wherever a person looks."""
        text = f"{self.matched:,} matched, {self.inserted:,} inserted"
        text += f", {self.deleted:,} deleted" if self.deleted else ""
        return f"{text}, {self.doubled:,} doubled keys replaced" if self.doubled else text

    @property
    def files_text(self) -> str:
        """Say what became of files."""
        text = (
            f"{self.searched_files:,} searched, {self.rewritten_files:,} rewritten, "
            f"{self.carried_rows:,} rows carried over"
        )
        if not self.replans:
            return text
        return f"{text}, {self.replans:,} replan{'' if self.replans == 1 else 's'}"

    @property
    def text(self) -> str:
        """Say both."""
        return f"{self.keys_text}; files: {self.files_text}"
