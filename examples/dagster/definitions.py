"""A Holdfast job as a Dagster asset: each retry resumes where the last one stopped."""

import os
from pathlib import Path

import dagster as dg
from product_job import describe_products

import holdfast as hf


@dg.asset(retry_policy=dg.RetryPolicy(max_retries=2, delay=5))
def products(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
    """Run the job.

    Raises:
        Failure: A retry would fail the same way, so none is made.
        HoldfastError: The job failed, but a retry may succeed.
    """
    # A step retry stays in the same run. A run retry is another run with the same root.
    launched = context.run.root_run_id or context.run.run_id
    try:
        report = describe_products(f"products-{launched}", Path(os.environ["EXAMPLE_LAKE"]))
    except hf.HoldfastError as error:
        if error.retry_safe:
            raise
        raise dg.Failure(str(error), allow_retries=False) from error
    print(report)
    return dg.MaterializeResult(
        metadata={"rows": report.rows, "kept_rows": report.kept_rows, "outcome": report.outcome}
    )


describe = dg.define_asset_job("describe", selection="products")
definitions = dg.Definitions(assets=[products], jobs=[describe])
