"""Interpreters for executors: each has the packages of this environment, with some left out."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import pyspark


def make_python(folder: Path, *, without: Sequence[str] = (), editable: bool = False) -> Path:
    """Make an interpreter and return its path.

    Args:
        folder: Where to make it.
        without: Packages to leave out.
        editable: Whether it has what this environment has by `.pth` files: Holdfast itself.
    """
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=60.0
    )
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if entry.name not in without and (editable or entry.suffix != ".pth"):
            (packages_of(folder) / entry.name).symlink_to(entry)
    return folder / "bin" / "python"


def make_old_python(folder: Path, version: str) -> Path:
    """Make an interpreter that has another version of Holdfast, and return its path."""
    python = make_python(folder)
    package = packages_of(folder) / "holdfast"
    package.mkdir()
    (package / "__init__.py").write_text(f'__version__ = "{version}"\n')
    return python


def packages_of(folder: Path) -> Path:
    """Return the folder of an interpreter's packages."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return folder / "lib" / version / "site-packages"


def make_spark_home(folder: Path) -> Path:
    """Make a SPARK_HOME below which executors may write, and return it.

    Spark's `local-cluster` lets executors work in SPARK_HOME/work, which by default is a folder
    of the installed package.
    """
    folder.mkdir()
    for entry in Path(pyspark.__file__).parent.iterdir():
        if entry.name != "work":
            (folder / entry.name).symlink_to(entry)
    return folder
