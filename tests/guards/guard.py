"""A guard, and how it is removed."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@contextlib.contextmanager
def copied_product() -> Iterator[Path]:
    """Copy the product into a folder that is gone when the block ends."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        yield source


def environment_of(source: Path) -> dict[str, str]:
    """Return the environment of a process that imports the product from a folder."""
    return {**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{ROOT}"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """One guard of the protocol."""

    name: str
    file: str
    before: str
    after: str
    # What pytest runs; without the guard it must fail.
    test: str

    def take_away(self, source: Path) -> str:
        """Remove the guard in a copy of the product; return the file as it was.

        Args:
            source: The folder of the copy.

        Raises:
            RuntimeError: `before` does not occur exactly once in the file.
        """
        path = source / "holdfast" / self.file
        text = path.read_text(encoding="utf-8")
        if text.count(self.before) != 1:
            raise RuntimeError(f"{self.name}: not once in {self.file}: {self.before!r}")
        path.write_text(text.replace(self.before, self.after), encoding="utf-8")
        return text
