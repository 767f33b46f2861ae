"""The public surface: `__all__` lists every public name and nothing else."""

from __future__ import annotations

import inspect
import subprocess
import sys
from importlib.metadata import version
from types import ModuleType

import pytest

import holdfast
from holdfast import errors

# Importing Holdfast must work without any of these installed.
ENGINES = ("pyspark", "pyiceberg", "lance")


def error_classes() -> dict[str, type]:
    """Return the classes that holdfast.errors defines, without those that it only imports."""
    return {
        name: member
        for name, member in inspect.getmembers(errors, inspect.isclass)
        if member.__module__.startswith(errors.__name__)
    }


def test_all_lists_exactly_the_public_names() -> None:
    """A name without an underscore is public, so it is listed; what is listed exists."""
    present = {
        name
        for name in dir(holdfast)
        if not name.startswith("_") and not isinstance(getattr(holdfast, name), ModuleType)
    }
    listed = {
        name
        for name in holdfast.__all__
        if name != "__version__" and not isinstance(getattr(holdfast, name), ModuleType)
    }
    assert listed == present


def test_all_is_sorted_and_holds_no_name_twice() -> None:
    """A reader finds a name by the alphabet."""
    assert list(holdfast.__all__) == sorted(set(holdfast.__all__))


@pytest.mark.parametrize("name", holdfast.__all__)
def test_every_public_name_is_documented(name: str) -> None:
    """`help(holdfast.NAME)` says something of its own, not what a base class says."""
    member = getattr(holdfast, name)
    if name == "__version__":
        assert isinstance(member, str)
    else:
        assert (member.__doc__ or "").strip()


def test_the_version_is_the_one_that_is_installed() -> None:
    """The constant that executors compare is the version that the installer sees."""
    assert holdfast.__version__ == version("holdfast")


def test_errors_have_one_root() -> None:
    """`except HoldfastError` catches every error that Holdfast itself raises."""
    strays = [
        name
        for name, member in error_classes().items()
        if not issubclass(member, errors.HoldfastError)
    ]
    assert strays == []


def test_every_error_is_documented() -> None:
    """Each error says in its own docstring what it means."""
    silent = [name for name, member in error_classes().items() if not vars(member).get("__doc__")]
    assert silent == []


@pytest.mark.parametrize("engine", ENGINES)
def test_importing_holdfast_loads_no_engine(engine: str) -> None:
    """A worker loads only what it uses; a missing engine does no harm."""
    code = f"from holdfast import *; import sys; sys.exit({engine!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("heavy", ["msgspec", "numpy", "pandas", "pyarrow", "obstore"])
def test_importing_holdfast_alone_loads_nothing_heavy(heavy: str) -> None:
    """The command line must answer at once."""
    code = f"import holdfast, sys; sys.exit({heavy!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_name_that_is_not_there_is_an_error() -> None:
    """All other names are in `dir`, though they are imported lazily."""
    with pytest.raises(AttributeError, match="no attribute 'scan_csv'"):
        _ = holdfast.scan_csv  # type: ignore[attr-defined]
    assert dir(holdfast) == sorted(holdfast.__all__)
