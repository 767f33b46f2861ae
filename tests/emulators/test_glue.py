"""Tables of AWS Glue, as far as moto and what stands in front of it behave as Glue does.

moto checks no login and no permission, and keeps keys of STS good for ever.
"""

from __future__ import annotations

import sys
import threading
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from holdfast.storage.objects import ObjectStorage
from tests.emulators.cloud_lake import CloudLake
from tests.emulators.front import running
from tests.emulators.glue_server import GlueServer
from tests.emulators.servers import CACHE, Emulator, emulator
from tests.fakes.memory_submitter import MemorySubmitter

pytestmark = pytest.mark.emulator

REGION = "eu-west-1"
WRITERS = 4


class GlueLake(CloudLake):
    """A lake whose catalog is Glue."""

    glue: str = ""

    @property
    def properties(self) -> Mapping[str, str]:
        """What PyIceberg needs to open the catalog."""
        return {
            "type": "glue",
            "glue.endpoint": self.glue,
            "glue.region": REGION,
            "warehouse": f"{self.root}/warehouse",
        }


@pytest.fixture(scope="module")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    """Run moto for the module; boto3, which PyIceberg's Glue catalog needs, comes with it."""
    with emulator("moto", tmp_path_factory.mktemp("logs")) as found:
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        packages = str(CACHE / "moto" / "lib" / version / "site-packages")
        sys.path.append(packages)
        yield found
        sys.path.remove(packages)


@pytest.fixture
def glue(moto: Emulator) -> Iterator[GlueServer]:
    """Run what compares versions in front of moto."""
    with running(GlueServer(moto.uri)) as found:
        yield found


@pytest.fixture
def lake(
    request: pytest.FixtureRequest,
    moto: Emulator,
    glue: GlueServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> GlueLake:
    """Give a lake in a bucket of its own; the environment says where S3 is."""
    request.node.user_properties.append(("emulator", (moto.name, moto.version)))
    for name, value in {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": REGION,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_ENDPOINT_URL_S3": moto.uri,
        "AWS_ENDPOINT_URL": moto.uri,
    }.items():
        monkeypatch.setenv(name, value)
    bucket = f"lake-{uuid.uuid4().hex[:8]}"
    client("s3", moto).create_bucket(
        Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": REGION}
    )
    found = GlueLake(tmp_path, f"db_{bucket[5:]}.t", root=f"s3://{bucket}")
    monkeypatch.setattr(GlueLake, "glue", glue.uri)
    return found


def client(service: str, moto: Emulator) -> Any:  # noqa: ANN401 - boto3 has no types.
    """Return a client of AWS."""
    import boto3  # type: ignore[import-not-found, import-untyped, unused-ignore]  # noqa: PLC0415

    return boto3.client(service, endpoint_url=moto.uri, region_name=REGION)


def rows(first: int = 0) -> MemorySubmitter:
    """Return an input of two tasks."""
    return MemorySubmitter(range(first, first + 10), range(first + 10, first + 20))


def test_a_killed_run_is_resumed_and_lands_once(lake: GlueLake, glue: GlueServer) -> None:
    """The second driver keeps what the first one finished; the third finds the mark."""
    lake.start_and_die("r", rows())
    assert lake.ids() == []
    report = lake.start("r", rows(), takeover="now")
    assert (report.outcome, report.rows, report.kept_rows) == ("committed", 20, 10)
    assert lake.ids() == list(range(20))
    updates = glue.updates
    assert lake.start("r", rows()).outcome == "already_committed"
    assert glue.updates == updates > 0


def test_of_two_drivers_at_once_both_land_or_one_is_told(lake: GlueLake, glue: GlueServer) -> None:
    """Each commit names the version that it was made on; who comes too late, posts again."""
    lake.make_table()
    barrier = threading.Barrier(WRITERS)

    def wait() -> None:
        barrier.wait()

    def start(number: int) -> str:
        submitter = rows(number * 100)
        submitter.after_task[1] = wait
        return lake.start(f"run-{number}", submitter).outcome

    with ThreadPoolExecutor(WRITERS) as pool:
        assert list(pool.map(start, range(WRITERS))) == ["committed"] * WRITERS
    assert lake.ids() == [first * 100 + row for first in range(WRITERS) for row in range(20)]
    assert glue.refused > 0  # Or it shows nothing.


def test_a_sweep_deletes_what_is_not_needed_and_nothing_else(
    lake: GlueLake, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of an aborted run its staged files, of a landed one no file of the table."""
    lake.start("landed", rows())
    landed = lake.data_names()
    lake.start_and_die("dead", rows(100))
    assert lake.data_names() > landed
    assert lake.call("abort", "dead", "--yes", *lake.catalog_arguments) == 0
    for run_id in ("dead", "landed"):
        assert lake.call("sweep", run_id, "--yes", *lake.catalog_arguments) == 0
    capsys.readouterr()
    assert lake.data_names() == landed
    assert lake.ids() == list(range(20))


# What the function below hands out, as a module of a user's would.
_STS: list[Any] = []
_GIVEN: list[str] = []


def assumed_role() -> dict[str, object]:
    """Return keys of STS, which end in a few seconds."""
    keys = _STS[0].assume_role(
        RoleArn="arn:aws:iam::123456789012:role/writer", RoleSessionName="run"
    )["Credentials"]
    _GIVEN.append(keys["AccessKeyId"])
    return {
        "access_key_id": keys["AccessKeyId"],
        "secret_access_key": keys["SecretAccessKey"],
        "token": keys["SessionToken"],
        "expires_at": datetime.now(timezone.utc) + timedelta(seconds=2),
    }


def test_keys_of_sts_are_asked_for_again_before_they_end(lake: GlueLake, moto: Emulator) -> None:
    """A job that outlives its keys goes on with new ones."""
    _STS[:], _GIVEN[:] = [client("sts", moto)], []
    storage = ObjectStorage(
        {
            "holdfast.credentials": f"{__name__}:assumed_role",
            "s3.endpoint": moto.uri,
            "s3.region": REGION,
        }
    )
    done = threading.Event()
    for number in range(8):
        storage.create(f"{lake.root}/keys/{number}", b"x")
        done.wait(0.3)
    assert len(set(_GIVEN)) >= 2
    assert len(list(storage.walk(f"{lake.root}/keys"))) == 8
