"""The public API: the arguments of a run and of its writes, and what is refused at once."""

from __future__ import annotations

import inspect
import math
import pydoc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import holdfast as hf
from holdfast.engine.options import WriteOptions
from holdfast.errors import RunMismatchError, SettingsError
from holdfast.model.identity import Identity
from tests.fakes.rig import LAYOUT, Rig

RUN = (
    *("run_id", "store", "store_options", "version", "takeover", "if_committed", "verify_input"),
    *("strict_code", "limits", "budget", "progress", "on_event"),
)
APPEND = (
    *("source", "to", "key", "transform", "batch_format", "batch_rows", "one_to_one"),
    *("checkpoint_every", "create", "missing_columns", "retries", "on_error", "max_errors", "cost"),
    "commit",
)


def test_a_run_takes_its_own_options_and_each_write_takes_those_of_its_rows() -> None:
    """They are in the documentation's order; only the id and the source are positional."""
    assert tuple(inspect.signature(hf.Run).parameters) == RUN
    append = inspect.signature(hf.Run.append).parameters
    assert tuple(append)[1:] == APPEND
    assert [
        name for name, parameter in append.items() if parameter.kind is not parameter.KEYWORD_ONLY
    ] == [
        "self",
        "source",
    ]


def test_the_help_of_append_fits_two_screens() -> None:
    """Two screens of 24 lines, at 100 columns."""
    text = pydoc.plain(pydoc.render_doc(hf.Run.append))
    lines = sum(max(1, -(-len(line) // 100)) for line in text.splitlines())
    assert lines <= 48, text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("takeover", "later"),
        ("if_committed", True),
        ("verify_input", True),
        ("strict_code", None),
        ("limits", {"open_files": 4}),
        *[("budget", value) for value in (0, -1.0, math.nan, math.inf, 1e16, 10**400, "5", True)],
    ],
)
def test_a_run_with_an_invalid_option_is_refused_when_it_is_made(name: str, value: object) -> None:
    """Not at its first write, which may come after hours of Spark."""
    options: dict[str, Any] = {name: value}
    with pytest.raises(SettingsError, match=f"{name}="):
        hf.Run("r", store="file:///nowhere", **options)


@pytest.mark.parametrize("call", ["abort", "sweep"])
def test_a_mistyped_id_is_refused_and_leaves_nothing(call: str, tmp_path: Path) -> None:
    """An abort of an id that does not exist would leave the real run at work, silently."""
    store = f"file://{tmp_path}/store"
    rig = Rig()
    rig.start()
    folder = tmp_path / "store" / "orders-1"
    for uri, data in rig.storage.objects.items():
        file = folder / uri.removeprefix(f"{LAYOUT.folder}/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(SettingsError, match=r"(?s)no run 'order-1' in .* did you mean 'orders-1'"):
        getattr(hf.Run("order-1", store=store), call)()
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("transform", [5, "describe", {"id": 1}])
def test_a_transform_that_cannot_be_called_is_refused_at_once(transform: object) -> None:
    """Not on an executor, after a job has begun."""
    with pytest.raises(SettingsError, match="transform="):
        WriteOptions(transform=transform)  # type: ignore[arg-type]


async def answer(row: dict[str, object]) -> dict[str, object]:
    """Return the row."""
    return row


class Embedder:
    """Built once per worker, if the user says so."""

    async def __call__(self, row: dict[str, object]) -> dict[str, object]:
        """Return the row."""
        return row


@pytest.mark.parametrize(
    ("transform", "cure"),
    [
        (answer, "hf.per_row(function)"),
        (Embedder(), "hf.per_row(function)"),
        (Embedder, "hf.per_worker(Embedder, ...)"),
    ],
)
def test_a_transform_that_lacks_its_wrapper_is_refused_at_once(
    transform: object, cure: str
) -> None:
    """An async function would return a coroutine, and a class an object, for each batch."""
    with pytest.raises(SettingsError) as caught:
        WriteOptions(transform=transform)  # type: ignore[arg-type]
    assert cure in caught.value.cure
    assert WriteOptions(transform=hf.per_row(answer)).is_priced
    assert WriteOptions(transform=hf.per_worker(Embedder)).transform


def test_a_store_that_cannot_be_used_is_named_with_its_origin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A value of the environment is easily forgotten."""
    monkeypatch.setenv("HOLDFAST_STORE", "ledger")
    with pytest.raises(SettingsError, match=r"HOLDFAST_STORE: 'ledger' is neither"):
        hf.Run("orders-1").status()
    with pytest.raises(SettingsError, match=r"^'folder' is neither"):
        hf.Run("orders-1", store="folder").status()


def noting(called: dict[str, Any], name: str) -> Any:  # noqa: ANN401 - a method.
    """Return a method that notes what it is given."""
    return lambda _run, source, **given: called.update({name: (source, given)})


def retries(monkeypatch: pytest.MonkeyPatch, **facts: Any) -> dict[str, Any]:  # noqa: ANN401
    """Let run `r` have failed rows; return what is called to write them, with its arguments."""
    identity = Identity(
        table="lake.db.t",
        table_uuid="u",
        key=("id",),
        session_time_zone="UTC",
        ansi_mode="true",
        version="",
        **{"branch": "main", "mode": "append", **facts},
    )
    ledger = SimpleNamespace(
        store="s3://lake/runs",
        log=SimpleNamespace(receipt="landed"),
        run_file=lambda: SimpleNamespace(identity=identity),
    )
    rows = SimpleNamespace(select=lambda _columns: "rows")
    called: dict[str, Any] = {}
    monkeypatch.setattr("holdfast.run.quarantine_chunks", lambda _ledger: ["chunk"])
    monkeypatch.setattr("holdfast.run.active_session", lambda: None)
    monkeypatch.setattr(hf.Run, "_known_ledger", lambda _run, _session: ledger)
    monkeypatch.setattr(hf.Run, "quarantined", lambda _run: rows)
    table = SimpleNamespace(load=lambda: SimpleNamespace(uuid="u"))
    monkeypatch.setattr("holdfast.run.open_table", lambda *_target, **_how: table)
    for name in ("append", "upsert"):
        monkeypatch.setattr(hf.Run, name, noting(called, name))
    return called


@pytest.mark.parametrize(("on", "verb"), [((), "append"), (("id",), "upsert")])
def test_failed_rows_are_retried_with_the_verb_of_their_run(
    monkeypatch: pytest.MonkeyPatch, on: tuple[str, ...], verb: str
) -> None:
    """Rows of an upsert that are appended would be beside the old ones of their keys."""
    facts = {"mode": verb, "on": on, "delete_column": "gone" if on else ""}
    called = retries(monkeypatch, **facts)
    named: dict[str, Any] = {"on": "id", "delete_column": "gone"} if on else {}
    hf.Run("r", store="s3://lake/runs").retry_quarantined(to="lake.db.t", retries=1, **named)
    ((name, (source, given)),) = called.items()
    assert (name, source) == (verb, "rows")
    assert given.get("on", ()) == on
    assert given.get("delete_column") == ("gone" if on else None)
    assert (given["key"], given["retries"]) == (("id",), 1)


def test_a_retry_has_all_options_of_its_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without `version`, for one, code that has changed since would go unnoticed in a retry."""
    retries(monkeypatch)
    writers: list[hf.Run] = []
    monkeypatch.setattr(hf.Run, "append", lambda run, _source, **_given: writers.append(run))
    first = hf.Run(
        "r",
        store="s3://lake/runs",
        store_options={"region": "eu-west-1"},
        version="2",
        takeover="never",
        if_committed="return",
        verify_input="rows",
        strict_code=True,
        limits=hf.Limits(open_files=7),
        budget=5.0,
        progress=False,
        on_event=print,
    )
    first.retry_quarantined(to="lake.db.t", cost=1.0)
    given, (again,) = vars(first), map(vars, writers)
    differ = {name: again[name] for name in given if given[name] != again[name]}
    assert differ == {"_run_id": "r+retry", "_retry_of": "r"}
    defaults = vars(hf.Run("other"))
    set_here = {name for name in given if given[name] != defaults[name]}
    assert set_here >= {"_store", "_store_options", "_version", "_progress", "_listeners"}
    assert all(given["_common"][name] != defaults["_common"][name] for name in given["_common"])


@pytest.mark.parametrize(
    ("recorded", "named", "why"),
    [
        ({}, {}, r"(?s)append to .*retry_quarantined\(to=\.\.\.\)"),
        ({"mode": "upsert", "on": ("id",)}, {"to": "lake.db.t"}, r"to=\.\.\., on='id'"),
        ({"mode": "append"}, {"to": "lake.db.t", "on": "id"}, "append to"),
    ],
)
def test_failed_rows_are_not_retried_as_only_a_ledger_says(
    monkeypatch: pytest.MonkeyPatch, recorded: dict[str, Any], named: dict[str, Any], why: str
) -> None:
    """In another process the caller names the table, and the key if rows are to be merged."""
    called = retries(monkeypatch, **recorded)
    with pytest.raises(SettingsError, match=why):
        hf.Run("r", store="s3://lake/runs").retry_quarantined(**named)
    assert called == {}


@pytest.mark.parametrize(
    ("to", "uuid", "why"),
    [
        (hf.IcebergTable("lake.db.t"), "u", "its branch was 'dev', and is now 'main'"),
        ("lake.db.t", "u", "its branch was 'dev', and is now 'main'"),
        (hf.IcebergTable("lake.db.t", branch="dev"), "other", "the table lake.db.t is not the one"),
    ],
)
def test_failed_rows_are_retried_where_their_run_has_landed(
    monkeypatch: pytest.MonkeyPatch, to: str | hf.IcebergTable, uuid: str, why: str
) -> None:
    """A target that names no branch is on `main`."""
    called = retries(monkeypatch, branch="dev")
    table = SimpleNamespace(load=lambda: SimpleNamespace(uuid=uuid))
    monkeypatch.setattr("holdfast.run.open_table", lambda *_target, **_how: table)
    with pytest.raises(RunMismatchError, match=why):
        hf.Run("r", store="s3://lake/runs").retry_quarantined(to=to)
    assert called == {}


def costs_something(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row as it came."""
    return row


@pytest.mark.parametrize("write", ["append", "overwrite", "overwrite_partitions", "upsert"])
def test_a_budget_without_a_cost_is_refused_before_anything_is_opened(write: str) -> None:
    """It would never be reached."""
    run = hf.Run("r", store="file:///nowhere", budget=5.0)
    more = {"on": "id"} if write == "upsert" else {}
    do, transform = getattr(run, write), hf.per_row(costs_something)
    with pytest.raises(SettingsError, match="without cost="):
        do(object(), to="lake.a.b", transform=transform, **more)
    with pytest.raises(SettingsError, match="without transform="):
        do(object(), to="lake.a.b", cost=1.0, **more)


def test_a_budget_for_columns_needs_a_cost_too() -> None:
    """They are computed by calls as well."""
    run = hf.Run("r", store="file:///nowhere", budget=5.0)
    with pytest.raises(SettingsError, match="without cost="):
        run.add_columns(to="s3://a/b.lance", transform=costs_something, read_columns=["id"])
