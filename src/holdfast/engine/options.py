"""The user's options for one start, checked before anything is touched."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, get_args

from holdfast.errors import SettingsError
from holdfast.model.identity import Identity
from holdfast.model.limits import DEFAULT_LIMITS, Limits
from holdfast.sinks.base import Filter, Removes, WriteMode
from holdfast.text import seconds_of
from holdfast.worker.task import OnError
from holdfast.worker.transforms import BatchFormat, PerRow, PerWorker, Transform

# What a write does to the table, and which rows it removes there.
Mode = Literal[
    "append", "overwrite", "overwrite_partitions", "upsert", "add_columns", "update_columns"
]
REMOVES: Mapping[str, Removes] = {
    "append": "nothing",
    "overwrite": "all",
    "overwrite_partitions": "partitions",
    "upsert": "keys",
    "add_columns": "columns",
    "update_columns": "columns",
}


def removes_of(identity: Identity) -> Removes:
    """Return which rows a run removes from its table."""
    return "where" if identity.where else REMOVES[identity.mode]


Takeover = Literal["wait", "now", "never"]
IfCommitted = Literal["compare", "return"]
# What is compared of a DataFrame's input: "keys" reads the key columns, "rows" all columns.
VerifyInput = Literal["keys", "rows", False]
# If the output lacks a column of the table: an error, or NULL in every row.
MissingColumns = Literal["error", "null"]
# If rows that a run replaces have changed since it began: replace those that are there now, or not.
IfTableChanged = Literal["replace", "raise"]
# Whether rows that others add while a run is under way are replaced by it, or stay.
IsolationLevel = Literal["serializable", "snapshot"]
Duration = str | float | timedelta
# Larger sums of costs would be rounded to more than the cost of a row.
BUDGET_MAX = 1e15


@dataclass(frozen=True, kw_only=True)
class WriteOptions:
    """The arguments of a write that the engine uses."""

    transform: Transform | PerWorker | PerRow | None = None
    # The type of batch that a transform is called with.
    batch_format: BatchFormat = "arrow"
    batch_rows: int | None = None
    # Whether the transform must return as many rows as it gets in every batch.
    one_to_one: bool = True
    missing_columns: MissingColumns = "error"
    verify_input: VerifyInput = "keys"
    # How much work may be lost; None: only rows in closed table files are kept.
    checkpoint_every: Duration | None = "30s"
    # How many further passes a failing transform gets, as long as they make progress.
    retries: int = 2
    takeover: Takeover = "wait"
    if_committed: IfCommitted = "compare"
    strict_code: bool = False
    on_error: OnError = "raise"
    # How many rows may be quarantined: a number of rows, or a share of the input.
    max_errors: float = 0.1
    cost: float | Callable[[Any], float] = 0.0
    # The most that the answers of all starts may cost together.
    budget: float | None = None
    # Whether the write ends in a commit; if not, the user commits what it has staged.
    commit: bool = True
    # For a write that replaces rows: whether no rows may replace all; what to do if those that it
    # replaces have changed since it began; and the snapshot that its input was computed from.
    allow_empty: bool = False
    if_table_changed: IfTableChanged = "replace"
    isolation_level: IsolationLevel = "serializable"
    based_on: int | None = None
    # The rows that go, if not all: those for which this filter is true.
    where: Filter | None = None
    # The columns on which rows are merged: a new row takes the place of old ones with its values.
    on: str | Sequence[str] | None = None
    # The column of the output that says which rows delete the row with their key.
    delete_column: str | None = None
    # How rows are removed from files that keep some; None: as the table says.
    write_mode: WriteMode | None = None
    limits: Limits = DEFAULT_LIMITS

    def __post_init__(self) -> None:
        """Refuse invalid options.

        Raises:
            SettingsError: An option is invalid, or options do not go together.
        """
        _whole_number("batch_rows", self.batch_rows, least=1, optional=True)
        _whole_number("retries", self.retries, least=0, optional=False)
        _one_of("batch_format", self.batch_format, BatchFormat)
        _true_or_false("one_to_one", self.one_to_one)
        _true_or_false("strict_code", self.strict_code)
        _true_or_false("commit", self.commit)
        _one_of("missing_columns", self.missing_columns, MissingColumns)
        _one_of("on_error", self.on_error, OnError)
        _true_or_false("allow_empty", self.allow_empty)
        _one_of("if_table_changed", self.if_table_changed, IfTableChanged)
        _one_of("isolation_level", self.isolation_level, IsolationLevel)
        if self.where is not None and not self.where:
            cure = "give a filter, or leave it out to replace all rows"
            raise SettingsError(what=f"where={self.where!r}", cure=cure)
        if self.on is not None and not _are_names(self.on_columns):
            cure = "name the column, or the columns, to merge on; each once"
            raise SettingsError(what=f"on={self.on!r}", cure=cure)
        self._refuse_unkept()
        _one_of("write_mode", self.write_mode, WriteMode, optional=True)
        self._refuse_delete_column()
        _whole_number("based_on", self.based_on, least=1, optional=True)
        _one_of("takeover", self.takeover, Takeover)
        _one_of("if_committed", self.if_committed, IfCommitted)
        if self.verify_input not in ("keys", "rows") and self.verify_input is not False:
            raise SettingsError(
                what=f"verify_input={self.verify_input!r}",
                cure='give "keys" to compare keys, "rows" to compare values too, or False',
            )
        _ = self.checkpoint_every_s
        _number("max_errors", self.max_errors, "a number of rows (100) or a share (0.01)")
        if isinstance(self.max_errors, float) and self.max_errors > 1:
            cure = "give a whole number of rows (100), or a share of at most 1.0"
            raise SettingsError(what=f"max_errors={self.max_errors!r}", cure=cure)
        _checked_transform(self.transform)
        self._refuse_costs()
        if not isinstance(self.limits, Limits):
            raise SettingsError(
                what=f"limits={self.limits!r}", cure="give hf.Limits(batch_bytes=…, open_files=…)"
            )
        if isinstance(self.transform, PerRow):
            if self.batch_rows is not None:
                cure = "leave it out; see per_row(concurrency=…)"
                raise SettingsError(what="batch_rows cannot be used with per_row", cure=cure)
            if self.batch_format != "arrow":
                cure = "leave it out: a function of one row gets a dict"
                raise SettingsError(what="batch_format cannot be used with per_row", cure=cure)

    def _refuse_unkept(self) -> None:
        """Refuse a filter that a later commit could not read in the run's log.

        Raises:
            SettingsError: It has a value that JSON lacks.
        """
        if self.commit or self.where is None or isinstance(self.where, str):
            return
        try:
            json.dumps(self.where)
        except TypeError as error:
            cure = "write the filter as a string, as in \"day = '2026-11-19'\""
            what = f"where= has a value that commit=False cannot keep: {error}"
            raise SettingsError(what=what, cure=cure) from error

    def _refuse_costs(self) -> None:
        """Refuse a cost or a budget that is no amount.

        Raises:
            SettingsError: It is not a number, or too small.
        """
        if not callable(self.cost):
            _number("cost", self.cost, "the cost of a row, or a function of its answer")
        if self.budget is not None:
            _number("budget", self.budget, "an amount above 0 in the unit of cost=")
            if not 0 < self.budget <= BUDGET_MAX:
                cure = f"give an amount above 0, and of at most {BUDGET_MAX:g}"
                raise SettingsError(what=f"budget={self.budget!r}", cure=cure)

    def refuse_unpriced(self) -> None:
        """Refuse a budget for rows whose cost is not known.

        Raises:
            SettingsError: There is a budget, and no cost, or no transform that costs anything.
        """
        if self.budget is None:
            return
        if not self.cost:
            cure = "pass cost=, the cost of a row or a function of its answer, or leave out budget="
            raise SettingsError(what=f"budget={self.budget!r} without cost=", cure=cure)
        if self.transform is None:
            cure = "pass transform=, whose calls a budget limits, or leave out budget="
            raise SettingsError(what=f"budget={self.budget!r} without transform=", cure=cure)

    def _refuse_delete_column(self) -> None:
        """Refuse a name that cannot be that of a flag beside the key.

        Raises:
            SettingsError: It is no name, or a column of the key.
        """
        name = self.delete_column
        if name is None:
            return
        if not isinstance(name, str) or not name:
            cure = "name the column of the output that says which rows delete, or leave it out"
            raise SettingsError(what=f"delete_column={name!r}", cure=cure)
        if name in self.on_columns:
            cure = "name a column of its own: rows are merged on this one"
            raise SettingsError(what=f"delete_column={name!r} is in on=", cure=cure)

    @property
    def on_columns(self) -> tuple[str, ...]:
        """The columns on which rows are merged."""
        if self.on is None or isinstance(self.on, list | tuple):
            return tuple(self.on or ())
        return (str(self.on),) if isinstance(self.on, str) else ()

    @property
    def where_text(self) -> str:
        """The filter as a string: a different string is a different filter."""
        if self.where is None or isinstance(self.where, str):
            return self.where or ""
        return json.dumps(self.where, default=str)

    @staticmethod
    def where_of(text: str) -> Filter | None:
        """Return the filter that a string of `where_text` stands for."""
        if text.startswith("["):
            found: Sequence[Any] = json.loads(text)
            return found
        return text or None

    def errors_max(self, rows: int) -> int:
        """Return how many of `rows` rows may be quarantined."""
        if self.on_error == "raise":
            return 0
        if isinstance(self.max_errors, int):
            return self.max_errors
        return math.ceil(self.max_errors * rows)

    @property
    def compares_rows(self) -> bool:
        """Whether the input's values are compared, and not only its keys."""
        return self.verify_input == "rows"

    @property
    def is_priced(self) -> bool:
        """Whether a row is known to cost more than reading its key."""
        return bool(self.cost) or isinstance(self.transform, PerRow)

    @property
    def checkpoint_every_s(self) -> float | None:
        """How much work may be lost, in seconds.

        Raises:
            SettingsError: It is not a duration.
        """
        if self.checkpoint_every is None:
            return None
        try:
            return seconds_of(self.checkpoint_every)
        except (TypeError, ValueError) as error:
            raise SettingsError(
                what=f"checkpoint_every={self.checkpoint_every!r}: {error}",
                cure='give a duration ("30s", "5min"), or None for no checkpoints',
            ) from error


def _checked_transform(transform: object) -> None:
    if transform is None or isinstance(transform, PerRow | PerWorker):
        return
    if not callable(transform):
        cure = "give a function of a batch, hf.per_row(...) or hf.per_worker(...)"
        raise SettingsError(what=f"transform={transform!r}", cure=cure)
    if isinstance(transform, type):
        name = transform.__name__
        cure = f"give hf.per_worker({name}, ...), which builds it once in each worker process"
        raise SettingsError(what=f"transform={name} is a class", cure=cure)
    functions = (transform, type(transform).__call__)
    if any(inspect.iscoroutinefunction(function) for function in functions):
        cure = "give hf.per_row(function), which calls it for many rows at once"
        raise SettingsError(what="the transform is an async function", cure=cure)


def _whole_number(name: str, value: int | None, *, least: int, optional: bool) -> None:
    if value is None and optional:
        return
    if type(value) is not int or value < least:
        cure = f"give a whole number of at least {least}{', or None' if optional else ''}"
        raise SettingsError(what=f"{name}={value!r}", cure=cure)


def _are_names(names: tuple[Any, ...]) -> bool:
    given = [name for name in names if isinstance(name, str) and name]
    return bool(names) and len(set(given)) == len(names)


def _true_or_false(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise SettingsError(what=f"{name}={value!r}", cure="give True or False")


def _number(name: str, value: float, wanted: str) -> None:
    if type(value) not in {int, float} or not 0 <= value < float("inf"):
        raise SettingsError(what=f"{name}={value!r}", cure=f"give {wanted}")


def _one_of(
    name: str,
    value: str | None,
    allowed: Any,  # noqa: ANN401 - a Literal type.
    *,
    optional: bool = False,
) -> None:
    known = get_args(allowed)
    if value not in known and not (optional and value is None):
        texts = [f'"{choice}"' for choice in known] + (["None"] if optional else [])
        cure = f"give {', '.join(texts[:-1])} or {texts[-1]}"
        raise SettingsError(what=f"{name}={value!r}", cure=cure)
