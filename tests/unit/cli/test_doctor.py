"""`holdfast doctor` on stores and tables: each fault is found, and the right fix is named."""

from __future__ import annotations

import pytest

from holdfast.cli.doctor import check_store
from holdfast.cli.doctor_machine import Finding
from holdfast.sinks.iceberg.loading import TableFacts
from tests.fakes.cli_lake import CliLake, lake
from tests.fakes.doctor_findings import found
from tests.fakes.http_servers import running
from tests.fakes.memory_storage import MemoryStorage
from tests.fakes.s3_server import AnsweringS3

__all__ = ["lake"]

STORE = "s3://store"


def of_store(storage: MemoryStorage) -> dict[str, Finding]:
    """Check a store in memory."""
    return {finding.check: finding for finding in check_store(STORE, storage)}


def test_a_sound_setup_passes(lake: CliLake, capsys: pytest.CaptureFixture[str]) -> None:
    """No check fails, so the exit code is 0; each check is one line of at most 80 columns."""
    lake.make_table()
    words = ("--table", "db.t", "--catalog", "name=lake", *lake.catalog_arguments)
    assert lake.call("doctor", *words) == 0
    printed = capsys.readouterr().out
    for check in ("python", "store answers", "store creates once", "clocks agree", "table loads"):
        assert f" {check} " in printed
    assert "nothing failed" in printed
    assert max(len(line) for line in printed.splitlines()) <= 80
    assert not list((lake.folder / "store").rglob("*probe*/*"))  # It has cleaned up.


def test_no_store(
    lake: CliLake, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither --store nor HOLDFAST_STORE names one."""
    monkeypatch.setattr(CliLake, "store", "")
    finding = found(lake, capsys)["store named"]
    assert finding["level"] == "failed"
    assert "HOLDFAST_STORE" in finding["fix"]


def test_a_store_that_denies_access(
    lake: CliLake, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keys are wrong: a real S3 client receives a 403 over the wire."""
    monkeypatch.setattr(CliLake, "store", STORE)
    with running(AnsweringS3()) as server:
        server.status = 403
        host, port = server.server_address[:2]
        pairs = (f"s3.endpoint=http://{host!s}:{port}", "s3.access-key-id=k", "s3.region=x",
                 "s3.secret-access-key=hush")  # fmt: skip
        words = [word for pair in pairs for word in ("--option", pair)]
        finding = found(lake, capsys, *words)["store answers"]
    assert finding["level"] == "failed"
    assert "credentials" in finding["fix"]
    assert "hush" not in str(finding)


@pytest.mark.parametrize(
    ("call", "check", "cure"),
    [
        ("folders", "store answers", "credentials"),
        ("put", "store writes", "permission for writes"),
        ("get", "store reads", "permission for reads"),
        ("delete", "store deletes", "permission for deletes"),
    ],
)
def test_a_store_that_refuses_one_kind_of_call(call: str, check: str, cure: str) -> None:
    """The missing permission is named."""
    storage = MemoryStorage()
    storage.failures[call] = 100
    finding = of_store(storage)[check]
    assert finding.level == "failed"
    assert cure in finding.fix


def test_a_store_that_overwrites() -> None:
    """Two drivers would both believe that they own a run."""
    storage = MemoryStorage()
    storage.overwrites_on_create = True
    finding = of_store(storage)["store creates once"]
    assert finding.level == "failed"
    assert "overwrites" in finding.seen
    assert "If-None-Match" in finding.fix


def test_a_clock_that_is_off() -> None:
    """It may be off by an hour, as with a wrong time zone."""
    finding = of_store(MemoryStorage(lambda: 0.0))["clocks agree"]
    assert finding.level == "warning"
    assert "NTP" in finding.fix


def test_a_store_inside_the_table(
    lake: CliLake, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Removing the table's orphan files would delete the ledger."""
    lake.make_table()
    monkeypatch.setattr(CliLake, "store", f"file://{lake.folder}/warehouse/db/t/_holdfast")
    words = ("--table", "db.t", "--catalog", "name=lake", *lake.catalog_arguments)
    finding = found(lake, capsys, *words)["store apart from table"]
    assert finding["level"] == "failed"
    assert "not inside one" in finding["fix"]


def test_a_table_that_is_not_there(lake: CliLake, capsys: pytest.CaptureFixture[str]) -> None:
    """The name has a typo."""
    lake.make_table()
    words = ("--table", "db.tt", "--catalog", "name=lake", *lake.catalog_arguments)
    finding = found(lake, capsys, *words)["table loads"]
    assert finding["level"] == "failed"
    assert "create it first" in finding["fix"]


def test_a_catalog_that_is_not_configured(
    lake: CliLake, capsys: pytest.CaptureFixture[str]
) -> None:
    """Outside Spark the settings must be given."""
    finding = found(lake, capsys, "--table", "lake.db.t")["catalog answers"]
    assert finding["level"] == "failed"
    assert "--catalog type=rest" in finding["fix"]


def test_a_catalog_that_does_not_answer(lake: CliLake, capsys: pytest.CaptureFixture[str]) -> None:
    """No server listens at that address."""
    words = ("--table", "db.t", "--catalog", "type=rest", "--catalog", "uri=http://127.0.0.1:9")
    finding = found(lake, capsys, *words)["catalog answers"]
    assert finding["level"] == "failed"
    assert "check that the catalog can be reached" in finding["fix"]


def test_a_catalog_of_an_unsafe_kind(lake: CliLake, capsys: pytest.CaptureFixture[str]) -> None:
    """Hive's client does not check the expected metadata location."""
    words = ("--table", "db.t", "--catalog", "type=hive", "--catalog", "uri=thrift://x:9083")
    finding = found(lake, capsys, *words)["catalog answers"]
    assert finding["level"] == "failed"
    assert "use a REST, SQL (JDBC) or Glue catalog" in finding["fix"]


def test_a_table_of_another_format(lake: CliLake, capsys: pytest.CaptureFixture[str]) -> None:
    """A format v1 table is refused."""
    lake.make_table(properties={"format-version": "1"})
    words = ("--table", "db.t", "--catalog", "name=lake", *lake.catalog_arguments)
    finding = found(lake, capsys, *words)["table loads"]
    assert finding["level"] == "failed"
    assert "upgrade a v1 table" in finding["fix"]


def test_a_table_whose_files_are_not_parquet(
    lake: CliLake, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table asks for ORC."""
    lake.make_table(properties={"write.format.default": "orc"})
    words = ("--table", "db.t", "--catalog", "name=lake", *lake.catalog_arguments)
    finding = found(lake, capsys, *words)["table can be written"]
    assert finding["level"] == "failed"
    assert "parquet" in finding["fix"].lower()


def test_a_table_with_write_audit_publish(
    lake: CliLake, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run would be published without an audit."""
    lake.make_table(properties={"write.wap.enabled": "true"})
    words = ("--table", "db.t", "--catalog", "name=lake", *lake.catalog_arguments)
    finding = found(lake, capsys, *words, code=0)["write-audit-publish"]
    assert finding["level"] == "warning"
    assert "branch" in finding["fix"]


def test_a_table_with_a_long_history(
    lake: CliLake, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each commit copies the whole history."""
    lake.make_table()
    facts = TableFacts(location="file:///t", format_version=2, snapshots=5000, is_audited=False)
    monkeypatch.setattr("holdfast.sinks.iceberg.loading.table_facts", lambda _view: facts)
    words = ("--table", "db.t", "--catalog", "name=lake", *lake.catalog_arguments)
    finding = found(lake, capsys, *words, code=0)["table history"]
    assert finding["level"] == "warning"
    assert "expire_snapshots" in finding["fix"]


@pytest.mark.lance
def test_a_lance_dataset(
    lake: CliLake, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is opened by its location; a store inside it, or a missing dataset, is found."""
    lake.make_dataset()
    place = f"{lake.folder}/t.lance"
    assert found(lake, capsys, "--table", place, code=0)["table can be written"]["level"] == "ok"
    assert found(lake, capsys, "--table", f"{place}s")["table loads"]["level"] == "failed"
    monkeypatch.setattr(CliLake, "store", f"file://{place}/_runs")
    finding = found(lake, capsys, "--table", place)["store apart from table"]
    assert finding["level"] == "failed"
