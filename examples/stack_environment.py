"""Print the environment of kill_and_resume.py for the running stack, and create its namespace."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from pyiceberg.catalog import load_catalog

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.stack_access import HOW_TO_START, load_stack


def main() -> None:
    """Print one assignment per line.

    Raises:
        SystemExit: The stack is not running.
    """
    stack = load_stack()
    if stack is None:
        raise SystemExit(HOW_TO_START)
    load_catalog("stack", **stack.rest_catalog_properties()).create_namespace_if_not_exists("demo")
    environment = {
        "EXAMPLE_CATALOG": stack.rest.uri,
        "EXAMPLE_S3_ENDPOINT": stack.s3.endpoint,
        "EXAMPLE_STORE": f"s3://{stack.s3.bucket}/_holdfast",
        "EXAMPLE_TABLE": "demo.products",
        "AWS_ACCESS_KEY_ID": stack.s3.access_key,
        "AWS_SECRET_ACCESS_KEY": stack.s3.secret_key,
        "AWS_REGION": stack.s3.region,
        "PYSPARK_PYTHON": sys.executable,
        # Executors are separate processes, on the stack's standalone master.
        "PYSPARK_SUBMIT_ARGS": f"--master {stack.spark.master} pyspark-shell",
    }
    for name, value in environment.items():
        print(f"{name}={shlex.quote(value)}")


if __name__ == "__main__":
    main()
