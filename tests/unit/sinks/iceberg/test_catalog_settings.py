"""Settings: from Spark's catalog to PyIceberg's, and which catalogs are refused."""

from __future__ import annotations

import base64
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from sqlalchemy.engine import make_url

from holdfast.errors import SettingsError, UnsupportedTableError
from holdfast.sinks.iceberg.catalog import open_catalog, pyiceberg_properties
from holdfast.sinks.iceberg.data_file import WriteOptions
from holdfast.sinks.iceberg.open import open_sink
from holdfast.sinks.targets import IcebergTable
from tests.fakes.http_servers import running

REST = {
    "type": "rest",
    "uri": "http://catalog:8181",
    "warehouse": "s3://lake/",
    "credential": "id:secret",
    "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
    "s3.endpoint": "http://store:9000",
    "client.region": "eu-central-1",
    "cache-enabled": "false",
}
JDBC = {"catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog", "warehouse": "s3://lake/"}


class AskedCatalog(ThreadingHTTPServer):
    """A REST catalog that records the logins it receives."""

    def __init__(self) -> None:
        """Listen on a free port of this machine."""
        super().__init__(("127.0.0.1", 0), _Handler)
        self.logins: list[str | None] = []


class _Handler(BaseHTTPRequestHandler):
    server: AskedCatalog

    def do_GET(self) -> None:
        self.server.logins.append(self.headers.get("Authorization"))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"defaults":{},"overrides":{}}')

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_a_rest_catalog_keeps_what_pyiceberg_knows() -> None:
    """Credentials and endpoints are passed on; settings that only Java knows are not."""
    assert pyiceberg_properties("lake", REST) == {
        "type": "rest",
        "uri": "http://catalog:8181",
        "warehouse": "s3://lake/",
        "credential": "id:secret",
        "s3.endpoint": "http://store:9000",
        "client.region": "eu-central-1",
        "s3.region": "eu-central-1",
    }


def test_a_region_of_its_own_wins() -> None:
    """`s3.region` is more precise than `client.region`."""
    assert pyiceberg_properties("lake", {**REST, "s3.region": "x"})["s3.region"] == "x"


@pytest.mark.parametrize(
    "kind",
    [
        {"type": "REST"},
        {"catalog-impl": "org.apache.iceberg.rest.RESTCatalog"},
        {"type": "rest", "catalog-impl": "org.apache.iceberg.rest.RESTCatalog"},
    ],
)
def test_a_catalog_is_known_by_type_or_by_class(kind: dict[str, str]) -> None:
    """Spark accepts either."""
    assert pyiceberg_properties("lake", {**kind, "uri": "http://c"})["type"] == "rest"


@pytest.mark.parametrize("way", ["none", "OAuth2"])
def test_a_login_that_pyiceberg_finds_by_itself_is_left_to_pyiceberg(way: str) -> None:
    """PyIceberg uses `credential` or `token`; Java's names for them are not passed on."""
    settings = {**REST, "rest.auth.type": way, "rest.auth.oauth2.x": "y"}
    assert pyiceberg_properties("lake", settings) == pyiceberg_properties("lake", REST)


def test_requests_are_signed_where_spark_signs_them() -> None:
    """AWS catalogs need this; the names for region and service are the same."""
    settings = {**REST, "rest.auth.type": "sigv4", "rest.signing-name": "glue"}
    found = pyiceberg_properties("lake", settings)
    assert (found["rest.sigv4-enabled"], found["rest.signing-name"]) == ("true", "glue")


def test_a_password_is_sent_where_spark_sends_one() -> None:
    """The check is on what the server receives."""
    login = {"type": "basic", "basic.username": "me", "basic.password": "p:w"}
    with running(AskedCatalog()) as server:
        uri = f"http://127.0.0.1:{server.server_address[1]}"
        settings = {"type": "rest", "uri": uri, **{f"rest.auth.{k}": v for k, v in login.items()}}
        open_catalog("lake", pyiceberg_properties("lake", settings))
    assert server.logins == [f"Basic {base64.b64encode(b'me:p:w').decode()}"]


@pytest.mark.parametrize(
    ("uri", "login", "expected"),
    [
        ("jdbc:postgresql://db:5432/lake", {}, "postgresql+psycopg2://db:5432/lake"),
        (
            "jdbc:postgresql://db/lake?sslmode=require",
            {"jdbc.user": "me", "jdbc.password": "p@ss/w:rd"},
            "postgresql+psycopg2://me:p%40ss%2Fw%3Ard@db/lake?sslmode=require",
        ),
        ("jdbc:postgresql://db/lake", {"jdbc.user": "me"}, "postgresql+psycopg2://me@db/lake"),
        ("jdbc:sqlite:/srv/lake.db", {}, "sqlite:////srv/lake.db"),
        ("jdbc:sqlite:file:/srv/lake.db?mode=rw", {}, "sqlite:////srv/lake.db"),
        ("postgresql+psycopg2://me:x@db/lake", {}, "postgresql+psycopg2://me:x@db/lake"),
    ],
)
def test_a_jdbc_catalog_becomes_an_sqlalchemy_url(
    uri: str, login: dict[str, str], expected: str
) -> None:
    """User and password are quoted into the URL, and do not remain as properties."""
    found = pyiceberg_properties("lake", {**JDBC, **login, "uri": uri})
    assert found == {"type": "sql", "warehouse": "s3://lake/", "uri": expected}
    if "jdbc.password" in login:
        assert make_url(found["uri"]).password == login["jdbc.password"]


def test_a_glue_catalog_is_mapped() -> None:
    """This checks the mapping only: no test of ours talks to the service."""
    settings = {
        "catalog-impl": "org.apache.iceberg.aws.glue.GlueCatalog",
        "warehouse": "s3://lake/",
        "glue.id": "123456789012",
        "client.region": "eu-central-1",
    }
    assert pyiceberg_properties("lake", settings) == {
        "type": "glue",
        "warehouse": "s3://lake/",
        "glue.id": "123456789012",
        "client.region": "eu-central-1",
        "s3.region": "eu-central-1",
        "glue.region": "eu-central-1",
    }


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"type": "hive", "uri": "thrift://h"}, "two commits can both land"),
        ({"type": "hadoop", "warehouse": "/w"}, "lose a commit"),
        ({"catalog-impl": "org.apache.iceberg.hive.HiveCatalog"}, "two commits can both land"),
        ({"catalog-impl": "org.apache.iceberg.nessie.NessieCatalog"}, "native Nessie API"),
        ({"catalog-impl": "com.example.OwnCatalog"}, "com.example.OwnCatalog"),
        ({"uri": "x"}, "unknown"),
        ({**REST, "rest.auth.type": "google"}, "'google'"),
        ({**REST, "rest.auth.type": "sigv4", "rest.access-key-id": "k"}, "rest.access-key-id"),
        ({**REST, "rest.sigv4-enabled": "true", "rest.access-key-id": "k"}, "rest.access-key-id"),
        ({**JDBC, "uri": "jdbc:oracle:thin:@db"}, "'oracle'"),
        ({**JDBC, "uri": "nothing"}, "not a JDBC URL"),
        (JDBC, "not a JDBC URL"),
    ],
)
def test_a_catalog_that_cannot_be_trusted_is_refused_with_advice(
    settings: dict[str, str], said: str
) -> None:
    """The message names the catalog, the reason and what to use instead."""
    with pytest.raises(UnsupportedTableError, match="'lake'") as caught:
        pyiceberg_properties("lake", settings)
    assert said in str(caught.value)
    assert caught.value.cure


@pytest.mark.parametrize(
    "properties",
    [
        {"type": "hive", "uri": "thrift://h"},
        {"type": "bigquery"},
        {"warehouse": "/w"},
        {"type": "in-memory"},
        {"type": "sql", "uri": "sqlite://", "snapshot-loading-mode": "refs"},
    ],
)
def test_a_catalog_given_as_an_argument_is_checked_too(properties: dict[str, str]) -> None:
    """There is no way around the check, nor around loading the whole history."""
    with pytest.raises(UnsupportedTableError):
        open_catalog("lake", properties)


def test_a_catalog_may_have_a_name() -> None:
    """An SQL catalog stores its name in each row, so the name can be given."""
    catalog = {"name": "prod", "type": "sql", "uri": "sqlite://", "warehouse": "file:///none"}
    target = IcebergTable("db.t", catalog=catalog)
    sink = open_sink(target, settings_under=lambda _: {}, create=None, default_schema=lambda: None)
    assert sink.name == "prod.db.t"


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("lake.db.t", {}, "no catalog 'lake'"),
        ("lake.t", REST, "does not name a table"),
        ("t", REST, "does not name a table"),
    ],
)
def test_a_name_that_cannot_be_resolved_is_refused(
    name: str, settings: dict[str, str], said: str
) -> None:
    """It fails before any request: the session lacks the catalog, or the name is too short."""
    with pytest.raises(SettingsError, match=said):
        open_sink(
            IcebergTable(name),
            settings_under=lambda _: settings,
            create=None,
            default_schema=lambda: None,
        )


def test_without_properties_icebergs_defaults_apply() -> None:
    """The numbers are those of Iceberg's own table properties."""
    options = WriteOptions.of("t", {})
    assert options.target_file_bytes == 512 * 1024**2
    assert options.row_group_bytes == 128 * 1024**2
    assert options.parquet["compression"] == "zstd"
    assert "compression_level" not in options.parquet


def test_a_tables_properties_are_read() -> None:
    """These are sizes, limits, codec and level."""
    options = WriteOptions.of(
        "t",
        {
            "write.format.default": "PARQUET",
            "write.target-file-size-bytes": "1000",
            "write.parquet.row-group-size-bytes": "200",
            "write.parquet.row-group-limit": "30",
            "write.parquet.page-size-bytes": "4",
            "write.parquet.page-row-limit": "5",
            "write.parquet.dict-size-bytes": "6",
            "write.parquet.compression-codec": "ZSTD",
            "write.parquet.compression-level": "9",
        },
    )
    assert (options.target_file_bytes, options.row_group_bytes, options.row_group_rows) == (
        1000,
        200,
        30,
    )
    wanted = {"compression": "zstd", "compression_level": 9, "data_page_size": 4}
    wanted |= {"write_batch_size": 5, "dictionary_pagesize_limit": 6}
    assert {name: options.parquet[name] for name in wanted} == wanted


@pytest.mark.parametrize("codec", ["snappy", "uncompressed", "lz4"])
def test_a_level_is_not_given_to_a_codec_that_has_none(codec: str) -> None:
    """PyArrow would refuse it."""
    properties = {
        "write.parquet.compression-codec": codec,
        "write.parquet.compression-level": "9",
    }
    assert "compression_level" not in WriteOptions.of("t", properties).parquet


@pytest.mark.parametrize("file_format", ["orc", "avro"])
def test_other_file_formats_are_refused(file_format: str) -> None:
    """The error says which property to change."""
    with pytest.raises(UnsupportedTableError, match=r"write\.format\.default"):
        WriteOptions.of("t", {"write.format.default": file_format})
