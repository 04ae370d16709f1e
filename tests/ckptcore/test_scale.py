"""What grows with ranks, arrays and saves, and how fast: counted in calls, bytes and decodings, never in seconds.

A simulated job (`benchmarks.simulated`) whose every array is cut over all ranks.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks import simulated
from benchmarks.counting import Counting
from benchmarks.simulated import Job, Size, array_facts
from ckptcore import canonical, channel, geometry, layout, records, union
from ckptcore.geometry import Box
from ckptcore.inspect.inventory import inventory
from ckptcore.layout import ComponentFacts, make_plan
from ckptcore.reader import Checkpoint
from ckptcore.store import open_store
from tests.ckptcore.support import memory_directory

DIGITS = 6
"""By how many digits the numbers in a record of constant size may differ, each."""


@dataclass(frozen=True)
class Committed:
    """A committed save: what its records take, and what its commit asked of the store."""

    manifest: int
    roster: int
    layout: int
    index: int
    receipt: int
    calls: Counter[str]


def commit(folder: Path, size: Size) -> Committed:
    """One save of a job of `size`, at `folder`."""
    store = Counting(open_store(folder))
    job = Job(store, size, simulated.launch(store, size))
    receipts = [job.write(job.plan(1, rank)) for rank in range(size.ranks)]
    before = Counter(store.calls)
    checkpoint = Checkpoint(store, job.commit(1))
    calls = store.calls - before
    manifest = checkpoint.manifest
    return Committed(
        manifest=len(records.encode(manifest)),
        roster=manifest.roster.size,
        layout=sum(stored.size for stored in checkpoint.roster.layouts),
        index=sum(entry.index.size for entry in manifest.components.values()),
        receipt=len(records.encode(msgspec.structs.replace(receipts[-1], files=[]))),
        calls=without_files(calls),
    )


def without_files(calls: Counter[str]) -> Counter[str]:
    """Without one look at each data file: how many files TensorStore makes of a few small writes is chance."""
    return Counter({kind: number for kind, number in calls.items() if kind != "size"})


def committed(*sizes: Size) -> list[Committed]:
    """As `commit`, each in a run of its own."""
    with memory_directory() as folder:
        return [commit(folder / str(number), size) for number, size in enumerate(sizes)]


@pytest.fixture(scope="module")
def by_ranks() -> list[Committed]:
    """2, 4 and 8 ranks that hold 6 arrays."""
    return committed(Size(2, 6), Size(4, 6), Size(8, 6))


@pytest.fixture(scope="module")
def by_arrays() -> list[Committed]:
    """2 ranks that hold 6, 12 and 24 arrays."""
    return committed(Size(2, 6), Size(2, 12), Size(2, 24))


def test_a_manifest_grows_with_neither_ranks_nor_arrays(by_ranks: list[Committed], by_arrays: list[Committed]) -> None:
    """R-63: but for the digits of its counts."""
    sizes = [each.manifest for each in (*by_ranks, *by_arrays)]
    assert max(sizes) - min(sizes) <= 4 * DIGITS
    assert max(sizes) < 4096


def test_a_roster_has_as_much_more_for_each_rank(by_ranks: list[Committed], by_arrays: list[Committed]) -> None:
    two, four, eight = (each.roster for each in by_ranks)
    assert (four - two) / 2 == pytest.approx((eight - four) / 4, abs=DIGITS)
    assert (eight - four) / 4 < 400
    assert max(each.roster for each in by_arrays) - by_arrays[0].roster <= 2 * DIGITS


def test_a_receipt_grows_with_what_its_rank_wrote_alone(by_ranks: list[Committed], by_arrays: list[Committed]) -> None:
    sizes = [each.receipt for each in by_ranks]
    assert max(sizes) - min(sizes) <= 2 * DIGITS
    six, twelve, more = (each.receipt for each in by_arrays)
    assert (twelve - six) / 6 == pytest.approx((more - twelve) / 12, abs=DIGITS)
    assert (more - twelve) / 12 < 140


def test_ranks_with_the_same_leaves_share_one_layout(by_ranks: list[Committed]) -> None:
    sizes = [each.layout for each in by_ranks]
    assert max(sizes) - min(sizes) <= 6 * DIGITS


def test_an_index_has_one_digest_a_chunk(by_ranks: list[Committed]) -> None:
    two, four, eight = (each.index for each in by_ranks)
    own = 4 * 200  # of what every rank has for itself
    assert eight - four < 4 * 6 * 80 + own
    assert four - two < 2 * 6 * 80 + own


def test_a_commit_asks_for_each_receipt_once_and_for_the_rest_in_a_fixed_number_of_calls(by_ranks: list[Committed]) -> None:
    two, four, eight = (each.calls for each in by_ranks)
    for kind in two.keys() | eight.keys():
        assert eight[kind] - four[kind] == 2 * (four[kind] - two[kind]), kind
    assert eight["list"] == two["list"] <= 2
    assert eight["put"] == two["put"]
    assert (eight["get"] - four["get"]) / 4 <= 2  # the receipt, and the small file that its database begins with


def test_a_commit_of_more_arrays_asks_no_more(by_arrays: list[Committed]) -> None:
    assert by_arrays[0].calls == by_arrays[1].calls == by_arrays[2].calls


def test_every_receipt_and_every_distinct_layout_is_decoded_once(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = Size(6, 3)
    store = open_store(place / "run")
    job = Job(store, size, simulated.launch(store, size))
    for rank in range(size.ranks):
        job.write(job.plan(1, rank))
    decoded: Counter[type] = Counter()
    decode = records.decode

    def counted(data: bytes, kind: Any, *, key: str) -> Any:
        decoded[kind] += 1
        return decode(data, kind, key=key)

    monkeypatch.setattr(records, "decode", counted)
    job.commit(1)
    assert (decoded[records.Receipt], decoded[records.Layout]) == (6, 1)


def test_receipts_that_were_there_before_are_not_read_again(place: Path) -> None:
    size = Size(3, 2)
    store = Counting(open_store(place / "run"))
    job = Job(store, size, simulated.launch(store, size))
    coordinator, generation = simulated.coordinator(job), job.generation(1)
    found: dict[int, bytes] = {}
    for rank in range(size.ranks):
        job.write(job.plan(1, rank))
        before = store.calls["get"]
        coordinator._receive(generation, found)
        assert sorted(found) == list(range(rank + 1))
        assert store.calls["get"] - before == 1


def test_a_plan_looks_at_arrays_that_are_cut_alike_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each rank would look at every chunk of the whole job: 1,024 ranks x 1,000 arrays are a million."""
    size = Size(16, 30)
    cut: list[Any] = []
    claimed: list[Any] = []
    choose_grid, claimable = geometry.choose_grid, geometry.Claimable
    monkeypatch.setattr(geometry, "choose_grid", lambda *args: cut.append(args) or choose_grid(*args))
    monkeypatch.setattr(layout, "Claimable", lambda *args: claimed.append(args) or claimable(*args))
    components = {name: ComponentFacts(kind=kind, scope="global") for name, kind in simulated.COMPONENTS.items()}
    plan = make_plan(components, array_facts(size), [], rank=5)
    assert all(cells == (5,) for cells in plan.own.values())
    assert len(plan.own) == size.arrays
    assert (len(cut), len(claimed)) == (1, 0)


def test_a_leaf_table_tells_a_sharding_once_and_the_arrays_share_it() -> None:
    size = Size(16, 30)
    flat = simulated.ShardedBackend(size, 0).flatten({"arrays": array_facts(size), "block": None})
    table = canonical.decode(union.describe(flat), what="table")
    assert len(table["shardings"]) == 1
    united = union.unite(flat, union.Tables((union.describe(flat),), (tuple(range(16)),)))
    assert len({id(array.shards) for array in united.arrays if array.component != "rng"}) == 1


def test_a_leaf_table_of_an_array_that_all_ranks_hold_does_not_grow_with_the_ranks() -> None:
    def table(ranks: int) -> int:
        whole = Box.whole((4,))
        facts = [
            layout.ArrayFacts(
                component="params",
                path=(("key", f"w{number}"),),
                dtype="float32",
                stored_dtype="float32",
                shape=(4,),
                itemsize=4,
                shards={whole: tuple(range(ranks))},
                local=True,
            )
            for number in range(5)
        ]
        return len(union.describe(simulated.ShardedBackend(Size(ranks, 1), 0).flatten({"arrays": facts, "block": None})))

    assert table(2) == table(512)


def test_what_ranks_say_alike_is_handed_out_in_hardly_any_room() -> None:
    """Else each save of a job of 16,384 ranks would hand 27 GB of digests around."""

    def handed(ranks: int) -> bytes:
        return channel.joined([b"000001-000000000001-1 " + union.digest_of(b"a table")] * ranks)

    assert len(channel.split(handed(4096))) == 4096
    assert len(handed(4096)) < 4096 * 3
    different = [union.digest_of(b"%d" % rank) for rank in range(100)] + [b"", b"x" * 5_000_000]
    assert channel.split(channel.joined(different)) == different


def test_a_listing_asks_once_a_generation(place: Path) -> None:
    size = Size(1, 1)
    store = Counting(open_store(place / "run"))
    job = Job(store, size, simulated.launch(store, size))
    asked, latest = [], None
    for step in (1, 2, 3, 4, 5, 6, 7, 8):
        latest = job.save(step, latest)
        before = Counter(store.calls)
        inventory(store)
        asked.append(store.calls - before)
    each = asked[1] - asked[0]
    assert sum(each.values()) == 1
    assert all(later - earlier == each for earlier, later in pairwise(asked))


def test_a_commit_asks_no_more_when_there_have_been_many(place: Path) -> None:
    size = Size(1, 1)
    store = Counting(open_store(place / "run"))
    job = Job(store, size, simulated.launch(store, size))
    asked, latest = [], None
    for step in range(1, 7):
        job.write(job.plan(step, 0, latest))
        before = Counter(store.calls)
        latest = job.commit(step)
        asked.append(without_files(store.calls - before))
    assert all(calls == asked[0] for calls in asked)


@pytest.mark.slow
def test_a_commit_of_many_ranks_keeps_to_the_same_bounds(by_ranks: list[Committed]) -> None:
    (many,) = committed(Size(64, 40))
    assert many.manifest - by_ranks[0].manifest <= 4 * DIGITS
    assert many.calls["put"] == by_ranks[0].calls["put"]
    assert many.calls["list"] == by_ranks[0].calls["list"]
    each = (by_ranks[2].calls["get"] - by_ranks[1].calls["get"]) / 4
    assert many.calls["get"] == by_ranks[2].calls["get"] + 56 * each
