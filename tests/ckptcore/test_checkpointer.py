"""What a training loop sees: saves, restores, guarantees, preemption, on one rank and on several."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckptcore import ledger, notes
from ckptcore.channel import Channel
from ckptcore.checkpointer import Restored
from ckptcore.clock import Clock
from ckptcore.components import PerRank
from ckptcore.errors import (
    CallError,
    ForkRequired,
    GuaranteeError,
    NotFound,
    Preempted,
    StructureMismatch,
)
from ckptcore.history import History
from ckptcore.keep import Keep
from ckptcore.names import GenerationId
from ckptcore.run import open_run
from tests.ckptcore.support import (
    check_commits,
    checkpointer,
    file_store,
    on_ranks,
    run_ranks,
    same,
    state,
    weights,
)
from tests.ckptcore.training import must_not_init, train

# Saving and resuming


def test_a_job_resumes_bit_for_bit(place: Path) -> None:
    assert [(r.step, r.generation) for r in train(place, [10, 20])] == [(0, None)] * 2
    for rank, restored in enumerate(train(place, [30])):
        assert (restored.step, restored.guarantee, restored.reason) == (20, "exact", "newest")
        assert restored.generation == GenerationId(1, 20, 1)
        assert restored.manifest is not None
        assert same(dict(restored.components), state(20, rank, 2))
    assert [r.step for r in train(place, [])] == [30, 30]


def test_fresh_state_is_not_built_when_there_is_something_to_restore(place: Path) -> None:
    train(place, [10], size=1)
    with checkpointer(place) as ckpt:
        assert ckpt.restore_or_init(must_not_init, like=state(0)).step == 10


def test_without_a_target_host_arrays_come_back(place: Path) -> None:
    train(place, [10], size=1)
    with checkpointer(place) as ckpt:
        found = ckpt.restore()
        assert same(found.components["params"]["w"], weights(10))


def test_what_changes_after_a_save_is_not_in_it(place: Path) -> None:
    mutable = state(10)
    mutable["params"]["plain"] = np.arange(5.0)
    mutable["data"] = {"seen": [1, 2], "position": 3}
    with checkpointer(place) as ckpt:
        handle = ckpt.save(10, mutable)
        mutable["params"]["plain"][:] = 99
        mutable["params"]["w"].local[:] = 99
        mutable["data"]["seen"].append(99)
        handle.result()
    found = open_run(place).restore()
    assert same(found["params"]["plain"], np.arange(5.0))
    assert same(found["params"]["w"], weights(10))
    assert found["data"] == {"seen": [1, 2], "position": 3}


def test_steps_go_on_and_attempts_count(place: Path) -> None:
    with checkpointer(place) as ckpt:
        assert ckpt.incarnation is None
        first, second = ckpt.save(10, state(10)), ckpt.save(10, state(10))
        assert (str(first.generation), str(second.generation)) == ("000001-000000000010-1", "000001-000000000010-2")
        assert ckpt.incarnation == 1
        for wrong in (9, -1, 10.0, True, "11", None):
            with pytest.raises(CallError, match="step"):
                ckpt.save(wrong, state(11))  # pyright: ignore[reportArgumentType]
        assert ckpt.save(11, state(11)).result().parent == str(second.generation)


def test_an_interval_and_its_answers(place: Path) -> None:
    with checkpointer(place, interval=5) as ckpt:
        assert [step for step in range(1, 16) if ckpt.should_save(step)] == [5, 10, 15]


def test_saving_into_a_run_that_was_not_restored_is_refused(place: Path) -> None:
    train(place, [10], size=1)
    with checkpointer(place) as ckpt, pytest.raises(CallError, match="call restore_or_init"):
        ckpt.save(1, state(1))


def test_retention_and_metrics_on_the_way(place: Path) -> None:
    with checkpointer(place, keep=Keep(last=2)) as ckpt:
        for step in (10, 20, 30, 40):
            ckpt.save(step, state(step), metrics={"loss": 1.0}, metadata={"note": "x"})
        ckpt.wait()
        ckpt.annotate(GenerationId(1, 40, 1), tags=["final"], metrics={"accuracy": 0.5})
    assert [g.step for g in check_commits(file_store(place))] == [40, 30]
    assert notes.metrics(History.load(file_store(place)).notes[GenerationId(1, 40, 1)]) == {"loss": 1.0, "accuracy": 0.5}


# Rolling back


def test_a_rollback_in_mid_run_stays_rolled_back(place: Path) -> None:
    with checkpointer(place) as ckpt:
        for step in (10, 20, 30):
            ckpt.save(step, state(step))
        restored = ckpt.restore(like=state(0), step=10)
        assert (restored.step, restored.reason, ckpt.incarnation) == (10, "chosen", 2)
        assert same(dict(restored.components), state(10))
    # The job died before its first commit.
    with checkpointer(place) as ckpt:
        assert ckpt.restore_or_init(must_not_init, like=state(0)).step == 10
        manifest = ckpt.save(11, state(11)).result()
        assert manifest.parent == "000001-000000000010-1"
    with checkpointer(place) as ckpt:
        assert ckpt.restore_or_init(must_not_init, like=state(0)).step == 11


def test_a_rollback_to_a_generation(place: Path) -> None:
    """Of two saves of one step each can be had."""
    with checkpointer(place) as ckpt:
        first = ckpt.save(10, state(10)).result()
        ckpt.save(10, {**state(10), "loop": {"epoch": 7}}).result()
        for named in (first, first.generation, GenerationId.parse(first.generation)):
            restored = ckpt.restore(like=state(0), generation=named)
            assert (str(restored.generation), restored.reason) == (first.generation, "chosen")
        assert same(dict(restored.components), state(10))
        weights = ckpt.save(20, {"params": state(20)["params"]}, guarantee="weights").result()
        with pytest.raises(ForkRequired, match=f"fork\\(new_url, generation='{weights.generation}'\\)"):
            ckpt.restore(like=state(0), generation=weights)
        with pytest.raises(NotFound, match="no generation 000009-000000000010-1"):
            ckpt.restore(like=state(0), generation="000009-000000000010-1")
        with pytest.raises(CallError, match="give one of them"):
            ckpt.restore(like=state(0), step=10, generation=first)


def test_a_checkpoint_that_cannot_be_gone_back_to_stops_no_job(place: Path) -> None:
    """It is refused before anything is claimed: this job goes on, and so would another one."""
    with checkpointer(place) as ckpt:
        ckpt.save(10, state(10)).result()
        marked = ckpt.save(20, state(20)).result()
        open_run(place).quarantine(marked, "the loss rose")
        with pytest.raises(NotFound, match="no checkpoint of step 11"):
            ckpt.restore(like=state(0), step=11)
        with pytest.raises(NotFound, match="cannot be resumed from: it is marked quarantine"):
            ckpt.restore(like=state(0), generation=marked)
        with pytest.raises(GuaranteeError):
            ckpt.restore(like={name: part for name, part in state(0).items() if name != "rng"}, step=10)
        assert History.load(file_store(place)).bases.keys() == {1}
        ckpt.save(30, state(30)).result()


def test_another_run_is_refused(place: Path) -> None:
    with checkpointer(place) as ckpt:
        saved = ckpt.save(10, state(10)).result()
    with checkpointer(place, run_id=saved.run_id) as ckpt:
        assert ckpt.restore_or_init(must_not_init, like=state(0)).step == 10
    with checkpointer(place, run_id=saved.generation) as ckpt, pytest.raises(CallError, match="is expected there"):
        ckpt.restore_or_init(must_not_init, like=state(0))
    assert History.load(file_store(place)).bases.keys() == {1, 2}


def test_there_is_nothing_to_restore(place: Path) -> None:
    with checkpointer(place) as ckpt:
        with pytest.raises(NotFound, match="no checkpoint yet"):
            ckpt.restore(like=state(0))
        ckpt.save(1, state(1)).result()


# Guarantees


def test_weights_are_no_resume_point(place: Path) -> None:
    with checkpointer(place) as ckpt:
        ckpt.save(10, state(10))
        manifest = ckpt.save(20, {"params": state(20)["params"]}, guarantee="weights").result()
        assert manifest.guarantee.level == "weights"
        assert ckpt.save(30, state(30)).result().parent == "000001-000000000010-1"
        ckpt.save(40, {"params": state(40)["params"]}, guarantee="weights").result()
    with checkpointer(place) as ckpt:
        assert ckpt.restore_or_init(must_not_init, like=state(0)).step == 30
        with pytest.raises(ForkRequired, match="fork"):
            ckpt.restore(like=state(0), step=20)
    with (
        pytest.raises(GuaranteeError, match="only guarantee='weights' can be kept"),
        checkpointer(place / "b", derived={}) as ckpt,
    ):
        ckpt.save(10, {"params": state(10)["params"]})


def test_restoring_only_weights_needs_a_fork(place: Path) -> None:
    train(place, [10], size=1)
    for options in ({"components": "params"}, {"components": ["params"]}):
        with checkpointer(place) as ckpt, pytest.raises(ForkRequired, match="start_from"):
            ckpt.restore(like=state(0), **options)  # pyright: ignore[reportArgumentType]
    with checkpointer(place) as ckpt, pytest.raises(ForkRequired):
        ckpt.restore(like={"params": state(0)["params"]}, extra="ignore")


def test_what_is_required_is_proven(place: Path) -> None:
    with checkpointer(place, require="exact") as ckpt:
        with pytest.raises(GuaranteeError, match="require='exact'"):
            ckpt.save(10, {key: part for key, part in state(10).items() if key != "rng"})
        assert ckpt.save(10, state(10)).result().guarantee.level == "exact"
    with pytest.raises(CallError, match="perfect"):
        checkpointer(place, require="perfect")


def test_another_number_of_ranks_needs_a_weaker_guarantee_or_a_remap(place: Path) -> None:
    train(place, [10], size=2)

    def restore(size: int, **options: Any) -> Callable[[Channel], Restored]:
        def run(link: Channel) -> Restored:
            return checkpointer(place, link).restore_or_init(must_not_init, like=state(0, link.rank, size), **options)

        return run

    for outcome in run_ranks(3, restore(3)):
        assert isinstance(outcome, GuaranteeError)
        assert "accept_guarantee='coverage'" in str(outcome)
    found = on_ranks(3, restore(3, accept_guarantee="coverage"))
    for rank, restored in enumerate(found):
        assert (restored.step, restored.guarantee) == (10, "coverage")
        assert same(restored.components["params"], state(10, rank, 3)["params"])
        assert same(restored.components["rng"], state(0, rank, 3)["rng"])  # as it was in the target
    remapped = on_ranks(1, restore(1, accept_guarantee="coverage", remap={0: 1}))
    assert same(remapped[0].components["rng"], PerRank({"key": np.array([10, 1], np.uint32)}))


def test_each_rank_gets_its_own_state_back(place: Path) -> None:
    def run(link: Channel) -> dict[str, Any]:
        own = PerRank({"key": np.arange(link.rank + 1, dtype=np.uint32), "name": f"rank {link.rank}"})
        with checkpointer(place, link) as ckpt:
            like = state(0, link.rank, 3) | {"rng": own}
            restored = ckpt.restore_or_init(lambda: like, like=like)
            if restored.step == 0:
                ckpt.save(10, state(10, link.rank, 3) | {"rng": own}).result()
            return dict(restored.components)

    on_ranks(3, run)
    for rank, found in enumerate(on_ranks(3, run)):
        assert found["rng"].value["name"] == f"rank {rank}"
        assert found["rng"].value["key"].tolist() == list(range(rank + 1))


def test_a_target_that_does_not_fit_is_told_on_all_ranks(place: Path) -> None:
    train(place, [10])

    def run(link: Channel) -> Restored:
        like = state(0, link.rank, 2)
        like["params"]["b"] = np.zeros(3, np.float32)
        return checkpointer(place, link).restore_or_init(must_not_init, like=like)

    for outcome in run_ranks(2, run):
        assert isinstance(outcome, StructureMismatch)
        assert "params['b']: dtype float64 in the checkpoint, float32 in the target" in str(outcome)


def test_renaming_keeps_the_guarantee(place: Path) -> None:
    train(place, [10], size=1)
    like = state(0)
    like["model"] = like.pop("params")
    with checkpointer(place) as ckpt:
        restored = ckpt.restore(like=like, rename={"model": "params"})
        assert restored.guarantee == "exact"
        assert same(restored.components["model"], state(10)["params"])


# Unchanged components


def test_an_unchanged_component_is_kept_by_retention_and_restored(place: Path) -> None:
    with checkpointer(place, keep=Keep(last=2)) as ckpt:
        ckpt.save(10, state(10))
        for step in (20, 30, 40):
            part = {key: value for key, value in state(step).items() if key != "params"}
            manifest = ckpt.save(step, part, unchanged=["params"]).result()
            assert manifest.components["params"].source == "000001-000000000010-1"
        for wrong in (["params", "ema"], ["data"]):
            with pytest.raises(CallError, match="declared unchanged"):
                ckpt.save(50, state(50) | {}, unchanged=wrong)
    assert [g.step for g in check_commits(file_store(place))] == [40, 30, 10]
    with checkpointer(place) as ckpt:
        restored = ckpt.restore_or_init(must_not_init, like=state(0))
        assert same(restored.components["params"], state(10)["params"])
        assert same(restored.components["optimizer"], state(40)["optimizer"])


@pytest.mark.parametrize("mark", ["quarantine", "damaged", "retired"])
def test_what_nobody_should_resume_from_is_not_referred_to(place: Path, mark: Any) -> None:
    """The component lies in the first save: that one counts, not the save before."""
    rest = {key: value for key, value in state(20).items() if key != "params"}
    with checkpointer(place) as ckpt:
        first = ckpt.save(10, state(10)).result()
        ckpt.save(20, rest, unchanged=["params"]).result()
        store, home = file_store(place), GenerationId.parse(first.generation)
        if mark == "retired":
            ledger.retire(store, ledger.commit(store, first.run_id, home), "a test", clock=Clock())
        else:
            notes.write(store, first.run_id, home, mark, clock=Clock(), text="a loss spike")
        with pytest.raises(CallError, match=rf"'params' is declared unchanged, but {home}, which holds it, is .*{mark}"):
            ckpt.save(30, rest, unchanged=["params"])
        again = ckpt.save(30, state(30)).result()
        assert again.components["params"].source is None
        assert ckpt.save(40, rest, unchanged=["params"]).result().components["params"].source == again.generation


# Preemption


class Watch:
    """Says "stop" at a step."""

    def __init__(self, step: int) -> None:
        self.step, self.closed = step, False

    def reached(self, step: int) -> bool:
        return step >= self.step

    def close(self) -> None:
        self.closed = True


def test_a_preemption_saves_at_the_step_agreed_and_stops(place: Path) -> None:
    def run(link: Channel) -> int:
        watch = Watch(13)

        def loop() -> None:
            with checkpointer(place, link, watch=lambda: watch, interval=10) as ckpt:
                for step in range(1, 100):
                    if ckpt.should_save(step):
                        ckpt.save(step, state(step, link.rank, 2))

        with pytest.raises(Preempted, match="step 13 is saved as 000001-000000000013-1") as caught:
            loop()
        assert watch.closed
        return caught.value.code  # pyright: ignore[reportReturnType]

    assert on_ranks(2, run) == [143, 143]
    assert [g.step for g in check_commits(file_store(place))] == [13, 10]


def test_a_preemption_can_be_ignored(place: Path) -> None:
    with checkpointer(place, watch=lambda: Watch(1), on_preemption="ignore") as ckpt:
        assert not ckpt.should_save(3)
    with pytest.raises(CallError, match="on_preemption"):
        checkpointer(place, on_preemption="panic")


def test_metadata_comes_back_as_it_was_given(place: Path) -> None:
    given = {"lr": 0.1, "note": "é", "shape": (1, 2), "none": None}
    with checkpointer(place) as ckpt:
        assert ckpt.restore_or_init(lambda: state(0), like=state(0)).metadata is None
        ckpt.save(10, state(10), metadata=given).result()
    with checkpointer(place) as ckpt:
        assert ckpt.restore_or_init(must_not_init, like=state(0)).metadata == given
