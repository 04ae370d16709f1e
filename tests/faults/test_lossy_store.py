"""An S3 server behind a proxy that loses answers, refuses, delays and falsifies (spec: S-4, S-5, S-6, S-7, S-16, S-18).

The first tests look at single operations of the store, the last ones at whole jobs. The server itself is right, and it is asked
directly what it holds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import pytest
import tensorstore as ts

from ckptcore.errors import StoreUnavailable, UnsafeStore
from ckptcore.probe import probe
from ckptcore.store import Storage, Store, open_store
from tests.faults.proxy import Fault, Proxy, Request, Script, proxy
from tests.servers import S3

pytestmark = pytest.mark.slow

RETRIES = {"initial_delay": "5ms", "max_delay": "20ms", "max_retries": 2}
"""Of the driver: by default it tries for minutes."""


@pytest.fixture
def lossy(s3: S3) -> Iterator[Proxy]:
    with proxy(s3.endpoint) as running:
        yield running


def storage_of(s3: S3, lossy: Proxy, timeout: float = 20.0) -> Storage:
    context = ts.Context({"s3_request_retries": RETRIES})
    return dataclasses.replace(s3.storage, endpoint=lossy.endpoint, context=context, timeout=timeout)


@pytest.fixture
def store(s3: S3, lossy: Proxy, request: pytest.FixtureRequest) -> Store:
    return open_store(s3.url(prefix_of(request)), storage_of(s3, lossy))


def prefix_of(request: pytest.FixtureRequest) -> str:
    """A run of its own for each test."""
    return "".join(letter if letter.isalnum() else "-" for letter in request.node.name)


def first(fault: Fault, method: str, times: int = 1) -> Script:
    """The first request, or requests, of a method meet the fault."""
    left = [times]

    def script(request: Request) -> Fault:
        if request.method != method or left[0] == 0:
            return "pass"
        left[0] -= 1
        return fault

    return script


@pytest.mark.parametrize("fault", ["lost answer", "refused", 409, 412, 500, 503, "then 409", "then 412"])
def test_a_put_whose_answer_is_not_what_happened(store: Store, lossy: Proxy, fault: Fault) -> None:
    """Whatever came back, what is stored decides: the value is ours, so the put has won (S-4, S-16)."""
    lossy.script = first(fault, "PUT")
    assert store.put_if_absent("ledger/a", b"ours") == b"ours"
    assert [found for _, found in lossy.faults] == [fault]
    assert store.put_if_absent("ledger/a", b"theirs") == b"ours"


def test_a_driver_that_meets_its_own_object_has_won(store: Store, lossy: Proxy) -> None:
    """The put was applied, its answer was lost, the driver repeated it and was refused (S-4)."""
    lossy.script = first("lost answer", "PUT")
    assert store.put_if_absent("ledger/a", b"ours") == b"ours"
    assert lossy.puts("ledger/a") == [(200, b"ours"), (412, b"ours")]


def test_a_put_that_never_gets_through_is_unknown(store: Store, s3: S3, lossy: Proxy, request: pytest.FixtureRequest) -> None:
    """No answer is no refusal (S-5); when answers come again, the same put settles it."""

    def silent_from_the_first_put_on(asked: Request) -> Fault:
        return "lost answer" if asked.method == "PUT" else "refused" if lossy.puts("ledger/a") else "pass"

    lossy.script = silent_from_the_first_put_on
    with pytest.raises(StoreUnavailable, match="outcome is unknown"):
        store.put_if_absent("ledger/a", b"ours")
    assert s3.objects(f"{prefix_of(request)}/") == {"ledger/a": b"ours"}
    lossy.script = None
    assert store.put_if_absent("ledger/a", b"ours") == b"ours"


def test_a_put_that_lands_late_changes_nothing(s3: S3, lossy: Proxy, request: pytest.FixtureRequest) -> None:
    """It comes after its caller has given up, and after another put of the key (S-5, S-9)."""
    prefix = prefix_of(request)
    hasty = open_store(s3.url(prefix), storage_of(s3, lossy, timeout=0.3))
    lossy.lateness = 60.0  # until all is settled
    lossy.script = first("late", "PUT", times=100)
    with pytest.raises(StoreUnavailable):
        hasty.put_if_absent("ledger/a", b"late")
    lossy.script = None
    patient = open_store(s3.url(prefix), storage_of(s3, lossy))
    assert patient.put_if_absent("ledger/a", b"early") == b"early"
    lossy.settle()
    assert {status for status, body in lossy.puts("ledger/a") if body == b"late"} == {412}
    assert s3.objects(f"{prefix}/") == {"ledger/a": b"early"}


@pytest.mark.parametrize("fault", ["truncated", "lost answer", "refused", 500, 503])
def test_a_read_gives_the_bytes_or_an_error(store: Store, lossy: Proxy, fault: Fault) -> None:
    """A short or lost answer is neither the value nor its absence (S-6)."""
    value = bytes(range(256)) * 8
    store.put_if_absent("values/a", value)
    calls: list[Callable[[], object]] = [lambda: store.get("values/a"), lambda: store.get("values/a", 8, 1000)]
    for call, expected in zip(calls, [value, value[8:1000]], strict=True):
        lossy.script = first(fault, "GET")
        assert call() == expected
        lossy.script = first(fault, "GET", times=10**6)
        with pytest.raises(StoreUnavailable):
            call()
    assert len(lossy.faults) > 4


def test_a_store_whose_listings_lag_is_refused(store: Store, lossy: Proxy) -> None:
    """A key whose put has returned has to be listed (S-7, S-18)."""
    lossy.script = lambda request: "no list" if request.lists else "pass"
    with pytest.raises(UnsafeStore, match="list-after-write"):
        probe(store, single_writer=True)
    lossy.script = None
    assert probe(store, single_writer=False).list_after_write


def test_a_listing_that_is_cut_off_is_not_taken_for_the_whole(store: Store, lossy: Proxy) -> None:
    """Half of a page is an error, not a shorter list (S-7)."""
    for number in range(20):
        store.put_if_absent(f"n/{number:02}", b"")
    lossy.script = lambda request: "truncated" if request.lists else "pass"
    with pytest.raises(StoreUnavailable):
        list(store.list())
    lossy.script = first("truncated", "GET")
    assert len(list(store.list())) == 20
