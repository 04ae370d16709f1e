"""The measurement of growth: exponents, what is counted, and the whole of it at a tiny size."""

from __future__ import annotations

import argparse
import json
import threading
from multiprocessing import active_children
from pathlib import Path

import pytest

from benchmarks import growth, simulated
from benchmarks.counting import Counting, cost
from benchmarks.simulated import Job, Size
from ckptcore.reader import Checkpoint
from ckptcore.store import open_store


@pytest.mark.parametrize("power", [0.0, 1.0, 2.0])
def test_the_exponent_of_a_power_is_that_power(power: float) -> None:
    numbers = [2, 8, 32, 128, 512, 1024]
    assert growth.exponent(numbers, [3.0 * n**power for n in numbers]) == pytest.approx(power)


def test_only_the_upper_half_counts() -> None:
    assert growth.exponent([1, 2, 4, 8], [100.0, 90.0, 1.0, 2.0]) == pytest.approx(1.0)
    assert growth.exponent([2, 4], [1.0, 4.0]) == pytest.approx(2.0)


def test_there_is_no_exponent_of_nothing() -> None:
    assert growth.exponent([1, 2], [0, 1]) is None
    assert growth.exponent([1], [1.0]) is None


def test_every_operation_has_a_name_and_is_measured() -> None:
    named = set(growth.AGAIN) | set(growth.ONCE)
    assert named == set(growth.SAID) == {name for names in growth.OPERATIONS.values() for name in names}


def test_calls_and_bytes_are_counted_from_all_threads(tmp_path: Path) -> None:
    store = Counting(open_store(tmp_path))

    def work() -> None:
        threads = [threading.Thread(target=store.put_if_absent, args=(f"notes/{n}.json", b"x" * 1000)) for n in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        list(store.list("notes/"))

    found = cost(work, store, again=False)
    assert found.calls == {"list": 1, "put": 20}
    assert 20_000 <= found.written < 25_000
    assert found.seconds > 0


def test_what_can_be_repeated_is_counted_once(tmp_path: Path) -> None:
    store = Counting(open_store(tmp_path))
    assert cost(lambda: store.get("run.json"), store, again=True).calls == {"get": 1}
    assert store.calls["get"] > 1


def test_the_simulated_job_writes_what_it_says(tmp_path: Path) -> None:
    store, size = open_store(tmp_path), Size(3, 4, nbytes=3 * 4 * 640 * 5)
    assert size.rows == 5
    checkpoint = Checkpoint(store, Job(store, size, simulated.launch(store, size)).save(1))
    assert sum(checkpoint.manifest.components[name].bytes for name in simulated.COMPONENTS) == size.stored == size.nbytes
    assert len(checkpoint.roster.ranks) == 3
    assert sum(checkpoint.manifest.components[name].leaves for name in simulated.COMPONENTS) == 4 + 1


@pytest.mark.slow
def test_all_of_it_at_a_tiny_size(tmp_path: Path) -> None:
    result = growth.run(argparse.Namespace(smoke=True, large=False, only=None, dir=tmp_path))
    json.dumps(result, allow_nan=False)
    text = growth.table(result)
    assert text.count("commit, coordinator") == 2
    assert "Commit of 4 ranks x 4 arrays, 16 chunks" in text
    assert {"ranks", "generations"} == set(result["dimensions"])
    for point in result["dimensions"]["ranks"]["points"]:
        assert set(point["operations"]) == set(growth.OPERATIONS["ranks"])
        assert point["operations"]["commit"]["calls"]["get"] >= point["ranks"]


def _fail_or_wait(seconds: float) -> None:
    """Fail at once, or be busy for so long."""
    if seconds == 0:
        raise ValueError("interrupted")
    threading.Event().wait(seconds)


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_what_is_interrupted_ends_the_work_of_all_processes() -> None:
    with pytest.raises(ValueError, match="interrupted"):
        growth.Apart().map(_fail_or_wait, [(0.0,), (600.0,)])
    assert active_children() == []
