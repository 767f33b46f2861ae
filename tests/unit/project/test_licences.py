"""The page of licences: complete, true of what is installed, and without conditions for users."""

from __future__ import annotations

import re
import sys
from importlib.metadata import PackageNotFoundError, version

import pytest

from dev.licences import PAGE, installed_with_holdfast, licences, locked, page

ROW = re.compile(r"^\| `([\w.-]+)` \| (\S+) \| (.+) \|$", re.MULTILINE)
# By word: licences that ask nothing of the code which imports the package. MPL-2.0 is about changes
# to the package's own files.
PERMISSIVE = re.compile(
    r"(0BSD|3-Clause BSD License|Apache-2\.0|Apache Software License|BSD License|BSD-[23]-Clause"
    r"|CC0-1\.0|ISC|MIT License|MIT|Mozilla Public License 2\.0 \(MPL 2\.0\)|MPL-2\.0|PSF-2\.0"
    r"|Python Software Foundation License|Zlib)"
)


def is_permissive(licence: str) -> bool:
    """Whether each part of an expression is; `OR` leaves the choice, and needs both here too."""
    return all(PERMISSIVE.fullmatch(part) for part in re.split(r" AND | OR |; ", licence))


def installed(name: str) -> str:
    """Return the version of a package that is installed; empty if it is not."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def test_the_page_lists_the_versions_of_the_lock() -> None:
    """After `make lock` comes `make licences`, and neither Python nor the machine matters."""
    listed = {name: version for name, version, _ in ROW.findall(PAGE.read_text())}
    assert listed == locked()


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the page is about Python 3.11")
def test_the_page_is_what_the_installed_packages_say() -> None:
    """Each licence, and which packages come with Holdfast."""
    other = [name for name, locked_to in locked().items() if installed(name) != locked_to]
    if other:
        pytest.skip(f"not the versions of requirements/dev.txt: {', '.join(other)}")
    assert PAGE.read_text() == page()


def test_what_is_installed_with_holdfast_sets_no_conditions() -> None:
    """A package under the GPL, or one that states no licence, does not become a dependency."""
    shipped, _, _ = PAGE.read_text().partition("## For development only")
    rows = ROW.findall(shipped)
    assert {"pyarrow", "pyspark", "pyiceberg", "pylance", "rich"} <= {name for name, _, _ in rows}
    assert [(name, licence) for name, _, licence in rows if not is_permissive(licence)] == []


@pytest.mark.parametrize(
    "licence", ["GPL-3.0-only", "MIT AND AGPL-3.0", "UNKNOWN", "Other/Proprietary License"]
)
def test_a_licence_with_conditions_is_found(licence: str) -> None:
    """By its own name, or as a part of an expression."""
    assert not is_permissive(licence)


def test_a_package_without_a_licence_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is named, and no page is written that leaves it out."""
    monkeypatch.setattr("dev.licences.locked", lambda: {"no-such-package": "1.0"})
    with pytest.raises(SystemExit, match="no licence is known of no-such-package"):
        licences()


def test_packages_that_only_others_need_are_found_too() -> None:
    """`pydantic-core` comes by way of pyiceberg and pydantic; ruff comes by no way."""
    found = installed_with_holdfast()
    assert "pydantic-core" in found
    assert "ruff" not in found
