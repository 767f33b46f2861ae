"""What `make release-check` refuses, without building or installing anything."""

from __future__ import annotations

import pytest

from dev.release_check import CheckError, notes_of, quickstart, refuse_contents, refuse_tag
from holdfast import __version__
from tests.markdown_pages import README

TRACKED = {"src/holdfast/__init__.py", "src/holdfast/py.typed"}
INFO = f"holdfast-{__version__}.dist-info"
WHEEL = [
    "holdfast/__init__.py",
    "holdfast/py.typed",
    *(f"{INFO}/{name}" for name in ("METADATA", "RECORD", "WHEEL", "entry_points.txt")),
    f"{INFO}/licenses/LICENSE",
]
SDIST = [
    *sorted(TRACKED),
    *(".gitignore", "CHANGELOG.md", "LICENSE", "PKG-INFO", "README.md", "pyproject.toml"),
]
CHANGELOG = "# Changelog\n\n{unreleased}## 0.2.0 - 2027-01-31\n\n- New.\n\n## 0.1.0\n\n- Old.\n"


@pytest.mark.parametrize(("name", "names"), [("a.whl", WHEEL), ("a.tar.gz", SDIST)])
def test_an_archive_with_all_files_and_no_other_passes(name: str, names: list[str]) -> None:
    """The package, its metadata and its licence."""
    refuse_contents(name, names, TRACKED)


@pytest.mark.parametrize(("name", "names"), [("a.whl", WHEEL), ("a.tar.gz", SDIST)])
def test_an_archive_that_lacks_a_file_is_refused(name: str, names: list[str]) -> None:
    """Each file counts, `py.typed` and the licence too."""
    for gone in names:
        with pytest.raises(CheckError, match="lacks"):
            refuse_contents(name, [of for of in names if of != gone], TRACKED)


@pytest.mark.parametrize("more", ["tests/test_x.py", "holdfast/notes.txt", "src/holdfast/key.pem"])
@pytest.mark.parametrize(("name", "names"), [("a.whl", WHEEL), ("a.tar.gz", SDIST)])
def test_an_archive_with_another_file_is_refused(name: str, names: list[str], more: str) -> None:
    """What lies in a developer's folder is not shipped."""
    with pytest.raises(CheckError, match="which git does not track"):
        refuse_contents(name, [*names, more], TRACKED)


def test_a_tag_of_another_version_is_refused() -> None:
    """What is published under a version has that version."""
    refuse_tag("v0.2.0", "0.2.0")
    for tag in ("v0.2.1", "0.2.0", "v0.2.0rc1"):
        with pytest.raises(CheckError, match="the tag is"):
            refuse_tag(tag, "0.2.0")


@pytest.mark.parametrize(("version", "notes"), [("0.2.0", "- New."), ("0.1.0", "- Old.")])
def test_the_notes_of_a_version_are_its_section(version: str, notes: str) -> None:
    """With or without the day in the heading."""
    assert notes_of(version, CHANGELOG.format(unreleased="")) == notes


def test_a_version_without_notes_is_refused() -> None:
    """A version whose entries are still unreleased, or that has none."""
    with pytest.raises(CheckError, match='entries under "Unreleased"'):
        notes_of("0.2.0", CHANGELOG.format(unreleased="## Unreleased\n\n- Newer.\n\n"))
    with pytest.raises(CheckError, match="no section"):
        notes_of("0.3.0", CHANGELOG.format(unreleased="## Unreleased\n\n"))


def test_without_a_tag_the_notes_are_what_is_not_released() -> None:
    """A rehearsal shows what the next version would say."""
    unreleased = CHANGELOG.format(unreleased="## Unreleased\n\n- Newer.\n\n")
    assert notes_of("", unreleased) == "- Newer."


def test_the_quickstart_of_the_readme_is_found() -> None:
    """One script, and the commands that kill it and start it again."""
    script, (kill, again) = quickstart(README.read_text())
    assert "hf.Run(" in script
    assert kill[:2] == ["holdfast", "drill"]
    assert again == ["python", "quickstart.py"]
    with pytest.raises(CheckError, match="not one quickstart"):
        quickstart("# A page without it\n")
