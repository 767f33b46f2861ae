"""Count what is in the table, and sum it up by country. Does not need Spark."""

from __future__ import annotations

import argparse
from pathlib import Path

import pyarrow as pa
from pyiceberg.catalog import load_catalog


def main() -> None:
    """Read the table with pyiceberg."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lake", type=Path, default=Path("lake"), help="folder of all files")
    given = parser.parse_args()
    catalog = load_catalog(type="sql", uri=f"sqlite:///{given.lake.resolve()}/catalog.db")
    rated: pa.Table = catalog.load_table("demo.rated").scan().to_arrow()
    keys = len(rated.group_by(["order_id", "line"]).aggregate([]))
    print(f"{len(rated):,} rows in the table, {keys:,} different keys")
    countries = rated.group_by("country").aggregate([("amount", "sum"), ("risk", "mean")])
    for row in countries.sort_by("country").to_pylist():
        print(f"  {row['country']}  amount {row['amount_sum']:>9,}  risk {row['risk_mean']:.3f}")


if __name__ == "__main__":
    main()
