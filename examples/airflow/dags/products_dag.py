"""A Holdfast job as an Airflow task: each retry resumes where the last one stopped."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException

import holdfast as hf


def describe(holdfast_run: str) -> dict[str, Any]:
    """Run the job; its return value is the task's XCom.

    Raises:
        AirflowFailException: A retry would fail the same way, so none is made.
        HoldfastError: The job failed, but a retry may succeed.
    """
    # Imported here, because Airflow reads this file repeatedly, and PySpark is slow to import.
    from product_job import describe_products  # noqa: PLC0415

    try:
        report = describe_products(holdfast_run, Path(os.environ["EXAMPLE_LAKE"]))
    except hf.HoldfastError as error:
        if error.retry_safe:
            raise
        raise AirflowFailException(str(error)) from error
    print(report)
    return {"outcome": report.outcome, "rows": report.rows, "kept_rows": report.kept_rows}


with DAG("products", schedule=None, catchup=False):
    PythonOperator(
        task_id="describe",
        python_callable=describe,
        # The DAG run's id is the same at every retry, and when the task is cleared.
        op_kwargs={"holdfast_run": "{{ dag.dag_id }}-{{ run_id }}"},
        retries=2,
        retry_delay=timedelta(seconds=5),
    )
