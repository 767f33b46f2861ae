"""Run the documentation's blocks of code: one process and one Spark session for all pages.

Usage: python -m tests.spark.documentation_runner FOLDER. The outcome of each block is written to
`outcomes.json` there: nothing, or how it failed.
"""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tests.markdown_pages import Block, name_of
from tests.spark.documentation_scenes import PAGES, Scene, blocks_to_run, model_server

_SETTINGS = {
    "spark.master": "local[2]",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
}


def main(folder: Path) -> None:
    """Run all pages, and write their outcomes."""
    builder: Any = SparkSession.builder
    for name, value in _SETTINGS.items():
        builder = builder.config(name, value)
    session: SparkSession = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    outcomes: dict[str, str] = {}
    with model_server() as url:
        for page in PAGES:
            if blocks_to_run(page):
                place = folder / name_of(page).replace("/", "-")
                place.mkdir()
                outcomes |= play(page, Scene(session, place, url))
    (folder / "outcomes.json").write_text(json.dumps(outcomes))
    session.stop()


def play(page: Path, scene: Scene) -> dict[str, str]:
    """Run a page's blocks in order; the next one runs even if one fails."""
    return {block.place: failure(scene, block) for block in blocks_to_run(page)}


def failure(scene: Scene, block: Block) -> str:
    """Run a block, and return how it failed; empty if it did not."""
    print(block.place, flush=True)  # Printed, so that a timeout shows which block was running.
    try:
        scene.play(block)
    except Exception:  # noqa: BLE001 - whatever a block raises is its outcome.
        return traceback.format_exc()
    return ""


if __name__ == "__main__":
    main(Path(sys.argv[1]))
