"""The board on which engines are compared, and the ratio of `lance-peers`; no engine is run."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bench.lance_peers import COLUMNS, over_the_fastest
from bench.peer_board import Board
from bench.peer_environments import OURS, OURS_LANCE, PEERS, PeerError, names_of
from bench.peer_runs import Outcome

NAMES = [OURS_LANCE, "daft-lance", "lance-ray"]


def board_of(seconds: dict[str, dict[str, list[float]]]) -> Board:
    """Return a board on which engines have taken this long, round by round."""
    board = Board(OURS_LANCE, NAMES, COLUMNS)
    for name, columns in seconds.items():
        for column, found in columns.items():
            for number, taken_s in enumerate(found):
                board.cells[name][column].outcomes[number] = Outcome(seconds=taken_s)
    return board


def test_each_engine_belongs_to_one_comparison() -> None:
    """Ours is in both, each time first; nothing else is in both."""
    iceberg, lance = names_of("Iceberg"), names_of("Lance")
    assert sorted(iceberg + lance) == sorted(PEERS)
    assert (iceberg[0], lance[0]) == (OURS, OURS_LANCE)


def test_the_ratio_is_over_the_fastest_peer_in_any_column() -> None:
    """Ours with checkpoints is compared with the best of all, with checkpoints or without."""
    board = board_of(
        {
            OURS_LANCE: {"plain": [1.0] * 3, "checkpointed": [5.0, 6.0, 7.0]},
            "daft-lance": {"plain": [10.0, 10.0, 10.0]},
            "lance-ray": {"plain": [90.0, 90.0, 90.0]},
        }
    )
    assert over_the_fastest(board) == {"ratio": 0.6, "fastest_peer": "daft-lance, plain"}
    assert board.ratios() == {"daft-lance": {"plain": 0.1}, "lance-ray": {"plain": 0.011}}


def test_a_peer_that_lost_rows_is_not_the_fastest() -> None:
    """An engine that does only part of the job is not compared; it stays in the figures."""
    board = board_of(
        {OURS_LANCE: {"checkpointed": [5.0]}, "daft-lance": {"plain": [10.0]}, "lance-ray": {}}
    )
    lost = Outcome(seconds=1.0, wrong="7 rows lost")
    board.cells["lance-ray"]["plain"].outcomes[0] = lost
    assert over_the_fastest(board) == {"ratio": 0.5, "fastest_peer": "daft-lance, plain"}
    assert board.figures()["lance-ray"]["plain"]["wrong"] == ["7 rows lost"]


def test_without_peers_there_is_no_ratio() -> None:
    """All peers failed to install: the figures say so, and no number is made up."""
    board = board_of({OURS_LANCE: {"plain": [1.0], "checkpointed": [1.0]}})
    assert over_the_fastest(board) == {"ratio": None, "fastest_peer": None}


def test_only_rounds_that_both_have_done_are_compared() -> None:
    """A round in which one side failed says nothing about the other."""
    board = board_of({OURS_LANCE: {"checkpointed": [4.0, 5.0, 60.0]}})
    cell = board.cells["daft-lance"]["plain"]
    cell.outcomes = {0: Outcome(seconds=8.0), 1: Outcome(seconds=10.0)}
    assert board.cells[OURS_LANCE]["checkpointed"].ratio(cell) == 0.5


def test_an_engine_that_cannot_be_installed_is_named_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It takes no turn, stays in the table, and its message is in the figures."""

    def install(name: str) -> str:
        if name == "lance-ray":
            raise PeerError("no such version")
        return "python"

    turns: list[tuple[str, str]] = []

    def stage(column: str, name: str) -> list[Outcome]:
        turns.append((column, name))
        return [Outcome(seconds=1.0)]

    monkeypatch.setattr("bench.peer_board.interpreter", install)
    board = Board(OURS_LANCE, NAMES, COLUMNS)
    stages: dict[tuple[str, ...], Callable[[str], list[Outcome]]] = {
        ("plain",): lambda name: stage("plain", name),
        ("checkpointed",): lambda name: stage("checkpointed", name),
    }
    board.play(stages, rounds=1)
    board.print_table()
    board.check_ours()
    assert turns == [("plain", OURS_LANCE), ("plain", "daft-lance"), ("checkpointed", OURS_LANCE)]
    assert board.figures()["lance-ray"]["plain"] == {"s": [], "failed": ["no such version"]}
    assert capsys.readouterr().out.splitlines()[-1].split() == ["lance-ray", "failed", "none"]
