"""What Spark itself records about a job: its event log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read_events(cluster_folder: Path, kind: str) -> list[dict[str, Any]]:
    """Return the events of one kind, of the one application that ran on a cluster."""
    (log,) = (cluster_folder / "events").iterdir()
    events = map(json.loads, log.read_text().splitlines())
    return [event for event in events if event["Event"] == f"SparkListener{kind}"]
