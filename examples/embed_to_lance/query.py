"""Find the texts that are nearest in meaning to a question."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import lance
from text_models import load

METRIC = "cosine"


def bring_index_up_to_date(dataset: Any) -> None:  # noqa: ANN401 - Lance ships no types.
    """Create an index, or add the rows that came since."""
    if dataset.describe_indices():
        dataset.optimize.optimize_indices()
    else:
        dataset.create_index("vector", index_type="IVF_FLAT", metric=METRIC, num_partitions=16)


def main() -> None:
    """Embed the question, and query the dataset."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("question")
    parser.add_argument("--index", action="store_true", help="first create or update the index")
    parser.add_argument("--model", default="minilm", help="the model that the rows were made with")
    parser.add_argument("--lake", type=Path, default=Path("lake"), help="folder of all files")
    given = parser.parse_args()
    place = str(given.lake.resolve() / "texts.lance")
    if given.index:
        bring_index_up_to_date(lance.dataset(place))
    dataset = lance.dataset(place)
    (vector,) = load(given.model)([given.question])
    nearest = {"column": "vector", "q": vector, "k": 5, "metric": METRIC}
    for row in dataset.to_table(columns=["text", "_distance"], nearest=nearest).to_pylist():
        print(f"  {row['_distance']:.3f}  {row['text']}")
    rows = dataset.count_rows()
    for index in dataset.describe_indices():
        left = rows - index.num_rows_indexed
        print(f"index {index.name}: {rows:,} rows, {left:,} of them not yet indexed")


if __name__ == "__main__":
    main()
