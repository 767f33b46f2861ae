"""The repository's Markdown pages, as tests see them: blocks of code, links, headings."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"

_FENCED = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_CODE_SPAN = re.compile(r"(`+)(?!`)(.+?)(?<!`)\1(?!`)", re.DOTALL)
_LINK = re.compile(r"\]\(([^()\s]+)\)")
_HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced block of code."""

    page: str
    # The line number of its first line of code.
    line: int
    language: str
    code: str

    @property
    def place(self) -> str:
        """Its page and line, for a reader."""
        return f"{self.page}:{self.line}"


def name_of(page: Path) -> str:
    """Return a page's path in the repository."""
    return page.relative_to(ROOT).as_posix()


def pages(*patterns: str) -> list[Path]:
    """Return the pages that patterns name, from the repository's root."""
    return [page for pattern in patterns for page in sorted(ROOT.glob(pattern))]


def blocks(page: Path, language: str) -> list[Block]:
    """Return a page's blocks of one language, in their order."""
    text = page.read_text()
    return [
        Block(
            page=name_of(page),
            line=text.count("\n", 0, found.start(3)) + 1,
            language=language,
            code=found[3],
        )
        for found in _FENCED.finditer(text)
        if found[2] == language
    ]


def prose(text: str) -> str:
    """Return the text without its blocks of code."""
    return _FENCED.sub("", text)


def code_spans(text: str) -> list[str]:
    """Return the text in backticks within the prose, each on one line."""
    return [" ".join(found[2].split()) for found in _CODE_SPAN.finditer(prose(text))]


def link_targets(text: str) -> list[str]:
    """Return the targets of links and pictures in the prose, without code."""
    return _LINK.findall(_CODE_SPAN.sub("``", prose(text)))


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, in the spellings of MkDocs and of GitHub."""
    found: set[str] = set()
    seen: Counter[str] = Counter()
    for heading in _HEADING.findall(prose(text)):
        for slug in _slugs(heading):
            found.add(slug if not seen[slug] else f"{slug}_{seen[slug]}")
        seen.update(_slugs(heading))
    return found


def _slugs(heading: str) -> set[str]:
    plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
    plain = re.sub(r"[^\w\s-]", "", plain).strip()
    return {re.sub(r"[-\s]+", "-", plain), re.sub(r"\s", "-", plain)}


def broken_links(page: Path) -> Iterator[str]:
    """Yield the relative links of a page whose file or heading does not exist."""
    for target in link_targets(page.read_text()):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists():
            yield f"{target}: there is no such file"
        elif anchor and file.suffix == ".md" and anchor not in anchors(file.read_text()):
            yield f"{target}: {file.name} has no such heading"
