"""Stored values: whatever a ledger contains, a bad value is one of our errors, never a crash."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import cycle, islice
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.cli.report import look
from holdfast.engine.advice import next_step, words_of_log
from holdfast.engine.cleanup import abort, sweep
from holdfast.engine.watch import Watcher, status
from holdfast.errors import HoldfastError, LedgerDamagedError, SettingsError
from holdfast.ledger.run_log import read_run_file
from holdfast.ledger.task_log import TaskLog
from holdfast.model.coverage import NOTHING
from holdfast.model.records import Abort, decode_record, encode_record, open_json, seal_json
from holdfast.model.stored import CostError, RecordDamagedError, cost_of, parse_json
from holdfast.model.usage import NO_USAGE
from holdfast.model.work import TaskRecord
from holdfast.pages.page import page_of
from tests.fakes.logs import WRITTEN_AT
from tests.fakes.memory_storage import DriverDiedError
from tests.fakes.memory_submitter import MemorySubmitter
from tests.fakes.rig import LAYOUT, Rig
from tests.unit.model.test_records import INTENT, record

DEEP: Any = []
for _ in range(70):
    DEEP = [DEEP]
HOSTILE: list[Any] = [
    *(None, True, -1, 10**30, 2**63, 2**63 - 1, 1e308, -1e18, 0.5, math.nan, math.inf),
    *("", "x", "\u202e", "../../x", "2026-13-99", "0001-01-01T00:00:00+14:00", "1\n", "\ud800"),
    *([], [None], {}, {"x": None}, DEEP),
]
Path = tuple[str | int, ...]
Json: TypeAlias = Any


def _dead() -> None:
    raise DriverDiedError


def half_done() -> Rig:
    """Return a run whose first driver died after its first task."""
    rig = Rig()
    rows = MemorySubmitter(range(10), range(10, 20))
    rows.after_task[0] = _dead
    rig.start_and_die(rows, checkpoint_every=1e-9, batch_rows=5)
    return rig


def given_up() -> Rig:
    """Return a run that was aborted when it was half done."""
    rig = half_done()
    abort(rig.ledger(), lambda _identity: rig.table, "no longer wanted")
    return rig


def landed() -> Rig:
    """Return a run that has landed."""
    rig = Rig()
    rig.start(MemorySubmitter(range(10), range(10, 20)))
    return rig


def paths_in(value: Json, before: Path = ()) -> Iterator[Path]:
    """Yield the path of every value inside a JSON value, at every depth."""
    names = value if isinstance(value, dict) else range(len(value[:2]))
    for name in names:
        yield (*before, name)
        if isinstance(value[name], dict | list):
            yield from paths_in(value[name], (*before, name))


def put(content: Json, path: Path, value: Json) -> None:
    """Put a value at a path in a JSON value."""
    for name in path[:-1]:
        content = content[name]
    content[path[-1]] = value


def forged(rig: Rig, uri: str, change: Callable[[Any], None]) -> None:
    """Change a JSON object of a ledger, or a part's first record, and seal it as a forger would.

    References to a part are updated too, so that its digest does not keep the forgery out.
    """
    data = rig.storage.objects[uri]
    if not uri.startswith(LAYOUT.parts):
        content = open_json(data)
        change(content)
        rig.storage.objects[uri] = seal_json(content)
        return
    texts = pq.read_table(pa.BufferReader(data))["record"].to_pylist()
    records = [json.loads(text) for text in texts]
    change(records[0])
    replace_part(rig, uri, pa.table({"record": [json.dumps(record) for record in records]}))


def replace_part(rig: Rig, uri: str, table: pa.Table) -> None:
    """Replace a part by another table, and update its digest wherever the part is named."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    old = hashlib.sha256(rig.storage.objects[uri]).hexdigest()
    rig.storage.objects[uri] = sink.getvalue().to_pybytes()
    new = hashlib.sha256(rig.storage.objects[uri]).hexdigest()
    for name, data in rig.storage.objects.items():
        if name.startswith(LAYOUT.log):
            text = json.dumps(open_json(data)).replace(old, new)
            rig.storage.objects[name] = seal_json(json.loads(text))


def look_at(rig: Rig) -> None:
    """Do everything that a user does to look at a run."""
    ledger = rig.ledger()
    status(ledger)
    facts = look(ledger, rig.time.now())
    json.dumps(facts.to_json())
    page_of(facts)
    words_of_log(ledger.log.records)
    next_step(Watcher(ledger=ledger).look(), ledger.ports)


def start_again(rig: Rig) -> None:
    """Start the run once more; changed code is only a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rig.start(MemorySubmitter(range(10), range(10, 20)), takeover="now")


def sweep_up(rig: Rig) -> None:
    """Delete what the run no longer needs."""
    sweep(rig.ledger(), lambda _identity: rig.table)


def stored_objects(rig: Rig) -> list[str]:
    """Return the objects of a ledger that hold JSON."""
    return [uri for uri in rig.storage.objects if uri.endswith(".json") or "/parts/" in uri]


def places(rig: Rig, uri: str) -> list[Path]:
    """Return the path of every value in an object."""
    found: list[Path] = []
    forged(copy.deepcopy(rig), uri, lambda content: found.extend(paths_in(content)))
    assert found
    return found


def decoded(rig: Rig, uri: str) -> None:
    """Decode an object of a ledger by its type."""
    data = rig.storage.objects[uri]
    if uri == LAYOUT.identity:
        read_run_file(rig.storage, LAYOUT)
    elif uri.startswith(LAYOUT.log):
        decode_record(data)
    else:
        TaskRecord.from_json(open_json(data))


@pytest.mark.parametrize("made", [half_done, given_up, landed])
def test_every_hostile_value_at_every_place_is_read_or_refused(made: Callable[[], Rig]) -> None:
    """Decoding an object gives the declared types, or an error that it is damaged."""
    rig = made()
    for uri in stored_objects(rig):
        if uri.startswith(LAYOUT.parts):
            continue
        before = rig.storage.objects[uri]
        for path in places(rig, uri):
            for value in HOSTILE:
                forged(rig, uri, partial(put, path=path, value=value))
                with contextlib.suppress(RecordDamagedError, LedgerDamagedError):
                    decoded(rig, uri)
                rig.storage.objects[uri] = before


TASK = TaskRecord(name="1/rows/0/0/0", coverage=NOTHING, seconds=1.0).to_json()
GROUP: dict[str, Any] = {"path": "p", "size_bytes": 1, "files": [["p", 1, 1]], "detail": {}}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rows", -1),
        ("rows", 2**63),
        ("rows", True),
        ("low", -1),
        ("seconds", -1.0),
        ("seconds", 1e13),
        ("cost", 1e31),
        ("span", [1]),
        ("ranges", [[-1, 2]]),
        ("chunk", [1, -1, "d"]),
        ("chunk", [1, 1]),
        ("end", "later"),
        ("name", "../../x/0/0/0"),
        ("name", "1/rows/0/0/0\n"),
        ("name", "1/rows/0/0/../0"),
        ("supersedes", ["../x"]),
        ("usage", {"at": 1e308}),
        ("usage", {"bytes_read": -1}),
        ("groups", [{**GROUP, "size_bytes": -1}]),
        ("groups", [{**GROUP, "files": [["p", 1]]}]),
        ("groups", [{**GROUP, "detail": {"x": DEEP}}]),
        ("groups", [{**GROUP, "detail": {"x": 2**64}}]),
    ],
)
def test_a_task_record_out_of_bounds_is_refused(name: str, value: object) -> None:
    """Counts are not negative, times can be shown, and names stay in their folder."""
    assert TaskRecord.from_json({**TASK, "groups": [GROUP]}).groups
    with pytest.raises(RecordDamagedError):
        TaskRecord.from_json({**TASK, name: value})


def test_sums_of_very_many_rows_are_read() -> None:
    """Sums of hashes may exceed 64 bits: the more rows, the larger they are."""
    found = TaskRecord.from_json({**TASK, "low": 2**90, "high": 2**64})
    assert (found.coverage.low, found.coverage.high) == (2**90, 2**64)
    assert found.usage == NO_USAGE


@pytest.mark.parametrize(
    "written_at", ["", "now", "2026-13-99", "2026-11-14T00:00:00", "0001-01-01T00:00:00+14:00"]
)
def test_a_record_without_a_moment_is_refused(written_at: str) -> None:
    """Code that shows a run can rely on its times."""
    content = open_json(encode_record(record(INTENT)))
    assert content["written_at"] == WRITTEN_AT
    with pytest.raises(RecordDamagedError):
        decode_record(seal_json({**content, "written_at": written_at}))


@pytest.mark.parametrize(
    ("part", "value"),
    [("name", "../../x"), ("name", ""), ("name", "a/b"), ("records", -1), ("later", 1)],
)
def test_a_part_that_may_be_elsewhere_is_refused(part: str, value: object) -> None:
    """A reference names an object in the folder of parts, and holds nothing unknown."""
    content = open_json(encode_record(record(INTENT)))
    content["body"]["staged"][part] = value
    with pytest.raises(RecordDamagedError, match=r"unknown content|later"):
        decode_record(seal_json(content))


def test_a_plan_with_a_schema_of_any_depth_is_refused() -> None:
    """A schema is the sink's own JSON, but it must still be possible to walk through it."""
    rig = half_done()
    uri = LAYOUT.record(2)
    forged(rig, uri, lambda content: content["body"]["schema"].update(x=DEEP))
    with pytest.raises(RecordDamagedError, match="deep"):
        decode_record(rig.storage.objects[uri])


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 200_000,
        b'{"a":' * 100_000,
        b'{"digest": "x", "format": 1, "a": ' + b"[" * 900 + b"]" * 900 + b"}",
        b'{"digest": "x", "format": 1, "n": ' + b"9" * 5000 + b"}",
        b'{"digest": NaN, "format": NaN}',
        b'{"digest": [], "format": 1}',
        b'{"digest": "\\ud800", "format": 1}',
        b'{"digest": "x", "format": true}',
        b"\xef\xbb\xbf{}",
    ],
    ids=lambda data: data[:24],
)
def test_json_that_is_too_deep_or_malformed_is_damage(data: bytes) -> None:
    """Raw bytes of any form are refused before they are interpreted."""
    with pytest.raises(RecordDamagedError):
        open_json(data)


def test_json_of_any_size_is_refused_before_it_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parsing takes several times the size."""
    monkeypatch.setattr("holdfast.model.stored.JSON_BYTES_MAX", 10)
    assert parse_json(b'"12345678"') == "12345678"
    with pytest.raises(RecordDamagedError, match="11 bytes"):
        parse_json(b'"123456789"')


@pytest.mark.parametrize("run_id", [None, "", "other", " r"])
def test_a_run_file_that_names_no_run_is_damaged(run_id: str | None) -> None:
    """The ledger is at fault, not the reader's settings."""
    rig = half_done()
    forged(rig, LAYOUT.identity, lambda content: content.update(run_id=run_id))
    with pytest.raises(LedgerDamagedError):
        read_run_file(rig.storage, LAYOUT)


def test_a_run_file_without_a_nonce_is_damaged() -> None:
    """Without one, records of any run would be taken for its own."""
    rig = half_done()
    forged(rig, LAYOUT.identity, lambda content: content.update(nonce=""))
    with pytest.raises(LedgerDamagedError):
        read_run_file(rig.storage, LAYOUT)


def test_what_cannot_be_read_is_not_written_to_the_run_log() -> None:
    """A text that cannot be encoded would leave a run that no start can read."""
    with pytest.raises(SettingsError, match="cannot be recorded"):
        encode_record(record(Abort(reason="\ud800")))


@pytest.mark.parametrize("cost", [math.nan, math.inf, 1e31])
def test_what_cannot_be_read_is_not_written_to_a_task_log(cost: float) -> None:
    """Nothing is created: the attempt fails, and its earlier records count."""
    rig = Rig()
    log = TaskLog(rig.storage, LAYOUT, "1/rows/0/0")
    first = TaskRecord(name=log.next_name, coverage=NOTHING, seconds=0.0)
    with pytest.raises(SettingsError, match="cannot be recorded"):
        log.append(replace(first, cost=cost))
    assert not rig.storage.objects
    log.append(first)
    assert len(rig.storage.objects) == 1


@pytest.mark.parametrize("cost", [math.nan, math.inf, -math.inf, 1e16, -0.01, "x", None])
def test_a_cost_is_a_finite_number_that_is_not_negative(cost: object) -> None:
    """A user's function that returns something else has failed, and the error says so."""
    assert cost_of(lambda _: "0.5", None) == cost_of(lambda _: 0.5, None) == 0.5
    with pytest.raises(CostError, match=r"^cost= "):
        cost_of(lambda _: cost, None)


@pytest.mark.parametrize(
    "table",
    [
        pa.table({"record": [1]}),
        pa.table({"later": ["x"]}),
        pa.table({"record": pa.array([None], pa.string())}),
        pa.table({"record": ["{}"]}),
        pa.table({"record": pa.array([], pa.string())}),
    ],
)
def test_a_part_of_other_columns_is_damage(table: pa.Table) -> None:
    """A part with the right digest may still hold no records."""
    rig = landed()
    (uri,) = [uri for uri in rig.storage.objects if uri.startswith(LAYOUT.parts)]
    replace_part(rig, uri, table)
    with pytest.raises(LedgerDamagedError, match="parts/"):
        look_at(rig)


@pytest.mark.slow_unit
@pytest.mark.parametrize("do", [look_at, start_again, sweep_up])
@pytest.mark.parametrize("made", [half_done, given_up, landed])
def test_no_value_at_any_place_causes_more_than_one_of_our_errors(
    made: Callable[[], Rig], do: Callable[[Rig], None]
) -> None:
    """A wrong type or an absurd number anywhere in a ledger never causes a traceback.

    Method: each path of each JSON object gets some of the hostile values, with a valid seal.
    """
    first = made()
    refused, values = 0, cycle(HOSTILE)
    for uri in stored_objects(first):
        for path in places(first, uri):
            for value in islice(values, 2):
                rig = copy.deepcopy(first)
                forged(rig, uri, partial(put, path=path, value=value))
                try:
                    do(rig)
                except HoldfastError:
                    refused += 1
                except Exception as error:
                    raise AssertionError(f"{value!r} at {path} of {uri}") from error
    assert refused  # The forged values were read.
