"""The workflows: pinned, without rights that they do not need, and only with commands that exist.

What actionlint and zizmor find is not repeated here: `make check-workflows` runs them.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.markdown_pages import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PINNED = re.compile(r"uses: actions/[a-z-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$")
JOB = re.compile(r"^  ([a-z-]+):\n((?:(?:    .*)?\n)+)", re.MULTILINE)
# What a job may write, and nothing else of any workflow.
MAY_WRITE = {
    "release.yml attest": {"attestations", "id-token"},
    "release.yml publish": {"id-token"},
    "release.yml announce": {"contents"},
}


def jobs(workflow: Path) -> dict[str, str]:
    """Return the text of each job."""
    _, _, text = workflow.read_text().partition("\njobs:\n")
    return dict(JOB.findall(text))


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda file: file.name)
def test_every_action_is_pinned_by_its_commit_and_names_its_version(workflow: Path) -> None:
    """A tag can be moved to other code; only GitHub's own actions are used."""
    used = [line for line in workflow.read_text().splitlines() if "uses:" in line]
    assert [line for line in used if not PINNED.search(line)] == []
    assert used


def test_one_action_has_one_commit() -> None:
    """An action that is raised in one workflow is raised in all."""
    used = {
        line.split("uses: ")[1]
        for workflow in WORKFLOWS
        for line in workflow.read_text().splitlines()
        if "uses:" in line
    }
    names = [use.partition("@")[0] for use in used]
    assert used
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda file: file.name)
def test_a_job_has_only_the_rights_that_it_is_listed_with(workflow: Path) -> None:
    """The job that runs the repository's code cannot publish, nor write to the repository."""
    assert "\npermissions: {}\n" in workflow.read_text()
    for name, text in jobs(workflow).items():
        written = set(re.findall(r"^      ([a-z-]+): write\b", text, re.MULTILINE))
        assert written == MAY_WRITE.get(f"{workflow.name} {name}", set())
        assert "write-all" not in text
        assert re.search(r"^    timeout-minutes: \d+$", text, re.MULTILINE)


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda file: file.name)
def test_a_workflow_names_no_host_and_no_secret(workflow: Path) -> None:
    """Clients use the addresses that they come with, and nothing is kept that could be stolen."""
    text = workflow.read_text()
    assert "://" not in text
    assert "secrets." not in text


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda file: file.name)
def test_the_commands_of_a_workflow_exist(workflow: Path) -> None:
    """A target, a script or a list that was renamed would be noticed only by the release."""
    text = workflow.read_text()
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z-]+)", text)) <= targets
    named = re.findall(r"(?:run: |-r )(\.?[a-z]+/[a-z.]+)", text)
    assert [name for name in named if not (ROOT / name).is_file()] == []


def test_the_nightly_workflow_runs_each_step_of_the_script() -> None:
    """A step that is added to the script is run at night too."""
    (known,) = re.findall(r"^known=\((.+)\)$", (ROOT / "dev/nightly.sh").read_text(), re.MULTILINE)
    (matrix,) = re.findall(r"step: \[(.+)\]", (ROOT / ".github/workflows/nightly.yml").read_text())
    assert matrix.split(", ") == known.split()


def test_nothing_is_published_that_was_not_built_checked_and_attested() -> None:
    """Each job of a release waits for those before it, and only a tag goes beyond the first."""
    release = jobs(ROOT / ".github" / "workflows" / "release.yml")
    waits = {"attest": "build", "publish": "[build, attest]", "announce": "publish"}
    assert set(release) == {"build", *waits}
    assert "make release-check" in release["build"]
    for name, earlier in waits.items():
        assert f"    needs: {earlier}\n" in release[name]
        assert "    if: github.event_name == 'push'\n" in release[name]
    assert "    environment: release\n" in release["publish"]
    assert "make " not in release["publish"]
    assert "cache@" not in "".join(release.values())
