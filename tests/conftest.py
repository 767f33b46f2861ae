"""Fixtures that all tests share: the stack, and one Spark session."""

from __future__ import annotations

import os
import random
import sys
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from pyspark.sql import SparkSession

from holdfast.engine import input_check
from tests.stack_access import Stack, load_stack, stack

__all__ = ["stack"]

ROOT = Path(__file__).parents[1]
# So that a clone tests its own code, whatever is installed.
PYTHON_PATH = f"{ROOT}/src{os.pathsep}{ROOT}"
# versitygw 1.8.0 sometimes leaves the checksum after a body from Arrow's S3 client unread and takes
# it for the next request: one to five in a hundred of PyIceberg's writes end with 400.
os.environ.setdefault("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")
# For every Java that a test starts, also in scripts and examples: queries are many and small, and
# Java's second compiler would take two thirds of all processor time.
for _name in ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS"):
    os.environ.setdefault(_name, "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
# The files that take longest, the longest first; see `pytest_collection_modifyitems`.
LONGEST_FIRST = (
    "test_upsert_like_spark",
    "test_where_like_spark",
    "test_types_and_layouts",
    "test_upsert_conflicts",
    "test_failpoint_sample",
    "test_bad_keys",
    "test_upsert_deletes_like_spark",
    "test_join_example",
    "test_keys",
    "test_image_columns_example",
    "test_documentation",
    "test_where_it_runs",
    "test_remaining",
    "test_replaced_files",
    "test_where_rows",
    "test_replace_conflicts",
    "test_commit_on_real_catalogs",
    "test_upsert_late_commits",
    "test_upsert_large_index",
    "test_values_at_the_edges",
    "test_commit_later",
    "test_notebook",
    "test_pdf_example",
    "test_quickstart",
    "test_embed_example",
    "test_take_over",
    "test_input_values",
    "test_merge_on_read",
    "test_rehearsal",
    "test_columns",
    "test_executors",
    "test_missing_columns",
    "test_progress",
    "test_wheel",
)
# A busy machine is not a wrong result; how long a test may take is pytest's `timeout`.
hypothesis.settings.register_profile("holdfast", deadline=None)
hypothesis.settings.load_profile("holdfast")
# What crash tests and the sample of the crash matrix draw from.
SEED_VARIABLE = "HOLDFAST_CRASH_SEED"
# When the time for tests ends, in seconds since 1970. CI sets it: a run that is cut off reports
# nothing, but one that leaves out tests lists them.
UNTIL_VARIABLE = "HOLDFAST_TESTS_UNTIL"


def pytest_configure() -> None:
    """Draw a seed before workers start: each must collect the same tests as the others."""
    os.environ.setdefault(SEED_VARIABLE, str(random.SystemRandom().randrange(1_000_000)))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Draw cases of large tables; where files run in parallel, put the longest first."""
    draw(items)
    if hasattr(config, "workerinput"):
        rank = {name: place for place, name in enumerate(LONGEST_FIRST)}
        items.sort(key=lambda item: rank.get(item.path.stem, len(rank)))


def draw(items: list[pytest.Item]) -> None:
    """Keep a third of the cases of each large table: another seed draws others."""
    tables: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("sampled") and "HOLDFAST_ALL" not in os.environ:
            tables[item.nodeid.partition("[")[0]].append(item)
    seed = os.environ[SEED_VARIABLE]
    why = f"not drawn with {SEED_VARIABLE}={seed}; HOLDFAST_ALL=1 runs all"
    for name, cases in tables.items():
        drawn = random.Random(f"{seed} {name}").sample(cases, -(-len(cases) // 3))
        for case in cases:
            if case not in drawn:
                case.add_marker(pytest.mark.skip(reason=why))


def pytest_runtest_setup() -> None:
    """Skip the tests for which no time is left."""
    until = float(os.environ.get(UNTIL_VARIABLE, "inf"))
    if time.time() > until:
        pytest.skip(f"not run: the time for tests ended before it began ({UNTIL_VARIABLE})")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Name a failed test at once, so that the name is in the output even if the run ends early."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        print(f"\n{report.when} failed: {report.nodeid}", flush=True)


def pytest_report_header() -> str:
    """Print the seed, which the environment takes back."""
    return f"{SEED_VARIABLE}={os.environ[SEED_VARIABLE]}"


@pytest.fixture(scope="session")
def session() -> Iterator[SparkSession]:
    """Start the local session of this process; it needs no server.

    Where the stack runs, it has its catalogs too: see `lake`. Workers import the tests' helpers, so
    the repository's root must be on their path.
    """
    servers = load_stack()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = PYTHON_PATH
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    settings = {
        "spark.master": "local[2]",
        "spark.driver.memory": "2g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.python.daemon.module": "tests.warm_daemon",
    }
    if servers is not None and servers.spark.reads_iceberg():
        settings |= _catalogs(servers)
    builder: Any = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    started: SparkSession = builder.getOrCreate()
    started.sparkContext.setLogLevel("ERROR")
    yield started
    started.stop()


def _catalogs(servers: Stack) -> dict[str, str]:
    settings = servers.spark_catalog_conf("cached") | servers.spark_catalog_conf("lake")
    settings["spark.sql.catalog.lake.cache-enabled"] = "false"
    if servers.nessie is not None:
        settings |= servers.nessie_spark_conf("nessie")
        settings["spark.sql.catalog.nessie.cache-enabled"] = "false"
    return settings


@pytest.fixture(scope="session")
def lake(stack: Stack, session: SparkSession) -> SparkSession:
    """Return the session with Iceberg's own runtime, on the stack's catalogs.

    `lake` is the reference REST catalog, read anew at each query; `cached` is the same with
    Iceberg's default cache; `nessie` is there when Nessie runs.
    """
    if not stack.spark.reads_iceberg():
        pytest.skip(f"the stack has no Iceberg runtime for PySpark {session.version}")
    return session


@pytest.fixture
def namespace(lake: SparkSession) -> str:
    """Return a fresh namespace in the REST catalog."""
    name = f"t{uuid.uuid4().hex[:10]}"
    lake.sql(f"CREATE NAMESPACE lake.{name}")
    return name


@pytest.fixture
def ledger(stack: Stack) -> dict[str, Any]:
    """Return the arguments of `hf.Run` for a fresh ledger on the stack's S3."""
    return {
        "store": f"s3://{stack.s3.bucket}/ledger-{uuid.uuid4().hex[:10]}",
        "store_options": stack.s3.store_options(),
    }


@pytest.fixture
def many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every input one whose keys are too many to be compared all at first."""
    monkeypatch.setattr(input_check, "_COMPARED_ROWS_MAX", 0)
