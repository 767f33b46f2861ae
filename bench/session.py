"""The session that both sides share: local[2], Iceberg's runtime, the stack's catalog and S3."""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession

from bench import peer_spark
from tests.stack_access import HOW_TO_START, Stack, load_stack


def open_stack() -> Stack:
    """Return the running stack.

    Raises:
        SystemExit: It is not running.
    """
    stack = load_stack()
    if stack is None:
        raise SystemExit(HOW_TO_START)
    return stack


def open_session(settings: dict[str, str]) -> SparkSession:
    """Start a local session with two cores and the given settings."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session: SparkSession = peer_spark.open_session(settings)
    return session
