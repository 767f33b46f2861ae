"""A table's properties choose neither where requests go nor which code is imported."""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pyarrow as pa
import pyiceberg
import pytest
from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io import PY_IO_IMPL
from pyiceberg.schema import Schema
from pyiceberg.table import Table, TableProperties
from pyiceberg.types import LongType, NestedField

from holdfast import Create
from holdfast.errors import SettingsError, UnsupportedTableError
from holdfast.sinks.base import Outcome
from holdfast.sinks.iceberg.catalog import open_catalog
from holdfast.sinks.iceberg.data_file import CODE_PROPERTIES
from holdfast.sinks.iceberg.file_io import HoldfastFileIO
from holdfast.sinks.iceberg.open import create_table
from holdfast.sinks.iceberg.sink import IcebergSink
from holdfast.storage import locations
from tests.fakes.http_servers import running
from tests.fakes.iceberg_tables import Lake, edit_metadata, new_table
from tests.fakes.keyed_s3 import SECRET, KeyedS3

SCHEMA = Schema(NestedField(1, "id", LongType()))
PROVIDER = TableProperties.WRITE_PY_LOCATION_PROVIDER_IMPL


class _EntityNotFoundError(Exception):
    """Glue's own error for a missing entity."""


class GlueClient:
    """The calls of boto3's Glue client that PyIceberg makes, for one database."""

    exceptions = SimpleNamespace(
        EntityNotFoundException=_EntityNotFoundError,
        AlreadyExistsException=FileExistsError,
        ConcurrentModificationException=InterruptedError,
    )

    def __init__(self) -> None:
        """Start without tables."""
        self.tables: dict[str, dict[str, Any]] = {}

    # Arguments have the names that AWS gives them.
    def get_database(self, Name: str) -> dict[str, Any]:  # noqa: N803
        """Return the database."""
        return {"Database": {"Name": Name}}

    def get_table(self, DatabaseName: str, Name: str) -> dict[str, Any]:  # noqa: N803
        """Return a table."""
        if Name not in self.tables:
            raise _EntityNotFoundError
        return {"Table": {**self.tables[Name], "DatabaseName": DatabaseName}}

    def create_table(self, TableInput: dict[str, Any], **_: object) -> None:  # noqa: N803
        """Keep a new table."""
        self.tables[TableInput["Name"]] = {**TableInput, "VersionId": "1"}

    def update_table(
        self,
        TableInput: dict[str, Any],  # noqa: N803
        VersionId: str,  # noqa: N803
        **_: object,
    ) -> None:
        """Replace a table."""
        later = str(int(VersionId) + 1)
        self.tables[TableInput["Name"]] = {**TableInput, "VersionId": later}


@pytest.fixture
def glue(monkeypatch: pytest.MonkeyPatch) -> Iterator[GlueClient]:
    """Give a Glue client; PyIceberg's catalog on it needs no boto3."""
    config = ModuleType("botocore.config")
    vars(config)["Config"] = object  # PyIceberg imports it by name.
    monkeypatch.setitem(sys.modules, "boto3", ModuleType("boto3"))
    monkeypatch.setitem(sys.modules, "botocore", ModuleType("botocore"))
    monkeypatch.setitem(sys.modules, "botocore.config", config)
    yield GlueClient()
    sys.modules.pop("pyiceberg.catalog.glue", None)  # The next import must find boto3 missing.


def glue_lake(client: GlueClient, options: Mapping[str, str], warehouse: str) -> Lake:
    """Return a table in a Glue catalog."""
    properties: dict[str, Any] = {"type": "glue", "client": client, "warehouse": warehouse}
    catalog = open_catalog("lake", {**properties, **options})
    catalog.create_table("db.t", schema=SCHEMA, location=f"{warehouse}/db/t")
    return Lake(IcebergSink(catalog, "db.t", "main"))


@pytest.fixture(params=["sql", "glue"])
def make_lake(
    request: pytest.FixtureRequest, tmp_path: Path, glue: GlueClient
) -> Callable[..., Lake]:
    """Return a maker of tables for each kind of catalog that writes metadata in this process."""

    def make(warehouse: str = f"file://{tmp_path}/warehouse", **options: str) -> Lake:
        if request.param == "glue":
            return glue_lake(glue, options, warehouse)
        return Lake(
            new_table(tmp_path, SCHEMA, io_properties={**options, "warehouse": warehouse})[0]
        )

    return make


@pytest.fixture
def stores(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[KeyedS3, KeyedS3]]:
    """Run two stores: the catalog's, and one that a table's property names."""
    monkeypatch.setattr(locations, "_RETRY_CONFIG", {"max_retries": 0})
    with running(KeyedS3()) as ours, running(KeyedS3()) as theirs:
        theirs.key = "unknown"  # Each request is counted as refused.
        yield ours, theirs


@pytest.mark.slow_unit
def test_a_commit_goes_to_the_catalogs_endpoint_and_to_no_other(
    make_lake: Callable[..., Lake], stores: tuple[KeyedS3, KeyedS3]
) -> None:
    """Otherwise anyone who may alter the table could get requests signed with the job's keys."""
    ours, theirs = stores
    keys = {"s3.access-key-id": "old", "s3.secret-access-key": SECRET, "s3.session-token": "t"}
    lake = make_lake("s3://wh", **ours.options(**keys))
    named = {
        **theirs.options(),
        "s3.anonymous": "true",
        "s3.access-key-id": "theirs",
        "client.access-key-id": "theirs",
        "client.region": "theirs",
        "gcs.oauth2.token": "theirs",
        "adls.connection-string": "theirs",
        "hdfs.host": "theirs",
    }
    edit_metadata(lake.table, lambda metadata: metadata["properties"].update(named))
    lake.start(lake.submitter(1, 2))
    assert lake.ids() == [1, 2]
    assert (theirs.refused, ours.refused) == (0, 0)
    found = dict(lake.table.properties)
    assert {name: found.get(name) for name in named} == named  # They are kept as they are.
    spec = lake.sink.writer_spec(lake.sink.load())
    for options in (spec.io_properties, lake.table.io.properties):
        assert "theirs" not in options.values()
        assert "s3.anonymous" not in options
        assert options["s3.endpoint"] == ours.options()["s3.endpoint"]


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the name of a class in a module that must not be imported."""
    file = tmp_path / "modules" / "named_by_a_property.py"
    file.parent.mkdir()
    file.write_text("raise SystemExit('code from a table property ran')\n")
    monkeypatch.syspath_prepend(file.parent)
    return "named_by_a_property.Code"


@pytest.mark.parametrize("name", CODE_PROPERTIES)
def test_code_that_a_property_names_is_never_imported(
    make_lake: Callable[..., Lake], trap: str, name: str
) -> None:
    """The steps are load, write, post and load again; the property is kept."""
    lake = make_lake()
    edit_metadata(lake.table, lambda metadata: metadata["properties"].update({name: trap}))
    lake.start(lake.submitter(1))
    assert lake.ids() == [1]
    assert lake.table.properties[name] == trap
    assert "named_by_a_property" not in sys.modules


@pytest.mark.parametrize("name", CODE_PROPERTIES)
def test_a_run_may_have_the_name_of_a_property(make_lake: Callable[..., Lake], name: str) -> None:
    """The run's mark is a property with the run id in its name, and a commit sets it."""
    lake = make_lake()
    lake.start(lake.submitter(1), run_id=name)
    assert lake.ids() == [1]


@pytest.mark.parametrize("name", CODE_PROPERTIES)
def test_no_commit_of_ours_names_code(make_lake: Callable[..., Lake], trap: str, name: str) -> None:
    """PyIceberg would import it before it writes the property."""
    changed = make_lake().table.transaction().set_properties({name: trap})
    with pytest.raises(ValueError, match="does not set properties that name code"):
        changed.commit_transaction()
    assert "named_by_a_property" not in sys.modules


@pytest.mark.parametrize("name", CODE_PROPERTIES)
def test_a_table_that_names_code_is_not_created(tmp_path: Path, trap: str, name: str) -> None:
    """Not even the user's own script may do it: later jobs would meet the property."""
    sink, _ = new_table(tmp_path, SCHEMA)
    create = Create(schema=pa.schema([("id", pa.int64())]), properties={name: trap})
    with pytest.raises(SettingsError, match=f"names code in '{name}'"):
        create_table(sink._catalog, "db.other", create, pa.schema([]))  # noqa: SLF001
    assert "named_by_a_property" not in sys.modules


def test_storage_options_that_a_table_is_created_with_are_not_followed(
    make_lake: Callable[..., Lake], stores: tuple[KeyedS3, KeyedS3]
) -> None:
    """They become table properties, and the first metadata file is already written."""
    ours, theirs = stores
    keys = {"s3.access-key-id": "old", "s3.secret-access-key": SECRET}
    catalog = make_lake("s3://wh", **ours.options(**keys)).sink._catalog  # noqa: SLF001
    made = catalog.create_table(
        "db.other", schema=SCHEMA, location="s3://wh/db/other", properties=theirs.options()
    )
    assert type(made.io) is HoldfastFileIO
    assert theirs.refused == 0


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("name", ["metadata_location", "previous_metadata_location", "table_type"])
def test_a_property_does_not_hide_a_commit_from_glue(
    tmp_path: Path, glue: GlueClient, name: str, *, is_late: bool
) -> None:
    """PyIceberg would overwrite Glue's own pointer: a run would have a receipt but no rows."""
    lake = glue_lake(glue, {}, f"file://{tmp_path}/warehouse")
    lake.start(lake.submitter(1), run_id="first")
    view, hidden = lake.sink.load(), {name: lake.table.metadata_location}
    edit_metadata(lake.table, lambda metadata: metadata["properties"].update(hidden))
    if is_late:  # Between the load and the post, which asserts nothing about properties.
        assert lake.sink.post_empty(view) is Outcome.CONFLICT
    with pytest.raises(UnsupportedTableError, match=f"property {name} would hide every commit"):
        lake.start(lake.submitter(2))
    assert lake.ids() == [1]


def moved(way: str) -> Callable[..., Table]:
    """Return a method as in another PyIceberg, which works in another way."""

    def method(*_: object, **__: object) -> Table:
        raise AssertionError(f"{way} was called before it was refused")

    return method


@pytest.mark.parametrize(
    ("kind", "owner", "name"),
    [
        ("sql", SqlCatalog, "load_table"),
        ("sql", SqlCatalog, "_convert_orm_to_iceberg"),
        ("sql", SqlCatalog, "commit_table"),
        ("sql", MetastoreCatalog, "_update_and_stage_table"),
        ("rest", RestCatalog, "load_table"),
        ("rest", RestCatalog, "_response_to_table"),
        ("glue", "GlueCatalog", "load_table"),
        ("glue", "GlueCatalog", "_convert_glue_to_iceberg"),
        ("glue", "GlueCatalog", "commit_table"),
        ("glue", MetastoreCatalog, "_update_and_stage_table"),
    ],
)
@pytest.mark.parametrize("is_gone", [False, True])
def test_a_pyiceberg_that_bypasses_our_guards_is_refused(  # noqa: PLR0913 - one way each.
    kind: str,
    owner: type[Catalog] | str,
    name: str,
    glue: GlueClient,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_gone: bool,
) -> None:
    """A method that was renamed, or that no longer calls what we override, fails the first look."""
    if isinstance(owner, str):  # Now that the fixture has put a boto3 there.
        owner = getattr(importlib.import_module("pyiceberg.catalog.glue"), owner)
    monkeypatch.setattr(RestCatalog, "_fetch_config", lambda _: None)
    if is_gone:
        # It gets another name, as after a rename: the class stays usable.
        monkeypatch.setattr(owner, f"{name}_", getattr(owner, name), raising=False)
        monkeypatch.delattr(owner, name)
        monkeypatch.setattr(owner, "__abstractmethods__", frozenset())
    else:
        monkeypatch.setattr(owner, name, moved(name))
    uri = "sqlite://" if kind == "sql" else "http://127.0.0.1:9"
    properties: dict[str, Any] = {"type": kind, "uri": uri}
    if kind == "glue":
        properties["client"] = glue
    with pytest.raises(SettingsError, match=r"PyIceberg [0-9.]+ cannot be used") as caught:
        open_catalog("lake", properties)
    assert f"{name} does not call" in str(caught.value) or f"call {name}," in str(caught.value)


def test_a_hook_that_pyiceberg_renames_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise nothing would call our override."""
    monkeypatch.setattr(RestCatalog, "_fetch_config", lambda _: None)
    monkeypatch.delattr(RestCatalog, "_load_file_io")
    monkeypatch.delattr(Catalog, "_load_file_io")
    with pytest.raises(SettingsError, match="_response_to_table does not call _load_file_io"):
        open_catalog("lake", {"type": "rest", "uri": "http://127.0.0.1:9"})


# Where the parts of PyIceberg that Holdfast uses open storage or import a class by name. Review
# anything new here: can a table's property get there?
_KNOWN = {
    "catalog/__init__.py": {
        "_import_catalog": {"import_module"},  # From the user's own settings.
        "_load_file_io": {"load_file_io"},  # Overridden.
        "purge_table": {"load_file_io"},  # Not called, and uses the catalog's properties.
        "_create_staged_table": {"load_location_provider", "_load_file_io"},  # Create(properties=).
        "_update_and_stage_table": {"load_location_provider", "_load_file_io"},  # Overridden.
    },
    "catalog/sql.py": {
        "_convert_orm_to_iceberg": {"load_file_io", "_load_file_io"},
        "create_table": {"load_file_io", "load_location_provider"},  # Create(properties=).
    },
    "catalog/glue.py": {
        "_convert_glue_to_iceberg": {"_load_file_io"},
        "_create_table_s3tables": {"_load_file_io"},
        "create_table": {"_load_file_io"},
        "register_table": {"_load_file_io"},
    },
    "catalog/rest/__init__.py": {
        "_load_file_io": {"load_file_io"},  # Overridden.
        "_response_to_table": {"_load_file_io"},  # Overridden.
        "_response_to_staged_table": {"_load_file_io"},
    },
    "table/__init__.py": {
        "location_provider": {"load_location_provider"},  # Not called.
        "_metadata_location_from_version_hint": {"load_file_io"},  # For static tables.
        "from_metadata": {"load_file_io"},  # Likewise.
    },
    "table/locations.py": {
        "_import_location_provider": {"import_module"},
        "load_location_provider": {"_import_location_provider"},
    },
    "io/__init__.py": {
        "_import_file_io": {"import_module"},
        "_infer_file_io_from_scheme": {"_import_file_io"},
        "load_file_io": {"_import_file_io", "_infer_file_io_from_scheme"},
    },
}
_OPENERS = {
    "load_file_io",
    "_load_file_io",
    "load_location_provider",
    "_import_file_io",
    "_import_location_provider",
    "_infer_file_io_from_scheme",
    "import_module",
}


def opened_in(file: Path) -> dict[str, set[str]]:
    """Return, for each function, which of the openers it calls."""
    found: dict[str, set[str]] = {}
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef):
            calls = [call.func for call in ast.walk(node) if isinstance(call, ast.Call)]
            names = {getattr(called, "attr", getattr(called, "id", "")) for called in calls}
            if used := names & _OPENERS:
                found.setdefault(node.name, set()).update(used)
    return found


@pytest.mark.parametrize("name", _KNOWN)
def test_pyiceberg_opens_storage_and_imports_code_only_where_we_know_it(name: str) -> None:
    """An upgrade that adds or renames such a place is reviewed before it is allowed."""
    package = Path(inspect.getfile(pyiceberg)).parent
    assert opened_in(package / name) == _KNOWN[name]


def test_pyiceberg_has_no_other_property_that_names_a_class() -> None:
    """A new one would have to be ignored too."""
    named = {
        value
        for name, value in vars(TableProperties).items()
        if isinstance(value, str) and ("impl" in value or "IMPL" in name or "class" in value)
    }
    assert {*named, PY_IO_IMPL} == set(CODE_PROPERTIES)
    assert named == {PROVIDER}


# ---- A table's own metadata imports no code
@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Return a table with one run's rows in `main`."""
    sink, _ = new_table(tmp_path, SCHEMA)
    made = Lake(sink)
    made.start(made.submitter(1), run_id="first")
    return made


def test_a_rest_catalog_takes_no_storage_option_from_a_tables_properties(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """PyIceberg builds a table's FileIO from both its properties and the server's answer."""
    monkeypatch.setattr(RestCatalog, "_fetch_config", lambda _: None)
    catalog = open_catalog("lake", {"type": "rest", "uri": "http://127.0.0.1:9", "s3.region": "x"})
    named = {"py-io-impl": "no.such.Io", "s3.region": "y"}
    made = catalog._load_file_io(named, "s3://bucket/t")  # noqa: SLF001 - where PyIceberg asks.
    assert type(made) is HoldfastFileIO
    assert made.properties["s3.region"] == "x"


def test_a_known_file_io_that_a_table_names_is_not_used_either(tmp_path: Path) -> None:
    """Only our own storage handles timeouts, errors and secrets as we need."""
    other = {"py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO"}
    sink, created = new_table(tmp_path, SCHEMA, properties=other)
    assert [type(created.io), type(sink.load().handle.io)] == [HoldfastFileIO] * 2
