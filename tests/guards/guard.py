"""What is known of a guard, and how it is taken away."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """One guard of the protocol."""

    name: str
    file: str
    before: str
    after: str
    # What pytest is to run; with the guard away it must fail.
    test: str

    def take_away(self, source: Path) -> str:
        """Take the guard away in a copy of the product; return the file as it was.

        Args:
            source: The folder of the copy.

        Raises:
            RuntimeError: It does not stand where the list says.
        """
        path = source / "holdfast" / self.file
        text = path.read_text(encoding="utf-8")
        if text.count(self.before) != 1:
            raise RuntimeError(f"{self.name}: not once in {self.file}: {self.before!r}")
        path.write_text(text.replace(self.before, self.after), encoding="utf-8")
        return text
