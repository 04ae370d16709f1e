"""The probe accepts stores that keep the rules, and names the one that is broken."""

# The stores that break a rule look at few of their arguments.
# ruff: noqa: ARG002

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorstore as ts

from ckptcore.errors import StoreError, StoreUnavailable, UnsafeStore
from ckptcore.limits import limits
from ckptcore.probe import RACERS, probe
from ckptcore.records import StoreFacts
from ckptcore.store import Storage, Store, open_store


@pytest.mark.parametrize("driver", ["file", "memory"])
def test_good_stores_pass_and_are_left_clean(driver: str, tmp_path: Path) -> None:
    store = open_store(tmp_path if driver == "file" else "memory://a")
    facts = probe(store, single_writer=False)
    assert facts == StoreFacts(driver=driver, put_if_absent=True, read_after_write=True, list_after_write=True)
    assert list(store.list()) == []


class Dictionary:
    """A store that keeps every rule; each subclass breaks one."""

    url = "fake://store"
    driver = "memory"
    context = ts.Context()
    limits = limits()

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def put_if_absent(self, key: str, data: bytes) -> bytes:
        return self.values.setdefault(key, data)

    def get(self, key: str, start: int | None = None, stop: int | None = None) -> bytes | None:
        value = self.values.get(key)
        return None if value is None else value[start:stop]

    def size(self, key: str, guess: int | None = None) -> int | None:
        value = self.values.get(key)
        return None if value is None else len(value)

    def list(self, prefix: str = "") -> Iterator[str]:
        return iter(sorted(key for key in self.values if key.startswith(prefix)))

    def children(self, prefix: str) -> list[str]:
        return sorted({key.removeprefix(prefix).split("/")[0] for key in self.list(prefix)})

    def delete(self, key: str) -> None:
        self.values.pop(key, None)

    def delete_prefix(self, prefix: str) -> int:
        keys = tuple(self.list(prefix))
        for key in keys:
            self.delete(key)
        return len(keys)

    def sync(self, prefix: str) -> None:
        """Nothing is buffered."""

    def kvstore(self, prefix: str) -> dict[str, Any]:
        return {"driver": "memory", "path": prefix}


class IgnoresPreconditions(Dictionary):
    """As a popular emulator of GCS: every write succeeds, the last one stays."""

    def put_if_absent(self, key: str, data: bytes) -> bytes:
        self.values[key] = data
        return data


class TellsEverybodyInARace(Dictionary):
    """Keeps the first value, as long as nobody races; then all are told that they won."""

    def put_if_absent(self, key: str, data: bytes) -> bytes:
        stored = super().put_if_absent(key, data)
        return data if "race" in key else stored


class ServesAllWritesFirst(Dictionary):
    """Racers replace each other's values, but none of them is answered before the last one has written: all read the same."""

    def __init__(self) -> None:
        super().__init__()
        self.turn, self.looked = threading.Lock(), threading.Event()
        self.written = threading.Barrier(RACERS, timeout=30)

    def put_if_absent(self, key: str, data: bytes) -> bytes:
        if "race" not in key:
            return super().put_if_absent(key, data)
        with self.turn:
            self.values[key] = data
            self.looked.clear()
            self.looked.wait(2)  # for somebody who watches
        self.written.wait()
        return self.values[key]

    def get(self, key: str, start: int | None = None, stop: int | None = None) -> bytes | None:
        found = super().get(key, start, stop)
        if found is not None:
            self.looked.set()
        return found


class TakesBack(Dictionary):
    """What was there when somebody looked is gone for whoever looks next, once."""

    def __init__(self) -> None:
        super().__init__()
        self.looked = threading.Event()
        self.watchers: set[int] = set()

    def put_if_absent(self, key: str, data: bytes) -> bytes:
        stored = super().put_if_absent(key, data)
        if "race" in key:
            self.looked.wait(10)
        return stored

    def get(self, key: str, start: int | None = None, stop: int | None = None) -> bytes | None:
        found = super().get(key, start, stop)
        if found is None or "race" not in key or self.looked.is_set():
            return found
        if threading.get_ident() in self.watchers:
            self.looked.set()
            return None
        self.watchers.add(threading.get_ident())
        return found


class TellsNobody(Dictionary):
    def put_if_absent(self, key: str, data: bytes) -> bytes:
        super().put_if_absent(key, data)
        return b"lost"


class KeepsATail(Dictionary):
    """Writes over a longer value without truncating it."""

    def put_if_absent(self, key: str, data: bytes) -> bytes:
        before = self.values.get(key, b"")
        self.values[key] = data + before[len(data) :]
        return before or data


class StaleRead(Dictionary):
    def get(self, key: str, start: int | None = None, stop: int | None = None) -> bytes | None:
        return None


class StaleSize(Dictionary):
    def size(self, key: str, guess: int | None = None) -> int | None:
        return None


class StaleList(Dictionary):
    def list(self, prefix: str = "") -> Iterator[str]:
        return iter(())


class IgnoresRanges(Dictionary):
    def get(self, key: str, start: int | None = None, stop: int | None = None) -> bytes | None:
        return super().get(key)


class KeepsDeleted(Dictionary):
    def delete(self, key: str) -> None:
        """Versioned buckets with a legal hold do this."""


class KeepsDeletedPrefixes(Dictionary):
    def delete_prefix(self, prefix: str) -> int:
        return 0


def test_the_fake_that_keeps_every_rule_passes() -> None:
    store: Store = Dictionary()
    assert probe(store, single_writer=False).put_if_absent


@pytest.mark.parametrize(
    ("fake", "rule"),
    [
        (IgnoresPreconditions, "'put-if-absent': a second value was accepted"),
        (TellsEverybodyInARace, "'put-if-absent': of several writers"),
        (ServesAllWritesFirst, "'put-if-absent': of several writers"),
        (TakesBack, "'put-if-absent': of several writers"),
        (TellsNobody, "'put-if-absent': a lone writer"),
        (KeepsATail, "'put-if-absent': a second value replaced"),
        (StaleRead, "'read-after-write'"),
        (StaleSize, "'read-after-write': the size"),
        (StaleList, "'list-after-write'"),
        (IgnoresRanges, "'ranged read'"),
        (KeepsDeleted, "'delete'"),
        (KeepsDeletedPrefixes, "'delete': keys are still listed"),
    ],
)
def test_broken_rules_are_named(fake: type[Dictionary], rule: str) -> None:
    with pytest.raises(UnsafeStore, match=rule) as raised:
        probe(fake(), single_writer=False)
    assert "fake://store" in str(raised.value)
    assert "use another store" in str(raised.value)


@pytest.mark.parametrize("fake", [IgnoresPreconditions, StaleRead, StaleList, IgnoresRanges, KeepsDeleted])
def test_single_writer_forgives_nothing_but_the_race(fake: type[Dictionary]) -> None:
    with pytest.raises(UnsafeStore):
        probe(fake(), single_writer=True)


def test_single_writer_forgives_the_race_and_says_so() -> None:
    facts = probe(TellsEverybodyInARace(), single_writer=True)
    assert (facts.put_if_absent, facts.single_writer) == (False, True)


def test_a_broken_store_is_left_clean() -> None:
    store = TellsEverybodyInARace()
    with pytest.raises(UnsafeStore):
        probe(store, single_writer=False)
    assert store.values == {}


def test_no_answer_is_not_a_broken_rule() -> None:
    class Silent(Dictionary):
        def put_if_absent(self, key: str, data: bytes) -> bytes:
            raise StoreUnavailable("503")

    with pytest.raises(StoreUnavailable, match="503"):
        probe(Silent(), single_writer=False)


@pytest.mark.parametrize("driver", ["file", "memory"])
def test_a_job_that_may_not_delete_can_save_and_is_told(driver: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def refuse(*_: object) -> None:
        raise StoreError("injected: storage.objects.delete is not granted")

    store: Any = open_store(tmp_path if driver == "file" else "memory://a")
    store.delete = store.delete_prefix = refuse
    assert probe(store, single_writer=False).put_if_absent
    assert "retention is impossible" in caplog.text
    assert "storage.objects.delete is not granted" in caplog.text


@pytest.mark.parametrize("error", [StoreUnavailable("503"), UnsafeStore("a link")])
def test_other_trouble_with_deleting_stops_the_start(error: Exception) -> None:
    class Broken(Dictionary):
        def delete(self, key: str) -> None:
            raise error

    with pytest.raises(type(error)):
        probe(Broken(), single_writer=False)


def test_a_process_without_threads_is_told_and_does_not_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    start, started = threading.Thread.start, []

    def limited(thread: threading.Thread) -> None:
        if len(started) == 3:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    store = Dictionary()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", limited)
        with pytest.raises(StoreUnavailable, match="may not start 8 threads"):
            probe(store, single_writer=False)
    assert store.values == {}


def test_racers_that_do_not_start_together_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ckptcore.probe.START_TIMEOUT", 0.01)
    monkeypatch.setattr("ckptcore.probe.Workers.map", lambda pool, call, items: [pool.submit(call, items[0]).result()])
    with pytest.raises(StoreUnavailable, match="did not start within"):
        probe(Dictionary(), single_writer=False)


def test_file_system_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(*_arguments: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(UnsafeStore, match="no hard links"):
        probe(open_store(tmp_path / "many"), single_writer=False)
    assert probe(open_store(tmp_path / "one", Storage(single_writer=True)), single_writer=True).single_writer
