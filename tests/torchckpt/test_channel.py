"""Messages between ranks: real jobs, and ranks as threads over a store of one process."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from torch.distributed import HashStore  # pyright: ignore[reportPrivateImportUsage] -- documented, but not in __all__

from ckptcore.channel import LocalChannel
from ckptcore.errors import CallError, CheckpointError, DeadlineExceeded
from tests.torchckpt.procs import run_job
from torchckpt.channel import PART_BYTES, TorchChannel, open_channel

MESSAGES = """
    from ckptcore.errors import DeadlineExceeded
    from torchckpt.channel import TorchChannel, open_channel

    first, second = open_channel("a"), open_channel("a")
    # Channels of other runs may be opened in another order.
    others = {label: open_channel(label) for label in ("bc" if RANK else "cb")}
    assert isinstance(first, TorchChannel) and (first.rank, first.size) == (RANK, SIZE)

    large = bytes(range(256)) * 40_000  # more than a TCPStore takes in one value
    assert first.broadcast(large if RANK == 0 else None, timeout=30, what="large") == large
    assert first.broadcast(b"" if RANK == 0 else None, timeout=30, what="empty") == b""
    assert second.gather(b"s%d" % RANK, timeout=30, what="second") == [b"s%d" % rank for rank in range(SIZE)]
    assert second.gather(large * (RANK == 1), timeout=30, what="large") == [b"", large, b""]
    for turn in range(20):
        expected = [b"%d/%d" % (turn, rank) for rank in range(SIZE)]
        assert first.gather(expected[RANK], timeout=30, what="turn") == expected
    for label, channel in sorted(others.items()):
        assert channel.gather(label.encode(), timeout=30, what="other") == [label.encode()] * SIZE

    if RANK == 0:
        try:
            second.gather(b"", timeout=0.3, what="agree on the step")
        except DeadlineExceeded as error:
            print("LATE", error)
    else:
        try:
            others["b"].broadcast(None, timeout=0.3, what="what nobody sends")
        except DeadlineExceeded as error:
            print("LATE", error)
    first.gather(b"", timeout=30, what="the end")
    print("DONE")
"""


@pytest.mark.slow
def test_three_processes_exchange_messages_and_name_who_is_late() -> None:
    first, *others = run_job(MESSAGES, size=3)
    assert "LATE agree on the step: nothing from ranks 1, 2 of 3 after 0.3 s" in first
    assert all("LATE what nobody sends: nothing from rank 0 of 3 after 0.3 s" in output for output in others)
    assert all("DONE" in output for output in [first, *others])


@pytest.mark.slow
def test_all_ranks_learn_of_an_error_though_the_one_that_holds_the_store_ends_at_once() -> None:
    script = """
    import os, sys, time
    from ckptcore.errors import DeadlineExceeded
    from torchckpt.channel import open_channel

    channel = open_channel()
    assert channel.gather(b"", timeout=30, what="begin") == [b""] * SIZE
    if RANK == 3:
        sys.exit()
    real = channel._comes
    if RANK == 2:  # what comes to it comes late
        channel._comes = lambda *asked: time.sleep(0.1) or real(*asked)
    try:
        channel.gather(b"", timeout=3, what="agree")
    except DeadlineExceeded as error:
        print(error, flush=True)
        os._exit(0)
    """
    said = run_job(script, size=4)
    assert said[0].startswith("agree: nothing from rank 3 of 4 after 3 s")
    assert said == [said[0]] * 3 + [""]


@pytest.mark.slow
def test_a_group_of_one_needs_no_store() -> None:
    script = "from torchckpt.channel import open_channel; print(type(open_channel()).__name__)"
    assert run_job(script, size=1, group=True) == ["LocalChannel\n"]


def test_one_process_needs_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert isinstance(open_channel("run"), LocalChannel)
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert isinstance(open_channel("run"), LocalChannel)
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(CallError, match=r"WORLD_SIZE is 4, .* call torch.distributed.init_process_group\(\) first"):
        open_channel("run")


class Ranks:
    """Channels of several ranks over one store, each used by a thread of its own."""

    def __init__(self, size: int, store: Any = None) -> None:
        self.store: Any = store or HashStore()
        self.channels = [TorchChannel(self.store, rank=rank, size=size) for rank in range(size)]

    def start(self, rank: int, call: Callable[[TorchChannel], Any]) -> Result:
        return Result(lambda: call(self.channels[rank]))

    def gather(self, timeouts: dict[int, float]) -> list[Any]:
        """What each rank's gather gives: its messages, or the text of its error."""
        calls = [self.start(rank, _gathers(rank, timeout)) for rank, timeout in timeouts.items()]
        return [call.get() for call in calls]


class Result:
    def __init__(self, call: Callable[[], Any]) -> None:
        self._value: Any = None
        self._thread = threading.Thread(target=self._run, args=[call])
        self._thread.start()

    def get(self) -> Any:
        self._thread.join()
        return self._value

    def _run(self, call: Callable[[], Any]) -> None:
        try:
            self._value = call()
        except CheckpointError as error:
            self._value = f"{type(error).__name__}: {error}"


def _gathers(rank: int, timeout: float) -> Callable[[TorchChannel], list[bytes]]:
    return lambda channel: channel.gather(b"%d" % rank, timeout=timeout, what="agree")


def test_all_ranks_name_all_late_ranks_alike() -> None:
    ranks = Ranks(5)
    others = [ranks.start(rank, _gathers(rank, 60.0)) for rank in (2, 4)]
    ranks.store.wait(["1/2", "1/4"])  # these two are not late
    said = [*ranks.gather({0: 0.2}), *(other.get() for other in others)]
    assert said == [said[0]] * 3
    assert said[0].startswith("DeadlineExceeded: agree: nothing from ranks 1, 3 of 5 after 0.2 s")
    # Who comes later learns at once how it ended.
    assert ranks.gather(dict.fromkeys((1, 3), 60.0)) == [said[0]] * 2
    assert ranks.gather(dict.fromkeys(range(5), 60.0)) == [[b"0", b"1", b"2", b"3", b"4"]] * 5


def test_when_rank_0_is_late_it_is_named_and_fails_too() -> None:
    ranks = Ranks(3)
    said = ranks.gather(dict.fromkeys((1, 2), 0.2))
    assert "nothing from rank 0 of 3" in said[0]
    assert ranks.gather({0: 60.0}) + said == [said[0]] * 3


def test_a_rank_that_gives_up_as_the_others_arrive_takes_their_outcome_or_they_take_its() -> None:
    for turn in range(40):
        said = Ranks(3).gather({0: 60.0, 1: 0.0005 * (turn % 4), 2: 60.0})
        assert said == [said[0]] * 3


def test_rank_0_that_has_not_answered_is_who_is_late() -> None:
    """It has delivered its own message and died."""
    ranks = Ranks(2)
    ranks.store.set("1/0", b"\0" * 7 + b"\1here")
    assert "nothing from rank 0 of 2" in ranks.gather({1: 0.01})[0]


class CountingStore:
    """Counts the requests, but for those that wait; and values that a TCPStore would not take."""

    def __init__(self) -> None:
        self._store: Any = HashStore()
        self.requests = Counter[str]()
        self.largest = 0

    def check(self, keys: list[str]) -> bool:
        return self._store.check(keys)

    def set(self, key: str, value: bytes) -> None:
        self.largest = max(self.largest, len(value))
        self._store.set(key, value)

    def add(self, key: str, number: int) -> int:
        self.requests["add"] += number
        return self._store.add(key, number)

    def num_keys(self) -> int:
        return self._store.num_keys()

    def __getattr__(self, name: str) -> Any:
        self.requests[name] += 1
        return getattr(self._store, name)


@pytest.mark.parametrize("size", [2, 8, 32])
def test_a_gather_takes_a_few_requests_a_rank_and_leaves_no_keys_behind(size: int) -> None:
    ranks = Ranks(size, CountingStore())
    everyone = dict.fromkeys(range(size), 60.0)
    kept = []
    for _ in range(3):
        assert ranks.gather(everyone) == [[b"%d" % rank for rank in range(size)]] * size
        kept.append(ranks.store.num_keys())
    assert sum(ranks.store.requests.values()) <= 3 * 5 * size
    assert kept == [size + 3] * 3


def test_a_large_message_is_stored_in_parts_that_a_tcp_store_takes() -> None:
    ranks = Ranks(2, CountingStore())
    data = bytes(range(256)) * (3 * PART_BYTES // 256) + b"end"
    calls = [ranks.start(rank, lambda channel: channel.gather(data, timeout=60, what="large")) for rank in range(2)]
    assert [call.get() == [data, data] for call in calls] == [True, True]
    assert PART_BYTES < ranks.store.largest <= PART_BYTES + 8 < 8 << 20
    assert ranks.gather(dict.fromkeys(range(2), 60.0))[0] == [b"0", b"1"]
    assert ranks.store.num_keys() == 5


def test_a_store_that_fails_is_an_error_that_says_what_was_asked() -> None:
    class Gone:
        def set(self, *_: Any) -> None:
            raise RuntimeError("Connection reset by peer\nframe #0: …")

    with pytest.raises(CheckpointError, match=r"agree: the store of the process group failed \(Connection reset by peer\)"):
        TorchChannel(Gone(), rank=1, size=2).gather(b"", timeout=1, what="agree")


def test_rank_0_cannot_broadcast_nothing() -> None:
    with pytest.raises(CallError, match="hand-over: rank 0 broadcasts without data"):
        TorchChannel(HashStore(), rank=0, size=2).broadcast(None, timeout=0, what="hand-over")
    with pytest.raises(DeadlineExceeded, match="hand-over: nothing from rank 0 of 2 after 0 s"):
        TorchChannel(HashStore(), rank=1, size=2).broadcast(None, timeout=0, what="hand-over")


def test_a_rank_that_waits_for_long_says_for_whom(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("torchckpt.channel.PATIENCE", 0.05)
    alone = TorchChannel(HashStore(), rank=0, size=2)
    with pytest.raises(DeadlineExceeded):
        alone.gather(b"", timeout=0.5, what="whether every rank can save its state")
    (told,) = (record.getMessage() for record in caplog.records)
    assert told.startswith(
        "rank 0 waits for rank 1 (whether every rank can save its state). All ranks have to make the same calls"
    )
