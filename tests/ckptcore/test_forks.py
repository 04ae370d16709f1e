"""New runs from old ones."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckptcore import forks, ledger, names, notes
from ckptcore.channel import Channel
from ckptcore.checkpointer import Restored
from ckptcore.clock import Clock
from ckptcore.components import PerRank
from ckptcore.errors import CallError, Damaged, DamageError, ForeignRecord, NotFound, Retired, StoreError
from ckptcore.history import History, read_run
from ckptcore.keep import Keep
from ckptcore.names import GenerationId
from ckptcore.run import Run, open_run
from ckptcore.store import Storage
from tests.ckptcore.failing import FaultyStore
from tests.ckptcore.support import SHAPE, check_commits, checkpointer, file_store, flip, on_ranks, same, state, weights


def fresh() -> dict[str, Any]:
    return state(0)


@pytest.fixture
def parent(place: Path) -> Path:
    """A run with checkpoints of steps 10 and 20."""
    with checkpointer(place / "parent") as ckpt:
        for step in (10, 20):
            ckpt.save(step, state(step))
    return place / "parent"


def begin(url: Path, start_from: Path | None, *steps: int, **options: Any) -> Restored:
    with checkpointer(url, start_from=start_from, **options) as ckpt:
        restored = ckpt.restore_or_init(fresh, like=state(0))
        for step in steps:
            ckpt.save(step, state(step))
    return restored


def test_a_warm_start_takes_the_weights_and_begins_at_step_0(parent: Path, place: Path) -> None:
    restored = begin(place / "child", parent)
    assert (restored.step, restored.generation) == (0, None)
    assert same(restored.components["params"], state(20)["params"])
    assert same(restored.components["optimizer"], state(0)["optimizer"])
    assert "forked from generation 000001-000000000020-1" in (restored.reason or "")
    run = read_run(file_store(place / "child"))
    assert run.parent is not None
    assert run.parent.run_id == read_run(file_store(parent)).run_id
    assert run.parent.components == ["params"]


def test_a_warm_start_is_safe_to_restart(parent: Path, place: Path) -> None:
    """Until the first commit the same weights again, whatever the parent has saved meanwhile; afterwards its own."""
    begin(place / "child", parent)
    with checkpointer(parent) as ckpt:
        ckpt.restore_or_init(fresh, like=state(0))
        ckpt.save(30, state(30)).result()
    assert same(begin(place / "child", parent).components["params"], state(20)["params"])
    begin(place / "child", parent, 5)
    restored = begin(place / "child", parent)
    assert (restored.step, restored.generation) == (5, GenerationId(3, 5, 1))
    assert same(dict(restored.components), state(5))


def test_a_restart_may_leave_the_parent_out(parent: Path, place: Path) -> None:
    begin(place / "child", parent)
    assert same(begin(place / "child", None).components["params"], state(20)["params"])


def test_a_run_that_began_without_a_parent_never_gets_one(parent: Path, place: Path) -> None:
    begin(place / "child", None)
    with pytest.raises(CallError, match="was created without start_from"):
        begin(place / "child", parent)
    begin(place / "child", None, 5)
    assert begin(place / "child", parent).step == 5


def test_there_is_no_parent(place: Path) -> None:
    with pytest.raises(NotFound, match="there is no run at"):
        begin(place / "child", place / "nowhere")
    begin(place / "empty", None)
    with pytest.raises(NotFound, match="no checkpoint to start from"):
        begin(place / "child", place / "empty")
    assert not (place / "child" / names.RUN).exists()


def test_a_parent_that_was_exchanged_or_damaged_is_refused(parent: Path, place: Path) -> None:
    begin(place / "child", parent)
    shutil.copytree(parent, place / "kept")
    flip(parent / names.ledger_key(GenerationId(1, 20, 1)), -10)
    with pytest.raises(DamageError):
        begin(place / "child", parent)
    shutil.rmtree(parent)
    begin(parent, None, 10, 20)
    with pytest.raises(ForeignRecord, match="this run was made from"):
        begin(place / "child", None)


def test_a_parent_without_its_data_is_damage(parent: Path, place: Path) -> None:
    begin(place / "child", parent)
    shutil.rmtree(parent / "generations")
    with pytest.raises(Damaged, match="is missing"):
        begin(place / "child", parent)


def test_the_parents_checkpoint_is_pinned(parent: Path, place: Path) -> None:
    begin(place / "child", parent)
    with checkpointer(parent, keep=Keep(last=2)) as ckpt:
        ckpt.restore_or_init(fresh, like=state(0))
        for step in (30, 40, 50):
            ckpt.save(step, state(step))
    assert [g.step for g in check_commits(file_store(parent))] == [50, 40, 20]
    assert notes.has(History.load(file_store(parent)).notes[GenerationId(1, 20, 1)], "pin")


def test_a_fork_goes_on_where_the_parent_was(parent: Path, place: Path) -> None:
    run_id = open_run(parent).fork(place / "child", step=10)
    assert run_id == read_run(file_store(place / "child")).run_id != read_run(file_store(parent)).run_id
    with checkpointer(place / "child") as ckpt:
        restored = ckpt.restore_or_init(fresh, like=state(0))
        assert restored.step == 10
        assert same(dict(restored.components), state(10))
        with pytest.raises(CallError, match="lies before step 10"):
            ckpt.save(5, state(5))
        manifest = ckpt.save(11, state(11)).result()
    assert manifest.parent is None
    assert begin(place / "child", None).step == 11


def test_weights_alone_never_go_on_at_the_parents_step(parent: Path, place: Path) -> None:
    with checkpointer(place / "child", start_from=parent) as ckpt:
        restored = ckpt.restore_or_init(lambda: {"params": state(0)["params"]}, like={"params": state(0)["params"]})
    assert restored.step == 0
    assert same(restored.components["params"], state(20)["params"])


def test_a_fork_may_take_some_components(parent: Path, place: Path) -> None:
    open_run(parent).fork(place / "child", components=["params", "optimizer"])
    restored = begin(place / "child", None)
    assert restored.step == 0
    assert same(restored.components["optimizer"], state(20)["optimizer"])
    assert same(restored.components["data"], state(0)["data"])


def test_a_fork_needs_a_place_of_its_own_and_what_it_names(parent: Path, place: Path) -> None:
    run = open_run(parent)
    with pytest.raises(CallError, match="holds a run already"):
        run.fork(parent)
    with pytest.raises(NotFound, match="no component 'ema'"):
        run.fork(place / "child", components=["ema"])
    with pytest.raises(NotFound, match="no checkpoint of step 7"):
        run.fork(place / "child", step=7)
    assert not (place / "child").exists()


def test_a_fork_that_asks_for_what_init_does_not_make(parent: Path, place: Path) -> None:
    open_run(parent).fork(place / "child")
    small = {"params": state(0)["params"], "more": {"x": np.zeros(1)}}
    with checkpointer(place / "child") as ckpt, pytest.raises(CallError, match="init\\(\\) makes only"):
        ckpt.restore_or_init(lambda: small, like=small)


def test_weights_can_be_forked_from(parent: Path, place: Path) -> None:
    with checkpointer(parent) as ckpt:
        ckpt.restore_or_init(fresh, like=state(0))
        ckpt.save(30, {"params": state(30)["params"]}, guarantee="weights").result()
    open_run(parent).fork(place / "child", step=30)
    restored = begin(place / "child", None)
    assert restored.step == 0
    assert same(restored.components["params"], state(30)["params"])


def test_all_ranks_begin_from_one_parent(place: Path) -> None:
    def first(link: Channel) -> None:
        with checkpointer(place / "parent", link) as ckpt:
            ckpt.restore_or_init(lambda: state(0, link.rank, 2), like=state(0, link.rank, 2))
            ckpt.save(10, state(10, link.rank, 2)).result()

    on_ranks(2, first)

    def child(link: Channel, size: int) -> Restored:
        with checkpointer(place / f"child-{size}", link, start_from=place / "parent") as ckpt:
            return ckpt.restore_or_init(lambda: state(0, link.rank, size), like=state(0, link.rank, size))

    for size in (2, 3):
        for rank, restored in enumerate(on_ranks(size, lambda link, size=size: child(link, size))):
            assert same(restored.components["params"], state(10, rank, size)["params"])

    def forked(link: Channel) -> Restored:
        with checkpointer(place / "fork", link) as ckpt:
            return ckpt.restore_or_init(lambda: state(0, link.rank, 2), like=state(0, link.rank, 2))

    open_run(place / "parent").fork(place / "fork")
    for rank, restored in enumerate(on_ranks(2, forked)):
        assert restored.step == 10
        assert same(restored.components["rng"], PerRank({"key": np.array([10, rank], np.uint32)}))


NEWEST = GenerationId(1, 20, 1)


def retire(url: Path, generation: GenerationId) -> None:
    store = file_store(url)
    ledger.retire(store, ledger.commit(store, read_run(store).run_id, generation), "by the test", clock=Clock())


def spoil(url: Path, generation: GenerationId) -> None:
    """Change every stored byte, and no size: only those who read notice."""
    for file in (url / names.state_prefix(generation) / "ranks").glob("*/d/*"):
        file.write_bytes(bytes(byte ^ 1 for byte in file.read_bytes()))


@pytest.mark.parametrize("kind", ["quarantine", "damaged"])
def test_nobody_starts_from_what_is_marked(parent: Path, place: Path, kind: str) -> None:
    run = open_run(parent)
    for generation in run.generations():
        notes.write(file_store(parent), run.identity.run_id, generation.id, kind, clock=Clock(), text="poisoned")
    with pytest.raises(NotFound, match="no checkpoint to start from"):
        begin(place / "child", parent)
    assert not (place / "child" / names.RUN).exists()


@pytest.mark.parametrize(("kind", "error"), [("quarantine", NotFound), ("damaged", Damaged)])
def test_a_parent_that_is_marked_after_the_fork_is_refused(parent: Path, place: Path, kind: str, error: type[Exception]) -> None:
    run = open_run(parent)
    run.fork(place / "child")
    notes.write(file_store(parent), run.identity.run_id, NEWEST, kind, clock=Clock(), text="poisoned")
    with pytest.raises(error, match=rf"{NEWEST} of .* is marked {kind}: poisoned\. Fork another generation"):
        begin(place / "child", None)


def test_a_parent_that_is_retired_is_refused_unless_a_pin_keeps_its_data(parent: Path, place: Path) -> None:
    open_run(parent).fork(place / "child", step=10)
    retire(parent, GenerationId(1, 10, 1))
    assert begin(place / "child", None).step == 10
    file_store(parent).delete_prefix(names.NOTES)
    with pytest.raises(Retired, match=r"was retired\. Fork another generation"):
        begin(place / "child", None)


def test_a_fork_that_retention_outruns_is_refused(parent: Path, place: Path) -> None:
    retire(parent, GenerationId(1, 10, 1))
    with pytest.raises(Retired, match="had been retired before"):
        open_run(parent).fork(place / "child", generation=GenerationId(1, 10, 1))
    assert not (place / "child" / names.RUN).exists()


def test_a_start_takes_the_newest_that_is_whole(parent: Path, place: Path, caplog: pytest.LogCaptureFixture) -> None:
    for file in (parent / names.generation_prefix(NEWEST) / "index").glob("*"):
        file.unlink()
    assert same(begin(place / "child", parent).components["params"], state(10)["params"])
    assert f"{NEWEST} of" in caplog.text
    shutil.rmtree(parent / "generations")
    with pytest.raises(NotFound, match=f"no checkpoint to start from\n  - {NEWEST}: .*missing"):
        begin(place / "other", parent)
    assert not (place / "other" / names.RUN).exists()


def test_damage_that_is_met_while_reading_is_noted_so_that_a_new_start_takes_another(parent: Path, place: Path) -> None:
    spoil(parent, NEWEST)
    with pytest.raises(Damaged, match=r"Fork another generation of it to a new URL: open_run\("):
        begin(place / "child", parent)
    assert notes.has(History.load(file_store(parent)).notes[NEWEST], "damaged")
    with pytest.raises(Damaged, match="is marked damaged"):
        begin(place / "child", parent)
    assert same(begin(place / "another", parent).components["params"], state(10)["params"])


def test_a_read_only_parent_is_enough(
    parent: Path, place: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def read_only(*_: Any) -> FaultyStore:
        puts = lambda operation, _key: operation == "put_if_absent"  # noqa: E731
        return FaultyStore(file_store(parent), puts, lambda: StoreError("read-only file system"), times=99)

    monkeypatch.setattr(forks, "open_store", read_only)
    assert same(begin(place / "child", parent).components["params"], state(20)["params"])
    assert "is not pinned" in caplog.text
    spoil(parent, NEWEST)
    with pytest.raises(Damaged, match="Fork another generation"):
        begin(place / "child", parent)


def test_a_fork_into_the_stages_of_a_pipeline(parent: Path, place: Path) -> None:
    """Each rank takes what it has of the parent's weights; what other ranks take is not too much."""
    own = [{"w": np.zeros(SHAPE, np.float32)}, {"b": np.zeros(3)}]

    def first(link: Channel) -> Restored:
        with checkpointer(place / "child", link, start_from=parent) as ckpt:
            return ckpt.restore_or_init(lambda: {"params": own[link.rank]}, like={"params": own[link.rank]})

    one, other = on_ranks(2, first)
    assert same(one.components["params"], {"w": weights(20)})
    assert same(other.components["params"], {"b": np.full(3, 20.0)})


def pins(url: Path, generation: GenerationId = NEWEST) -> list[notes.Note]:
    store = file_store(url)
    return [note for note in notes.read(store, read_run(store).run_id, generation) if note.kind == "pin"]


def test_a_target_that_cannot_be_written_leaves_no_pin(parent: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    puts = lambda operation, _key: operation == "put_if_absent"  # noqa: E731
    target = FaultyStore(file_store(place / "child"), puts, lambda: StoreError("read-only file system"), times=99)
    monkeypatch.setattr("ckptcore.run.open_store", lambda *_: target)
    run = Run(file_store(parent), Storage())
    with pytest.raises(StoreError, match="read-only"):
        run.fork(place / "child")
    assert pins(parent) == []


def test_tries_that_failed_after_the_pin_leave_one(parent: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: Any, **__: Any) -> Any:
        raise StoreError("gone")

    with monkeypatch.context() as patched:
        patched.setattr(forks, "create", killed)
        for _ in range(3):
            with pytest.raises(StoreError, match="gone"):
                open_run(parent).fork(place / "child")
    assert len(pins(parent)) == 1
    assert not list(file_store(place / "child").list())
    open_run(parent).fork(place / "child")
    open_run(parent).fork(place / "second")
    assert len(pins(parent)) == 1


def test_an_unreadable_pin_is_one(parent: Path, place: Path) -> None:
    file_store(parent).put_if_absent(names.note_key(NEWEST, "pin"), b"{")
    open_run(parent).fork(place / "child")
    assert len(pins(parent)) == 1


def test_a_fork_does_not_lie_in_its_parent_or_the_reverse(parent: Path, place: Path) -> None:
    (place / "link").symlink_to(parent)
    for child in (parent / "below", place, place / "link" / "below"):
        with pytest.raises(CallError, match="lie in each other"):
            open_run(parent).fork(child)
    assert pins(parent) == []
    assert not (parent / "below").exists()
    open_run(parent).fork(place / "parent-2")
