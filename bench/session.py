"""The session that both sides share: local[2], Iceberg's runtime, the stack's catalog and S3."""

from __future__ import annotations

import os
import sys
from typing import Any

from pyspark.sql import SparkSession

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
    builder: Any = SparkSession.builder
    common = {
        "spark.master": "local[2]",
        "spark.driver.memory": "4g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    for name, value in {**common, **settings}.items():
        builder = builder.config(name, value)
    session: SparkSession = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session
