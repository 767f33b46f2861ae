"""A guard, and how it is removed."""

from __future__ import annotations

import contextlib
import functools
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.change import SOURCE, Change


@contextlib.contextmanager
def copied_product() -> Iterator[Path]:
    """Copy the product into a folder that is gone when the block ends."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "src"
        shutil.copytree(SOURCE, source, ignore=shutil.ignore_patterns("__pycache__"))
        yield source


@functools.cache
def product() -> Mapping[Path, str]:
    """Return the text of each module, by its path below src."""
    files = (SOURCE / "holdfast").rglob("*.py")
    return {file.relative_to(SOURCE): file.read_text(encoding="utf-8") for file in files}


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """One guard of the protocol."""

    name: str
    # Occurs once in the whole product: code may move to another file.
    before: str
    after: str
    # What pytest runs; without the guard it must fail.
    test: str

    def removed(self) -> Change:
        """Return the change that removes the guard.

        Raises:
            ValueError: `before` does not occur exactly once.
        """
        places = [path for path, text in product().items() if self.before in text]
        count = sum(product()[path].count(self.before) for path in places)
        if count != 1:
            found = ", ".join(map(str, places))
            raise ValueError(
                f"{self.name}: {count} times in the product ({found}): {self.before!r}"
            )
        text = product()[places[0]]
        after = text.replace(self.before, self.after)
        return Change(name=self.name, file=places[0], before=text, after=after)

    def take_away(self, source: Path) -> None:
        """Remove the guard in a copy of the product, of which others may have been removed.

        Args:
            source: The folder of the copy.
        """
        path = source / self.removed().file
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace(self.before, self.after), encoding="utf-8")
