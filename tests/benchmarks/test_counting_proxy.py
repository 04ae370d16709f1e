"""The counting proxy: nothing is changed, lost or counted twice on the way; and what TensorStore asks for a save is bounded."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from benchmarks.counting_proxy import CountingProxy, by_kind, by_method, counting_proxy, kind_of, listed
from ckptcore import ledger, names
from ckptcore.history import read_run
from ckptcore.names import GenerationId
from ckptcore.store import Store, open_store
from tests.ckptcore.support import checkpointer, state
from tests.servers import S3, s3_server

GENERATION = GenerationId(1, 10, 1)


@pytest.fixture(scope="module")
def server() -> Iterator[S3]:
    with s3_server() as running:
        yield running


@pytest.fixture
def proxy(server: S3) -> Iterator[CountingProxy]:
    with counting_proxy(server.endpoint) as running:
        yield running


def store(server: S3, proxy: CountingProxy, name: str, caller: str = "a") -> Store:
    return open_store(server.url(f"runs/{name}"), replace(server.storage, endpoint=proxy.endpoint(caller)))


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        (names.RUN, "run"),
        (names.claim_key(1), "claim"),
        (names.base_key(1), "base"),
        (names.ledger_key(GENERATION), "ledger"),
        (names.retired_key(GENERATION), "retired record"),
        (names.note_key(GENERATION, "pin-1"), "note"),
        (names.receipt_key(GENERATION, 3), "receipt"),
        (names.staged_key(GENERATION, 3), "staged receipt"),
        (names.values_key(GENERATION, 3), "values"),
        (names.layout_key(GENERATION, f"blake3:{'0' * 64}"), "layout"),
        (names.index_key(GENERATION, "params", f"blake3:{'0' * 64}"), "index"),
        (names.roster_key(GENERATION, f"blake3:{'0' * 64}"), "roster"),
        (names.database_prefix(GENERATION, 3, "0" * 16) + "manifest.ocdbt", "manifest"),
        (names.database_prefix(GENERATION, 3, "0" * 16) + "d/00ff", "data"),
        (names.state_prefix(GENERATION) + "manifest.ocdbt", "merged view"),
        (names.state_prefix(GENERATION) + "d/00ff", "merged view"),
        (names.state_prefix(GENERATION) + "_METADATA", "for Orbax"),
        ("probe/1/once", "probe"),
        ("elsewhere", "other"),
    ],
)
def test_every_key_of_a_run_has_a_kind(key: str, kind: str) -> None:
    assert kind_of(key) == kind


def test_a_listing_is_told_by_its_prefix() -> None:
    assert listed(names.LEDGER) == "list of ledger"
    assert listed(names.GENERATIONS) == "list of generations"
    assert listed(names.generation_prefix(GENERATION)) == "list of a generation"
    assert listed(names.receipts_prefix(GENERATION)) == "list of a generation's receipts"
    assert listed("") == "list of the run"


@pytest.mark.slow
def test_every_call_is_counted_once_and_passes_unchanged(server: S3, proxy: CountingProxy) -> None:
    one, two = store(server, proxy, "plain", "one"), store(server, proxy, "plain", "two")
    assert one.put_if_absent("ledger/a.json", b"x" * 1000) == b"x" * 1000
    assert two.put_if_absent("ledger/a.json", b"y") == b"x" * 1000
    assert one.get("ledger/a.json", 990, 995) == b"x" * 5
    assert one.size("ledger/a.json", guess=1000) == 1000
    assert two.get("ledger/b.json") is None
    assert list(two.list("ledger/")) == ["ledger/a.json"]
    one.delete("ledger/a.json")
    calls = proxy.taken()
    told = [(call.caller, call.method, call.status, call.sent, call.received) for call in calls]
    assert [each for each in told if each[0] == "one"] == [
        ("one", "GET", 404, 0, told[0][4]),
        ("one", "PUT", 200, 1000, 0),
        ("one", "GET", 206, 0, 5),
        ("one", "GET", 206, 0, 1),
        ("one", "DELETE", 204, 0, 0),
    ]
    assert [each[:3] for each in told if each[0] == "two"] == [("two", "GET", 200), ("two", "GET", 404), ("two", "LIST", 200)]
    assert by_method(calls) == {"GET": 5, "HEAD": 0, "PUT": 1, "LIST": 1, "DELETE": 1}
    assert by_kind(calls)["LIST list of ledger"] == 1
    assert not proxy.taken()
    assert not server.objects("runs/plain/")


@pytest.mark.slow
def test_every_call_is_held_back(server: S3, proxy: CountingProxy) -> None:
    slow = store(server, proxy, "slow")
    slow.get("a")
    proxy.latency = 0.2
    proxy.taken()
    began = time.monotonic()
    for _ in range(3):
        slow.get("a")
    assert time.monotonic() - began >= 0.6
    assert by_method(proxy.taken())["GET"] == 3


@pytest.mark.slow
def test_what_tensorstore_asks_for_a_save_is_bounded(server: S3, proxy: CountingProxy) -> None:
    with checkpointer(server.url("runs/save"), storage=replace(server.storage, endpoint=proxy.endpoint("0"))) as saver:
        saver.save(10, state(10)).result()
        proxy.taken()
        saver.save(20, state(20)).result()
        calls = proxy.taken()
    kinds = by_kind(calls)
    # A database is its data, then its manifest; the merged view, which holds no data, its tree, then its manifest.
    assert (kinds["PUT data"], kinds["PUT manifest"], kinds["PUT merged view"]) == (1, 1, 2)
    assert kinds["GET manifest"] <= 5
    assert kinds["GET merged view"] <= 7
    assert kinds["GET data"] <= 6
    assert sum(by_method(calls).values()) <= 45
    reader = open_store(server.url("runs/save"), server.storage)
    assert ledger.read(reader, read_run(reader).run_id, GenerationId(1, 20, 1)) is not None
