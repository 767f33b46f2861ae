"""Links between pages work; MkDocs checks only those inside docs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.markdown_pages import ROOT, anchors, broken_links, link_targets, name_of, pages

PAGES = pages("*.md", "docs/**/*.md", "examples/**/*.md", "spec/*.md", "tests/**/*.md")
PAGE = """# A page

See [one](one.md), [two
lines](two.md#part), `[code](code.md)` and ![a picture](img/a.svg#only-dark).

```python
table["a"](b)  # [no link](block.md)
```

## `hf.per_row`: calls, many at once

## Figures
## Figures
"""


def test_the_pages_are_found() -> None:
    """The tests below would pass trivially without pages."""
    found = {name_of(page) for page in PAGES}
    assert {"README.md", "CHANGELOG.md", "docs/index.md", "examples/README.md"} <= found
    assert any(link_targets(page.read_text()) for page in PAGES)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_relative_link_works(page: Path) -> None:
    """The file exists, and so does the heading that an anchor names."""
    assert list(broken_links(page)) == []


@pytest.mark.parametrize("page", pages("docs/**/*.md"), ids=name_of)
def test_a_page_of_the_site_links_to_the_site_only(page: Path) -> None:
    """The site contains only the docs folder of the repository."""
    docs = ROOT / "docs"
    relative = [
        target
        for target in link_targets(page.read_text())
        if ":" not in target and target[0] != "#"
    ]
    files = [(page.parent / target.partition("#")[0]).resolve() for target in relative]
    assert [file for file in files if not file.is_relative_to(docs)] == []


def test_links_are_found_in_prose_only() -> None:
    """Also if their text spans two lines; never in code."""
    assert link_targets(PAGE) == ["one.md", "two.md#part", "img/a.svg#only-dark"]


def test_anchors_are_those_of_the_site_and_of_the_repository() -> None:
    """Punctuation is dropped, blanks become dashes, a repeated heading gets a number."""
    found = anchors(PAGE)
    assert {"a-page", "hfper_row-calls-many-at-once", "figures", "figures_1"} <= found


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    """A missing file, a missing heading elsewhere, and a missing heading in the page itself."""
    page = tmp_path / "page.md"
    page.write_text("# Here\n[a](gone.md) [b](#there) [c](#here) [d](https://example.org/x.md)\n")
    found = [text.partition(": ")[0] for text in broken_links(page)]
    assert found == ["gone.md", "#there"]
