"""What a restore can keep is judged for all ranks, from what really happens to each of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from ckptcore import convert, ledger, names, notes, records
from ckptcore.channel import Channel, LocalChannel
from ckptcore.checkpointer import Checkpointer, Restored
from ckptcore.components import PerRank
from ckptcore.errors import CallError, ForkRequired, GuaranteeError, Superseded
from ckptcore.guarantees import Approximate
from ckptcore.history import History
from ckptcore.resuming import Request, Resumer
from ckptcore.store import Storage
from tests.ckptcore.failing import FaultyStore
from tests.ckptcore.support import (
    DERIVED,
    FACTS,
    FakeClock,
    HostBackend,
    Job,
    checkpointer,
    file_store,
    on_ranks,
    run_ranks,
    same,
    state,
)

OWN_CURSORS = DERIVED | {"rng": "step"}


def own_cursor(step: int, rank: int, size: int) -> dict[str, Any]:
    """A state with a cursor for each rank."""
    rest = {name: part for name, part in state(step, rank, size).items() if name != "rng"}
    return rest | {"data": PerRank({"position": 100 * step + rank})}


@pytest.fixture
def run(place: Path) -> Path:
    """A run of two ranks with cursors of their own."""

    def train(link: Channel) -> None:
        with checkpointer(place, link, derived=OWN_CURSORS) as ckpt:
            assert ckpt.save(10, own_cursor(10, link.rank, 2)).result().guarantee.level == "exact"

    on_ranks(2, train)
    return place


def restore(run: Path, size: int, **options: Any) -> Callable[[Channel], Restored]:
    def body(link: Channel) -> Restored:
        with checkpointer(run, link, derived=OWN_CURSORS) as ckpt:
            return ckpt.restore(like=own_cursor(0, link.rank, size), **options)

    return body


@pytest.mark.parametrize(
    ("size", "remap", "problem"),
    [
        (2, {0: 0}, "it has no entry for rank 1 of 2"),
        (2, {}, "it has no entry for ranks 0, 1 of 2"),
        (3, {0: 0, 1: 1}, "it has no entry for rank 2 of 3"),
        (2, {0: 0, 1: 2}, "the checkpoint, of 2 ranks, has no rank 2"),
        (2, {0: -1, 1: None}, "has no rank -1, None"),
        (1, {0: 0, 1: 1}, "this job has no rank 1"),
        (2, [0, 1], "expected a mapping"),
    ],
)
def test_a_remap_gives_every_rank_an_old_one(run: Path, size: int, remap: Any, problem: str) -> None:
    for outcome in run_ranks(size, restore(run, size, accept_guarantee="replay", remap=remap)):
        assert isinstance(outcome, CallError)
        assert problem in str(outcome)


def test_a_whole_remap_is_taken_on_every_rank(run: Path) -> None:
    found = on_ranks(3, restore(run, 3, accept_guarantee="replay", remap={0: 1, 1: 0, 2: 1}))
    assert [restored.guarantee for restored in found] == ["replay"] * 3
    assert [restored.components["data"].value["position"] for restored in found] == [1001, 1000, 1001]


def test_after_ranks_took_one_anothers_state_it_is_saved_again_before_it_is_unchanged(run: Path) -> None:
    def body(link: Channel) -> int:
        with checkpointer(run, link, derived=OWN_CURSORS) as ckpt:
            found = ckpt.restore(like=own_cursor(0, link.rank, 2), accept_guarantee="replay", remap={0: 1, 1: 0})
            whole = dict(found.components)
            rest = {name: part for name, part in whole.items() if name != "data"}
            with pytest.raises(CallError, match="the ranks took one another's copy of it; save it again"):
                ckpt.save(11, rest, unchanged=["data"])
            ckpt.save(12, whole).result()
            ckpt.save(13, rest, unchanged=["data"]).result()
            return found.components["data"].value["position"]

    assert on_ranks(2, body) == [1001, 1000]
    again = on_ranks(2, restore(run, 2))
    assert [restored.components["data"].value["position"] for restored in again] == [1001, 1000]


def test_what_is_accepted_is_a_guarantee(run: Path) -> None:
    with checkpointer(run) as ckpt, pytest.raises(CallError, match="guarantee 'best' is not one of"):
        ckpt.restore(like=state(0), accept_guarantee="best")  # pyright: ignore[reportArgumentType]


def test_renamed_state_of_ranks_is_restored_by_its_own_rank(run: Path) -> None:
    def renamed(link: Channel) -> Restored:
        like = own_cursor(0, link.rank, 2)
        like["loader"] = like.pop("data")
        with checkpointer(run, link) as ckpt:
            return ckpt.restore(like=like, rename={"loader": "data"})

    found = on_ranks(2, renamed)
    assert [restored.guarantee for restored in found] == ["exact"] * 2
    assert [restored.components["loader"].value["position"] for restored in found] == [1000, 1001]


def test_state_of_ranks_that_are_gone_is_left_out_by_the_checkpoint_s_names(place: Path) -> None:
    """The target may have a component of all ranks under its name, and the other way round."""

    def train(link: Channel) -> None:
        with checkpointer(place, link) as ckpt:
            ckpt.save(10, state(10, link.rank, 2))

    on_ranks(2, train)
    like = state(0)
    like["rng"], like["noise"] = like.pop("params"), like.pop("rng")
    with checkpointer(place) as ckpt:
        found = ckpt.restore(like=like, rename={"rng": "params", "noise": "rng"}, accept_guarantee="coverage")
    assert same(found.components["rng"], state(10)["params"])
    assert same(found.components["noise"], state(0)["rng"])


def test_renamed_parts_count_for_the_component_that_they_come_from(place: Path) -> None:
    with checkpointer(place) as ckpt:
        ckpt.save(10, state(10) | {"ema": {"w": np.full(4, 10.0)}})
    like = {name: part for name, part in state(0).items() if name != "ema"}
    like["params"]["ema"] = np.zeros(4)
    with checkpointer(place) as ckpt:
        restored = ckpt.restore(like=like, rename={"params.ema": "ema.w"})
    assert restored.guarantee == "exact"
    assert restored.components["params"]["ema"].tolist() == [10.0] * 4


def test_other_libraries_are_not_exact(place: Path) -> None:
    def of(version: str) -> Checkpointer:
        return Checkpointer(place, backend=HostBackend(LocalChannel(), numpy=version), derived=DERIVED)

    with of("1.26") as ckpt:
        ckpt.save(10, state(10))
    with of("1.26") as ckpt:
        assert ckpt.restore(like=state(0)).guarantee == "exact"
    with of("2.0") as ckpt:
        with pytest.raises(GuaranteeError, match=r"(?s)can keep 'coverage' only.*numpy 1\.26 then, 2\.0 now"):
            ckpt.restore(like=state(0))
        assert ckpt.restore(like=state(0), accept_guarantee="coverage").guarantee == "coverage"


@dataclass(frozen=True)
class Of(HostBackend):
    """As if it were the backend of `framework`."""

    def topology(self, meshes: Sequence[records.Mesh]) -> records.Topology:
        return structs.replace(super().topology(meshes), framework=self.framework)


def of(framework: str, place: Path) -> Checkpointer:
    return Checkpointer(place, backend=Of(framework=framework), derived=DERIVED)


MODEL = {("model" if name == "params" else name): part for name, part in state(0).items()}


@pytest.mark.parametrize(("saved", "now"), [("jax", "torch"), ("torch", "jax")])
@pytest.mark.parametrize("given", ["nothing", "the wrong direction"])
def test_a_checkpoint_of_another_framework_says_how_it_is_read(place: Path, saved: str, now: str, given: str) -> None:
    """To start a new run was all that was proposed."""
    with of(saved, place) as ckpt:
        ckpt.save(10, state(10))
    right, wrong = ("flax_to_torch", "torch_to_flax") if now == "torch" else ("torch_to_flax", "flax_to_torch")
    first = f"this checkpoint was written by '{saved}': convert=ckptcore.convert.{right}(...) reads it in {now}. "
    conversion = None if given == "nothing" else getattr(convert, wrong)()
    with of(now, place) as ckpt:
        with pytest.raises(ForkRequired) as raised:
            ckpt.restore(like=MODEL, convert=conversion)
        assert str(raised.value).startswith(first + "As this restore was called: this would restore no more than the weights")
        with pytest.raises(GuaranteeError) as refused:
            ckpt.restore(like=state(0), convert=conversion)
        assert str(refused.value).startswith(first + "As this restore was called: the checkpoint promises 'exact'")


def test_a_conversion_that_is_there_is_not_advised(place: Path) -> None:
    with of("jax", place) as ckpt:
        ckpt.save(10, state(10))
    with of("torch", place) as ckpt, pytest.raises(GuaranteeError, match=r"^the checkpoint promises 'exact'"):
        ckpt.restore(like=MODEL, convert=convert.flax_to_torch())
    with of("host", place) as ckpt, pytest.raises(GuaranteeError, match=r"^the checkpoint promises 'exact'"):
        ckpt.restore(like=state(0))


def test_state_of_another_number_of_ranks_asks_for_a_remap(place: Path) -> None:
    """`rng` was said to be left out, although it is in `like`."""

    def train(link: Channel) -> None:
        with checkpointer(place, link) as ckpt:
            ckpt.save(10, state(10, link.rank, 2))

    on_ranks(2, train)
    rest = {name: part for name, part in state(0).items() if name != "rng"}
    told = r"component 'rng' \(rng\) is one of each rank, of 2 ranks then and 1 now: remap="
    for like, reason in ((state(0), told), (rest, r"component 'rng' \(rng\) is left out")):
        with checkpointer(place) as ckpt, pytest.raises(GuaranteeError, match=reason):
            ckpt.restore(like=like)


@pytest.mark.parametrize("derived", [{"shedule": "step"}, {"rng": Approximate(3)}, "step"])
def test_a_wrong_declaration_is_refused_before_the_first_save(place: Path, derived: Any) -> None:
    with pytest.raises(GuaranteeError, match="derived"):
        checkpointer(place, derived=derived)
    assert not list(place.glob("*"))


@pytest.mark.parametrize(
    ("saved", "altered"),
    [(b'"params":{', b'"qarams":{'), (b'"participants":2', b'"participants":3'), (b'"platform":"cpu"', b'"platform":"cpw"')],
)
def test_an_altered_manifest_is_damage_and_not_a_call_to_refuse(run: Path, saved: bytes, altered: bytes) -> None:
    """What nobody certifies yet must not decide that the caller is wrong: all ranks fall back."""

    def second(link: Channel) -> None:
        with checkpointer(run, link, derived=OWN_CURSORS) as ckpt:
            ckpt.restore(like=own_cursor(0, link.rank, 2))
            ckpt.save(20, own_cursor(20, link.rank, 2)).result()

    on_ranks(2, second)
    manifest = run / "ledger" / "000002-000000000020-1.json"
    data = manifest.read_bytes()
    assert data.count(saved) >= 1
    manifest.write_bytes(data.replace(saved, altered, 1))
    found = on_ranks(2, restore(run, 2))
    assert [(restored.step, restored.guarantee) for restored in found] == [(10, "exact")] * 2


class Overtaken:
    """A run with one checkpoint, and a job that is overtaken by another as soon as `key` is there: retention takes its base."""

    def __init__(self, place: Path, key: str) -> None:
        self.real, self.key, self.done = file_store(place / "run"), key, False
        self.first, self.other = Job(self.real, 1), Job(self.real, 1)
        self.first.open()
        self.base = self.first.save(10)
        self.store = FaultyStore(self.real, self._matches)

    def _matches(self, operation: str, key: str) -> bool:
        if operation == "get" and key.startswith(names.GENERATIONS) and self.real.size(self.key) and not self.done:
            self.done = True
            self.other.open()
            for step in (20, 30):
                self.other.save(step)
            ledger.retire(self.real, self.base, "policy", clock=FakeClock())
            self.real.delete_prefix(names.generation_prefix(self.base.generation))
        return False


def test_a_job_whose_base_is_gone_because_it_was_superseded_stops(place: Path) -> None:
    """It stood still while another job went on: to claim anew would stop that one (P-9)."""
    run = Overtaken(place, names.base_key(2))
    resumer = Resumer(
        store=run.store,
        storage=Storage(),
        backend=HostBackend(),
        channel=LocalChannel(),
        clock=FakeClock(),
        start_from=None,
        on_event=None,
        probe=lambda *_, **__: FACTS,
    )
    with pytest.raises(Superseded, match=r"incarnation 3 .* has been claimed"):
        resumer.resume(Request())
    assert run.done
    assert History.load(run.real).bases.keys() == {1, 2, 3}
    assert notes.read(run.real, run.base.record.run_id, run.base.generation) == [], "it is retired, not damaged"


def test_a_job_that_finds_nothing_whole_because_it_was_superseded_stops(place: Path) -> None:
    """The same while it opens: that nothing can be resumed from is not what its people have to know."""
    run = Overtaken(place, names.claim_key(2))
    with pytest.raises(Superseded, match=r"incarnation 3 .* has been claimed"):
        Job(run.store, 1).open()
    assert run.done
