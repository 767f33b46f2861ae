"""Count what was read, and find the logbooks that mention something. Does not need Spark."""

from __future__ import annotations

import argparse
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import load_catalog

SHOWN = 5


def main() -> None:
    """Read the table with pyiceberg, and search it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", help="what to look for")
    parser.add_argument("--lake", type=Path, default=Path("lake"), help="folder of all files")
    given = parser.parse_args()
    catalog = load_catalog(type="sql", uri=f"sqlite:///{given.lake.resolve()}/catalog.db")
    logbooks: pa.Table = catalog.load_table("demo.logbooks").scan().to_arrow()
    different = len(logbooks["path"].unique())
    pages = pc.sum(logbooks["pages"]).as_py()
    print(f"{len(logbooks):,} rows, {different:,} different files, {pages:,} pages")
    found = logbooks.filter(pc.match_substring(logbooks["text"], given.words)).sort_by("path")
    print(f"{len(found):,} of them mention {given.words!r}:")
    for row in found.slice(0, SHOWN).to_pylist():
        print(f"  {Path(row['path']).name}, {row['pages']} pages: {row['text'].splitlines()[0]}")


if __name__ == "__main__":
    main()
