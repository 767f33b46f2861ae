"""Make a folder of PDFs: ships' logbooks, of 6 to 14 pages. One of the files is broken."""

from __future__ import annotations

import argparse
import io
from pathlib import Path

from reportlab.lib.pagesizes import A4
from reportlab.pdfgen.canvas import Canvas

LINES_PER_PAGE = 45
PAGES_MIN, PAGES_DIFFER = 6, 9
FIRST_YEAR, YEARS = 1900, 8
SHIPS = ("Marigold", "Northern Star", "Petrel", "Good Hope", "Anna Maria", "Swift", "Albatross")
PORTS = ("Lisbon", "Bergen", "Valparaiso", "Zanzibar", "Hobart")
CARGOES = ("tea", "timber", "oranges", "wool", "cork", "copper", "salt", "oats")
EVENTS = (
    *("The wind turned north at noon", "We passed a lighthouse before dawn"),
    *("Rain all day, and the deck was scrubbed", "A whale followed us for an hour"),
    *("The cook baked bread", "The second mate mended the foresail"),
    *("Fog until the evening, the bell was rung", "Two sails were seen in the west"),
    *("The pump was taken apart and oiled", "Calm sea, and the crew sang"),
    *("The barometer fell quickly",),
)


def name_of(number: int) -> str:
    """Return the path of a logbook in the folder, which has a subfolder for each year."""
    return f"{FIRST_YEAR + number % YEARS}/logbook-{number:04d}.pdf"


def page_lines(number: int, page: int) -> list[str]:
    """Return the lines of one page; always the same for the same numbers."""
    ship, port = SHIPS[number % len(SHIPS)], PORTS[number % len(PORTS)]
    cargo = CARGOES[number // YEARS % len(CARGOES)]
    lines = [f"Log of the {ship}, bound for {port} with {cargo}. Sheet {page + 1}."]
    for line in range(1, LINES_PER_PAGE):
        event = EVENTS[(number + page * LINES_PER_PAGE + line) % len(EVENTS)]
        lines.append(f"Watch {line}: {event}; {(number * 7 + line * 3) % 12 + 1} knots.")
    return lines


def logbook(number: int) -> bytes:
    """Return one PDF."""
    held = io.BytesIO()
    # Without today's date in it: the same number always gives the same bytes.
    canvas = Canvas(held, pagesize=A4, invariant=1)
    for page in range(PAGES_MIN + number % PAGES_DIFFER):
        text = canvas.beginText(72, 770)
        for line in page_lines(number, page):
            text.textLine(line)
        canvas.drawText(text)
        canvas.showPage()
    canvas.save()
    return held.getvalue()


def make_pdfs(folder: Path, files: int) -> None:
    """Write the logbooks. One of them is cut off half way, like a broken download."""
    broken = files // 3
    for number in range(files):
        content = logbook(number)
        path = folder / name_of(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content[: len(content) // 2] if number == broken else content)
    print(f"{files:,} files in {folder}; {name_of(broken)} is broken")


def main() -> None:
    """Read the command line and make the files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=400)
    parser.add_argument("--lake", type=Path, default=Path("lake"), help="folder of all files")
    given = parser.parse_args()
    make_pdfs(given.lake / "pdfs", given.files)


if __name__ == "__main__":
    main()
