"""Does the store keep the promises the commit protocol rests on? (spec: store probe)

A probe refutes, it cannot prove: a network file system may behave on one host and not
between two. What its administrator must grant is part of the specification.
"""

from __future__ import annotations

import itertools
import secrets
import threading
from collections.abc import Callable
from contextlib import suppress

import tensorstore as ts

from ckptcore.clock import Clock
from ckptcore.errors import StoreError, StoreFull, StoreUnavailable, UnsafeStore
from ckptcore.events import log
from ckptcore.objectstore import answer
from ckptcore.records import StoreFacts
from ckptcore.retry import retry
from ckptcore.store import Store
from ckptcore.workers import Workers

RACERS = 6
WATCHERS = 2
THREADS = RACERS + WATCHERS
ROUNDS = 3
START_TIMEOUT = 30.0
"""Seconds by which the racers stand at the start; they are threads of this process."""
PAUSE = 0.005
"""Seconds between two looks of a watcher, so that the looking does not delay the race."""
TIMEOUT = 30.0
"""Seconds in which the store has to answer a question that is put to its driver."""

_CONTENT = b"0123456789"


def probe(store: Store, *, single_writer: bool) -> StoreFacts:
    """Try every rule below `probe/<nonce>/`, clean up, and return the facts for `base.json`.

    `single_writer` forgives only that one writer may replace what another wrote, and the facts say so. Keys that the store lets
    nobody delete are left behind, with a warning in the log.
    Raises `UnsafeStore` naming the broken rule, or the store's own error if it fails.
    """
    prefix = f"probe/{secrets.token_hex(16)}/"
    try:
        facts = _facts(store, prefix, single_writer=single_writer)
    except BaseException:
        with suppress(StoreError):  # the first error is the one to report
            store.delete_prefix(prefix)
        raise
    if _may_delete(lambda: store.delete_prefix(prefix), prefix):
        _require(store, not list(store.list(prefix)), "delete", "keys are still listed after they were deleted")
    return facts


def _facts(store: Store, prefix: str, *, single_writer: bool) -> StoreFacts:
    _check_reading(store, prefix)
    _check_put_once(store, f"{prefix}once")
    races = [f"race-{turn}" for turn in range(ROUNDS)]
    outcomes = [_one_winner(store, prefix + race) for race in races]
    _check_listing(store, prefix, {"once", "read", *races})
    _check_delete(store, f"{prefix}read")
    outcomes.append(_precondition_holds(store, prefix))
    _require(
        store,
        all(outcomes) or single_writer,
        "put-if-absent",
        "of several writers of one key more than one was told that it won, or readers differ, or a value was replaced. "
        "If only one job ever writes, Storage(single_writer=True) accepts that",
    )
    return StoreFacts(
        driver=store.driver,
        put_if_absent=all(outcomes),
        read_after_write=True,
        list_after_write=True,
        single_writer=single_writer,
    )


def _precondition_holds(store: Store, prefix: str) -> bool:
    """Whether an object store refuses a second write on the condition that the key is absent.

    A race comes down to that for a writer who looked before the other wrote. It may still look well where nobody is refused:
    if all writes are served before any of the writers reads, all of them read the same value.
    """
    if store.driver == "file":
        return True  # `link` has no condition that could be ignored
    return retry(lambda: _refuses_second(store, prefix), what=f"probe of {store.url}", timeout=TIMEOUT, clock=Clock())


def _refuses_second(store: Store, prefix: str) -> bool:
    directory = answer(ts.KvStore.open(store.kvstore(prefix), context=store.context), TIMEOUT)
    key = f"condition-{secrets.token_hex(8)}"
    absent = answer(directory.read(key), TIMEOUT).stamp.generation
    found = []
    for value in (b"first", b"second"):
        answer(directory.write(key, value, if_equal=absent), TIMEOUT)
        found.append(answer(directory.read(key), TIMEOUT).value)
    if not found[0]:
        raise StoreUnavailable(f"{prefix}{key} is not there after it was written")
    return found[0] == found[1]


def _one_winner(store: Store, key: str) -> bool:
    """Whether racing writers and all readers agree on one of the values that were put.

    Some only watch. A store that serves the racers in turn may serve all writes before any of them reads what it has written:
    then they agree, and only who looks all the time sees one value replace another.
    """
    values = [f"{racer}-{secrets.token_hex(8)}".encode() for racer in range(RACERS)]
    start, over = threading.Barrier(THREADS, timeout=START_TIMEOUT), threading.Event()

    def race(value: bytes) -> set[bytes | None]:
        start.wait()
        return {store.put_if_absent(key, value), store.get(key)}

    def watch() -> set[bytes | None]:
        start.wait()
        seen = []
        while not over.wait(PAUSE):
            seen.append(store.get(key))
        return set(itertools.dropwhile(lambda value: value is None, seen))  # what is there once stays there

    with Workers(THREADS, "probe") as pool:
        if pool.size < THREADS:
            raise StoreUnavailable(f"{store.url} was not probed: this process may not start {THREADS} threads; raise its limit")
        try:
            watching = [pool.submit(watch) for _ in range(WATCHERS)]
            outcomes = list(pool.map(race, values))
        except threading.BrokenBarrierError as error:
            raise StoreUnavailable(
                f"{store.url} was not probed: {THREADS} threads did not start within {START_TIMEOUT:g} s"
            ) from error
        finally:
            over.set()
        outcomes += [seen.result() for seen in watching]
    winner = store.get(key)
    return winner in values and set().union(*outcomes) == {winner}


def _check_put_once(store: Store, key: str) -> None:
    """A second value of another length never replaces or lengthens the first."""
    first, second = _CONTENT, _CONTENT * 3
    _require(store, store.put_if_absent(key, first) == first, "put-if-absent", "a lone writer was not told that it won")
    _require(store, store.put_if_absent(key, second) == first, "put-if-absent", "a second value was accepted under one key")
    _require(store, store.get(key) == first, "put-if-absent", "a second value replaced the first")


def _check_reading(store: Store, prefix: str) -> None:
    key = f"{prefix}read"
    _require(store, store.get(key) is None and store.size(key) is None, "read", "a key that was never written exists")
    store.put_if_absent(key, _CONTENT)
    _require(store, store.get(key) == _CONTENT, "read-after-write", "a value that was just written is not what is read")
    _require(store, store.size(key) == len(_CONTENT), "read-after-write", "the size of a value that was just written is wrong")
    ranges = [(0, 1), (3, 7), (9, 10), (10, 11), (4, None), (8, 20)]
    right = all(store.get(key, start, stop) == _CONTENT[start:stop] for start, stop in ranges)
    _require(store, right, "ranged read", "a range of a value is not the bytes asked for")


def _check_listing(store: Store, prefix: str, names: set[str]) -> None:
    listed = set(store.list(prefix))
    missing = sorted(names - {key.removeprefix(prefix) for key in listed})
    _require(store, not missing, "list-after-write", f"keys that were just written are not listed: {', '.join(missing)}")
    _require(store, names == set(store.children(prefix)), "list-after-write", "listing a directory gives other names")


def _check_delete(store: Store, key: str) -> None:
    if _may_delete(lambda: store.delete(key), key):
        gone = store.get(key) is None and key not in store.list(key)
        _require(store, gone, "delete", "a key is still there after it was deleted")


def _may_delete(delete: Callable[[], object], what: str) -> bool:
    """Delete; False when that is not permitted: a job can save without, and only retention needs it (spec: S-27)."""
    try:
        delete()
    except (StoreUnavailable, StoreFull, UnsafeStore):
        raise
    except StoreError as error:
        log.warning("the store lets nobody delete, so that %s stays and retention is impossible: %s", what, error)
        return False
    return True


def _require(store: Store, holds: object, rule: str, broken: str) -> None:
    if not holds:
        raise UnsafeStore(
            f"{store.url} breaks the rule {rule!r}: {broken}. Checkpoints there could be lost or overwritten: "
            "use another store, or have its administrator grant what the specification asks for"
        )
