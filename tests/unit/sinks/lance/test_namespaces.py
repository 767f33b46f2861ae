"""A dataset that is named in a Lance Namespace: found, created, or refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import lance
import pyarrow as pa
import pytest
from lance.namespace import (
    CreateNamespaceRequest,
    DeclareTableRequest,
    RestAdapter,
)

import holdfast as hf
from holdfast.errors import (
    CatalogUnavailableError,
    RunMismatchError,
    SettingsError,
    TableMissingError,
    UnsupportedTableError,
)
from holdfast.opening import open_table
from holdfast.sinks.base import Sink
from holdfast.sinks.lance import namespaces
from holdfast.sinks.lance.namespaces import located

pytestmark = pytest.mark.lance

ROWS = pa.table({"id": pa.array([1, 2, 3])})
CREATE = hf.Create(schema=ROWS.schema)
TRACKED = "table_version_tracking_enabled"


@pytest.fixture(params=["dir", "rest"])
def namespace(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, str]]:
    """Yield the settings of each kind that pylance ships; `rest` has a real server behind it."""
    root = str(tmp_path / "datasets")
    if request.param == "dir":
        yield {"impl": "dir", "root": root}
        return
    with RestAdapter("dir", {"root": root}, port=0) as server:
        yield {"impl": "rest", "uri": f"http://127.0.0.1:{server.port}"}


def client(settings: dict[str, str]) -> Any:  # noqa: ANN401 - Lance ships no types.
    """Return Lance's own client."""
    kind = namespaces.KINDS[settings["impl"]]
    return kind(**{name: value for name, value in settings.items() if name != "impl"})


def by_name(settings: dict[str, str], *name: str) -> lance.LanceDataset:
    """Open a dataset as another program would, by its name alone."""
    return lance.dataset(namespace_client=client(settings), table_id=list(name))


def open_named(settings: dict[str, str], name: str, create: hf.Create | None = None) -> Sink:
    """Open a dataset as a run does."""
    return open_table(hf.LanceTable(name, namespace=settings), None, create)


def test_a_dataset_is_found_by_its_name(namespace: dict[str, str]) -> None:
    """At the place where another program has made it, under the name that a ledger keeps."""
    made = lance.write_dataset(
        ROWS, namespace_client=client(namespace), table_id=["texts"], mode="create"
    )
    sink = open_named(namespace, "texts")
    assert sink.name == f"file://{made.uri.removeprefix('file://')}"
    assert sink.load().parent_snapshot_id == made.version
    # The ledger's name opens the same dataset, without the namespace.
    assert open_table(hf.LanceTable(sink.name), None).load().uuid == sink.load().uuid


def test_a_dataset_is_created_under_its_name(namespace: dict[str, str]) -> None:
    """Once: a second start finds the first one's."""
    first = open_named(namespace, "texts", CREATE)
    again = open_named(namespace, "texts", CREATE)
    assert (again.name, again.load().uuid) == (first.name, first.load().uuid)
    assert by_name(namespace, "texts").schema == ROWS.schema


def test_a_dataset_in_a_namespace_below_the_root(namespace: dict[str, str]) -> None:
    """Its place has a name that Lance makes up."""
    client(namespace).create_namespace(CreateNamespaceRequest(id=["ml"]))
    sink = open_named(namespace, "ml.texts", CREATE)
    assert sink.load().parent_snapshot_id == 1
    assert by_name(namespace, "ml", "texts").count_rows() == 0


def test_a_name_that_another_start_declares_first_is_shared(namespace: dict[str, str]) -> None:
    """Both get the same place, and one of them creates the dataset."""
    client(namespace).declare_table(DeclareTableRequest(id=["texts"]))
    with pytest.raises(TableMissingError):
        open_named(namespace, "texts").load()
    assert open_named(namespace, "texts", CREATE).load().parent_snapshot_id == 1


def test_an_unknown_name_without_create_is_an_error(namespace: dict[str, str]) -> None:
    """It names the table and the namespace, and nothing is declared."""
    with pytest.raises(
        TableMissingError, match=r"texts of the namespace .* does not know the name"
    ):
        open_named(namespace, "texts")
    with pytest.raises(Exception, match="not found"):
        by_name(namespace, "texts")


def test_a_refused_start_leaves_no_name_behind(namespace: dict[str, str]) -> None:
    """What differs is compared first, as for a dataset that is named by its URI."""
    seen: list[Sink] = []

    def refuse(sink: Sink) -> None:
        seen.append(sink)
        with pytest.raises(TableMissingError):
            sink.load()
        raise RunMismatchError(run_id="nightly", differences="the table")

    target = hf.LanceTable("texts", namespace=namespace)
    with pytest.raises(RunMismatchError):
        open_table(target, None, CREATE, before_create=refuse)
    assert seen[0].name.startswith("texts of the namespace ")
    with pytest.raises(TableMissingError):
        open_named(namespace, "texts")


def test_a_dataset_that_appears_during_the_comparison_is_used(namespace: dict[str, str]) -> None:
    """The comparison loads it: it is not refused for a table that did not exist a moment ago."""
    loaded: list[str] = []

    def look(sink: Sink) -> None:
        open_named(namespace, "texts", CREATE)
        loaded.append(sink.load().uuid)

    sink = open_table(hf.LanceTable("texts", namespace=namespace), None, CREATE, before_create=look)
    assert loaded == [sink.load().uuid]


def test_a_namespace_that_keeps_the_versions_itself_is_refused(tmp_path: Path) -> None:
    """A commit at the table's location would pass it by."""
    settings = {"impl": "dir", "root": str(tmp_path), TRACKED: "true"}
    lance.write_dataset(ROWS, namespace_client=client(settings), table_id=["texts"], mode="create")
    with pytest.raises(UnsupportedTableError, match="keeps the table's versions itself"):
        open_named(settings, "texts")
    with pytest.raises(UnsupportedTableError, match="keeps the table's versions itself"):
        open_named(settings, "others", CREATE)


def test_a_namespace_that_does_not_answer_is_an_error() -> None:
    """Worth a retry; its settings are not shown."""
    settings = {"impl": "rest", "uri": "http://127.0.0.1:9", "headers.Authorization": "s3cret"}
    with pytest.raises(CatalogUnavailableError) as caught:
        open_named(settings, "texts")
    assert caught.value.retry_safe
    assert "s3cret" not in str(caught.value)
    with pytest.raises(CatalogUnavailableError):
        open_named({"impl": "dir", "root": "nowhere://lake"}, "texts")


class Answers:
    """A namespace that gives one answer."""

    def __init__(self, **answer: object) -> None:
        """Keep the answer."""
        self.answer = {"managed_versioning": None, "storage_options": None, **answer}
        self.requests: list[object] = []

    def __call__(self, **_: str) -> Answers:
        """Be connected to."""
        return self

    def describe_table(self, request: object) -> SimpleNamespace:
        """Return the answer."""
        self.requests.append(request)
        return SimpleNamespace(**self.answer)


def answered(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, str] | None, **answer: object
) -> tuple[hf.LanceTable, Any]:
    """Return the target that an answer leads to, and the request."""
    answers = Answers(**{"location": "s3://lake/x.lance", **answer})
    monkeypatch.setitem(namespaces.KINDS, "dir", cast("type", answers))
    settings = {"impl": "dir", "root": "s3://lake", "storage.aws_region": "here"}
    found = located(hf.LanceTable("x", namespace=settings, storage_options=options), None)
    return found, answers.requests[0]


def test_the_users_storage_options_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then no keys are asked for, and those that come are left alone."""
    vended = {"aws_access_key_id": "vended", "expires_at_millis": "1"}
    found, request = answered(monkeypatch, {"aws_region": "mine"}, storage_options=vended)
    assert (found.uri, found.namespace) == ("s3://lake/x.lance", None)
    assert found.storage_options == {"aws_region": "mine"}
    assert request.vend_credentials is False


def test_else_those_of_the_answer_and_of_the_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the namespace itself reaches its root with serves for the dataset, too."""
    found, request = answered(monkeypatch, None, storage_options={"aws_access_key_id": "vended"})
    assert found.storage_options == {"aws_access_key_id": "vended", "aws_region": "here"}
    assert request.vend_credentials is None


def test_keys_that_expire_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are asked for once a start; a long job would fail when they end."""
    vended = {"aws_access_key_id": "s3cret", "expires_at_millis": "1"}
    with pytest.raises(SettingsError, match="keys that expire") as caught:
        answered(monkeypatch, None, storage_options=vended)
    assert "s3cret" not in str(caught.value)


def test_an_answer_without_a_location_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not every namespace gives one."""
    with pytest.raises(UnsupportedTableError, match="no location"):
        answered(monkeypatch, {}, location="")


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"impl": "dir"},
        {"impl": "dir", "uri": "s3://lake"},
        {"impl": "glue", "root": "s3://lake"},
        {"impl": ["dir"], "root": "s3://lake"},
        "dir",
    ],
    ids=json.dumps,
)
def test_settings_that_lead_nowhere_are_refused_at_once(settings: object) -> None:
    """Before anything is contacted; values are not shown."""
    with pytest.raises(SettingsError, match="namespace= of 'texts'") as caught:
        hf.LanceTable("texts", namespace=cast("dict[str, str]", settings))
    assert "lake" not in str(caught.value)


@pytest.mark.parametrize("name", ["", "ml.", "ml..texts", "s3://lake/x.lance", "/lake/x.lance"])
def test_a_location_is_no_name(name: str) -> None:
    """With both it would not be clear which one counts."""
    with pytest.raises(SettingsError, match="is no name in a namespace"):
        hf.LanceTable(name, namespace={"impl": "dir", "root": "/lake"})


def test_settings_are_not_shown() -> None:
    """They hold tokens."""
    table = hf.LanceTable("x", namespace={"impl": "rest", "uri": "https://h", "token": "s3cret"})
    assert repr(table) == "LanceTable('x')"
