"""What the doctor says about a lake, for tests of each of its checks."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from tests.fakes.cli_lake import CliLake


def found(
    lake: CliLake, capsys: pytest.CaptureFixture[str], *words: str, code: int = 1
) -> dict[str, Mapping[str, str]]:
    """Run the doctor, and return what it found, by the check's name."""
    assert lake.call("doctor", "--json", *words) == code
    document = json.loads(capsys.readouterr().out)
    assert document["ok"] == (code == 0)
    return {finding["check"]: finding for finding in document["checks"]}
