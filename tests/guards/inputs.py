"""Guards of the input check by values: `verify_input="rows"`."""

from __future__ import annotations

from tests.guards.guard import Guard

_ROWS = "tests/unit/engine/test_input_check_rows.py"
_HASH = "tests/unit/spark/test_dataframe.py"

INPUT_GUARDS = (
    Guard(
        name="other values under the same keys are another input",
        file="model/coverage.py",
        before="        return (self.row_low, self.row_high) == (other.row_low, other.row_high)\n",
        after="        return True\n",
        test=_ROWS,
    ),
    Guard(
        name="sums of rows are known only if every record has them",
        file="model/work.py",
        before="        is_known = not self.rows_without_sums\n",
        after="        is_known = True\n",
        test=_ROWS,
    ),
    Guard(
        name="tasks sum the hash of each whole row",
        file="worker/coverage.py",
        before="        if ROW_HASH in hashed:\n",
        after="        if False:\n",
        test=_ROWS,
    ),
    Guard(
        name="rows that were done without sums are not taken for compared",
        file="engine/input_check.py",
        before="        if self._options.compares_rows and book.work.rows_without_sums:\n",
        after="        if False:\n",
        test=_ROWS,
    ),
    Guard(
        name="rows that landed without sums are not taken for compared",
        file="engine/drive.py",
        before="        if options.compares_rows and not covered.has_row_sums:\n",
        after="        if False:\n",
        test=_ROWS,
    ),
    Guard(
        name="rows of run.remaining are not compared by values",
        file="engine/claim.py",
        before="    if options.compares_rows:\n",
        after="    if False:\n",
        test=_ROWS,
    ),
    Guard(
        name="a NULL has a hash of its own",
        file="spark/dataframe.py",
        before='    return [f"{value} IS NULL", *_inner(value, kind, depth)]\n',
        after="    return _inner(value, kind, depth)\n",
        test=_HASH,
    ),
    Guard(
        name="an array is hashed with its length",
        file="spark/dataframe.py",
        before="        return [_size(value), *_elements(value, kind.elementType, depth)]\n",
        after="        return [*_elements(value, kind.elementType, depth)]\n",
        test=_HASH,
    ),
    Guard(
        name="where a NULL is in an array matters",
        file="spark/dataframe.py",
        before='    return [f"if(exists({array}, {is_null}), {where}, 0L)", array]\n',
        after="    return [array]\n",
        test=_HASH,
    ),
    Guard(
        name="a map is hashed whatever the order of its entries",
        file="spark/dataframe.py",
        before='    return f"sort_array(transform(map_entries({value}), '
        "{entry} -> xxhash64({', '.join(parts)})))\"\n",
        after='    return f"transform(map_entries({value}), '
        "{entry} -> xxhash64({', '.join(parts)}))\"\n",
        test=_HASH,
    ),
    Guard(
        name="another column or type is another hash",
        file="spark/dataframe.py",
        before="    parts = [f\"{int.from_bytes(salt, 'big') >> _SALT_SHIFT}L\"]\n",
        after="    parts: list[str] = []\n",
        test=_HASH,
    ),
    Guard(
        name="the order of columns is not hashed",
        file="spark/dataframe.py",
        before="sorted(found, key=lambda pair: pair[0].name):\n",
        after="found:\n",
        test=_HASH,
    ),
)
