"""The manifests of examples/kubernetes are what Kubernetes takes, and say what the page says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

ROOT = Path(__file__).parents[3]
MANIFESTS = sorted((ROOT / "examples" / "kubernetes").glob("*.yaml"))
# The first has podFailurePolicy without a gate for long; the last is the newest that is known.
VERSIONS = ("1.29", "1.31", "1.33", "1.35", "1.37")
PAGE = ROOT / "docs" / "how-to" / "other-platforms.md"


def read(file: Path) -> dict[str, Any]:
    """Return a manifest."""
    found: dict[str, Any] = yaml.safe_load(file.read_text())
    return found


def job_of(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return the spec of the Job that a manifest makes."""
    spec: dict[str, Any] = manifest["spec"]
    return spec["jobTemplate"]["spec"] if manifest["kind"] == "CronJob" else spec


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("file", MANIFESTS, ids=lambda file: file.name)
def test_each_manifest_is_valid(file: Path, version: str) -> None:
    """With no field that the version does not know."""
    manifest = read(file)
    kubernetes_validate.validate(manifest, version, strict=True)
    job_of(manifest)["template"]["spec"]["restartpolicy"] = "Never"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(manifest, version, strict=True)


@pytest.mark.parametrize("file", MANIFESTS, ids=lambda file: file.name)
def test_each_job_is_retried_under_the_same_run_id(file: Path) -> None:
    """The Job's name, not the pod's; exit code 70 ends it; SIGTERM reaches Python."""
    spec = job_of(read(file))
    (container,) = spec["template"]["spec"]["containers"]
    run_id = next(item for item in container["env"] if item["name"] == "RUN_ID")
    label = run_id["valueFrom"]["fieldRef"]["fieldPath"]
    assert label == "metadata.labels['batch.kubernetes.io/job-name']"
    assert label in PAGE.read_text()
    assert spec["podFailurePolicy"]["rules"][0]["onExitCodes"]["values"] == [70]
    assert container["command"][-1].startswith("exec python ")
    assert spec["template"]["spec"]["restartPolicy"] == "Never"


def test_both_manifests_say_the_same() -> None:
    """A CronJob makes the Job of the other file."""
    assert [file.name for file in MANIFESTS] == ["cronjob.yaml", "job.yaml"]
    cron, job = (job_of(read(file)) for file in MANIFESTS)
    assert cron == job
