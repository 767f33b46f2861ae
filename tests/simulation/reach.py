"""Reach: how much of engine and ledger do histories alone execute?

python -m tests.simulation.reach N [--seed S]
"""

from __future__ import annotations

import argparse
import logging
import threading

import coverage


def show_reach(first: int, histories: int) -> float:
    """Run histories in this process, and print the percentage of each module that they reach."""
    measured = coverage.Coverage(
        branch=True,
        include=["*/holdfast/engine/*", "*/holdfast/ledger/*"],
        concurrency=["greenlet", "thread"],
        data_file=None,
    )

    def run() -> None:
        for seed in range(first, first + histories):
            judged(seed)

    logging.disable(logging.WARNING)
    with measured.collect():
        # Imported here, so that what runs when a module is loaded counts too.
        from tests.simulation.judge import judged  # noqa: PLC0415

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    return measured.report(show_missing=True, precision=1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("histories", type=int)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    given = parser.parse_args()
    show_reach(given.seed, given.histories)
