"""`save` returns when its snapshot is safe; what fails in the background is told once, and nothing of it stays."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ckptcore import writer
from ckptcore.errors import CallError, SaveFailed, StagingLimit, Superseded
from jaxckpt import Event, open_run
from tests.jaxckpt.procs import run_job
from tests.jaxckpt.runs import assert_same, bits, checkpointer, resume

pytestmark = pytest.mark.slow


class Gate:
    """Holds the background half of every save until it is opened."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._write = writer.write

    def write(self, *args: Any, **options: Any) -> Any:
        assert self._open.wait(30)
        return self._write(*args, **options)

    def open(self) -> None:
        self._open.set()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate()
    monkeypatch.setattr(writer, "write", gate.write)
    yield gate
    gate.open()


def state_of(mesh: Mesh, number: int) -> dict[str, jax.Array]:
    host = np.random.default_rng(number).standard_normal((256, 64)).astype(np.float32)
    return {
        "sharded": jax.device_put(host, NamedSharding(mesh, PartitionSpec("data", "model"))),
        "partly": jax.device_put(host[:32], NamedSharding(mesh, PartitionSpec("model"))),
        "everywhere": jax.device_put(host[:8], NamedSharding(mesh, PartitionSpec())),
        "single": jnp.asarray(host[:16]),
        "bf16": jnp.asarray(host, jnp.bfloat16),
        "int4": jax.device_put(jnp.asarray(host[:4]).astype(jnp.int4), NamedSharding(mesh, PartitionSpec("data"))),
        "key": jax.random.split(jax.random.key(number), 4),
        "count": jnp.int32(number),
    }


def _next(state: Any) -> Any:
    return jax.tree.map(lambda x: x if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else (x + 1).astype(x.dtype), state)


donating_step = jax.jit(_next, donate_argnums=0)


def test_donated_buffers_never_leak_in(mesh: Mesh, tmp_path: Path, gate: Gate) -> None:
    # From a state of its own: looking at an array makes JAX keep its buffer.
    expected = jax.tree.map(bits, donating_step(state_of(mesh, 1)))
    state = donating_step(state_of(mesh, 1))
    with checkpointer(tmp_path / "run") as saver:
        handle = saver.save(1, {"params": state})
        state = donating_step(state)
        for _ in range(4):
            given, state = state, donating_step(state)
            assert all(leaf.is_deleted() for leaf in given.values())
        assert not handle.done()
        gate.open()
        handle.result(30)
    assert jax.tree.map(bits, resume(tmp_path / "run", {"params": state}).components["params"]) == expected


def test_many_donating_steps_beside_many_saves(mesh: Mesh, tmp_path: Path) -> None:
    steps = range(1, 9)
    state, reference = state_of(mesh, 2), state_of(mesh, 2)
    with checkpointer(tmp_path / "run") as saver:
        for step in steps:
            state = donating_step(state)
            saver.save(step, {"params": state})
            state = donating_step(donating_step(state))
    run = open_run(tmp_path / "run")
    for step in steps:
        reference = donating_step(reference)
        wanted = jax.tree.map(lambda leaf: bits(leaf.copy()), reference)
        assert jax.tree.map(bits, run.restore(like=state, components="params", step=step)) == wanted
        reference = donating_step(donating_step(reference))


def test_numpy_leaves_may_be_changed_in_place(tmp_path: Path, gate: Gate) -> None:
    whole = np.arange(12.0)
    state = {"whole": whole, "view": whole[::2], "table": np.ones((3, 4), np.int8).T, "mask": np.array([True, False])}
    expected = jax.tree.map(np.copy, state)
    with checkpointer(tmp_path / "run") as saver:
        handle = saver.save(1, {"params": state})
        for array in (whole, state["table"], state["mask"]):
            array[...] = 0
        gate.open()
        handle.result(30)
    assert_same(resume(tmp_path / "run", {"params": expected}).components["params"], expected)


class Loader:
    """Gives out its own dict: what a careless loader does."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {"epoch": 1, "seen": [1, 2], "buffer": np.arange(3)}

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


def test_containers_may_be_changed_in_place(tmp_path: Path, gate: Gate) -> None:
    loader, params, metadata = Loader(), {"w": [np.ones(2), 1]}, {"note": ["before"]}
    with checkpointer(tmp_path / "run") as saver:
        handle = saver.save(1, {"params": params, "data": loader}, metadata=metadata)
        loader.state["epoch"] = 2
        loader.state["seen"].append(3)
        loader.state["buffer"] += 7
        params["w"][1] = 2
        metadata["note"].append("after")
        gate.open()
        handle.result(30)
    again = Loader()
    restored = resume(tmp_path / "run", {"params": {"w": [np.zeros(2), 0]}, "data": again})
    assert_same(restored.components["params"], {"w": [np.ones(2), 1]})
    assert (again.state["epoch"], again.state["seen"], again.state["buffer"].tolist()) == (1, [1, 2], [0, 1, 2])
    manifest = open_run(tmp_path / "run").head()
    assert manifest is not None
    assert manifest.metadata == {"note": ["before"]}


def test_a_bound_that_is_too_small_is_told_before_anything_is_staged(tmp_path: Path) -> None:
    small, large = {"x": jnp.ones(8)}, {"x": jnp.ones(64), "host": np.ones(8)}
    with checkpointer(tmp_path / "run", max_staging_bytes=100) as saver:
        with pytest.raises(StagingLimit, match=r"rank 0: the snapshot takes 320 bytes, max_staging_bytes allows 100"):
            saver.save(1, {"params": large})
        assert not list(tmp_path.glob("run/generations/*/state"))
        assert saver.save(1, {"params": small}).result(30).step == 1
    assert_same(resume(tmp_path / "run", {"params": small}).components["params"], small)


@pytest.fixture
def fail_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """`fail_at("written")` makes the next save fail when it gets there."""
    tell = writer.tell

    def arm(kind: str) -> None:
        armed = [kind]

        def fail(listener: Any, event: Event) -> None:
            tell(listener, event)
            if event.kind in armed:
                armed.clear()
                raise OSError("the disk is on fire")

        monkeypatch.setattr(writer, "tell", fail)

    return arm


def test_metrics_are_taken_at_once(tmp_path: Path, gate: Gate) -> None:
    loss = jnp.float32(0.5)
    with checkpointer(tmp_path / "run") as saver:
        with pytest.raises(CallError, match="metric 'loss' is 'low', expected a number"):
            saver.save(1, {"params": {"x": 1}}, metrics={"loss": "low"})  # pyright: ignore[reportArgumentType]
        handle = saver.save(1, {"params": {"x": 1}}, metrics={"loss": loss, "step": 1})  # pyright: ignore[reportArgumentType]
        loss.delete()
        gate.open()
        handle.result(30)
        (note,) = open_run(tmp_path / "run").checkpoint().store.list("notes/")
    assert b'"loss":{"$float":"0.5"}' in (tmp_path / "run" / note).read_bytes()


@pytest.mark.parametrize("kind", ["chunk-written", "written"])
def test_a_failed_save_is_told_by_result_and_the_next_works(kind: str, tmp_path: Path, fail_at: Callable[[str], None]) -> None:
    fail_at(kind)
    state = {"x": jnp.arange(4)}
    with checkpointer(tmp_path / "run") as saver:
        handle = saver.save(1, {"params": state})
        for _ in range(2):
            with pytest.raises(
                SaveFailed, match=r"rank 0 could not write its part of 000001-000000000001-1: the disk is on fire"
            ):
                handle.result(30)
        assert saver.save(2, {"params": state}).result(30).step == 2
    run = open_run(tmp_path / "run")
    assert [(known.id.step, known.state) for known in run.generations()] == [(1, "aborted"), (2, "committed")]


def test_a_failed_save_is_told_by_the_next_save_once(tmp_path: Path, fail_at: Callable[[str], None]) -> None:
    fail_at("written")
    with checkpointer(tmp_path / "run") as saver:
        saver.save(1, {"params": {"x": 1}})
        with pytest.raises(SaveFailed, match="on fire"):
            saver.save(2, {"params": {"x": 2}})
        saver.save(2, {"params": {"x": 2}})
    assert resume(tmp_path / "run", {"params": {"x": 0}}).step == 2


def test_a_failed_save_is_told_by_close_once(tmp_path: Path, fail_at: Callable[[str], None]) -> None:
    fail_at("written")
    saver = checkpointer(tmp_path / "run")
    saver.save(1, {"params": {"x": 1}})
    with pytest.raises(SaveFailed, match="on fire"):
        saver.close()
    saver.close()
    with pytest.raises(CallError, match="closed"):
        saver.save(2, {"params": {"x": 2}})


def test_leaving_the_block_with_an_error_keeps_that_error(tmp_path: Path, fail_at: Callable[[str], None]) -> None:
    fail_at("written")
    with pytest.raises(ZeroDivisionError) as caught:  # noqa: PT012, SIM117 -- the block is what is tested
        with checkpointer(tmp_path / "run") as saver:
            saver.save(1, {"params": {"x": 1}})
            raise ZeroDivisionError
    assert "on fire" in caught.value.__notes__[0]


def test_a_step_can_be_saved_again_after_it_failed(tmp_path: Path, fail_at: Callable[[str], None]) -> None:
    fail_at("written")
    with checkpointer(tmp_path / "run") as saver:
        with pytest.raises(SaveFailed):
            saver.save(1, {"params": {"x": 1}}).result(30)
        assert saver.save(1, {"params": {"x": 2}}).result(30).generation == "000001-000000000001-2"
    assert resume(tmp_path / "run", {"params": {"x": 0}}).components["params"] == {"x": 2}


def test_a_handle_tells_when_it_is_done(tmp_path: Path, gate: Gate) -> None:
    told = threading.Event()
    with checkpointer(tmp_path / "run") as saver:
        handle = saver.save(1, {"params": {"x": 1}})
        handle.add_done_callback(lambda which: told.set() if which is handle and which.done() else None)
        assert not handle.done()
        assert not told.is_set()
        gate.open()
        assert handle.result(30).step == 1
        assert told.wait(30)


def test_the_next_save_waits_for_the_one_before(tmp_path: Path) -> None:
    events: list[tuple[str, int]] = []

    def listen(event: Event) -> None:
        if event.kind in ("staged", "committed") and event.generation is not None:
            events.append((event.kind, event.generation.step))

    with checkpointer(tmp_path / "run", on_event=listen) as saver:
        for step in (1, 2, 3):
            saver.save(step, {"params": {"x": jnp.ones(8)}})
    assert events == [(kind, step) for step in (1, 2, 3) for kind in ("staged", "committed")]


def test_a_call_that_cannot_be_served_leaves_nothing_behind(tmp_path: Path) -> None:
    from ckptcore.errors import GuaranteeError, UnsupportedLeaf

    with checkpointer(tmp_path / "run", derived={}) as saver:
        with pytest.raises(UnsupportedLeaf, match=r"params\['f'\]: builtin_function_or_method"):
            saver.save(1, {"params": {"f": len}})
        with pytest.raises(GuaranteeError, match="optimizer: no component holds it"):
            saver.save(1, {"params": {"x": 1}})
        with pytest.raises(CallError, match="component name '5' must be letters"):
            saver.save(1, {5: {"x": 1}}, guarantee="weights")  # pyright: ignore[reportArgumentType]
        with pytest.raises(CallError, match="step is a float, expected an int"):
            saver.save(1.0, {"params": {"x": 1}}, guarantee="weights")  # pyright: ignore[reportArgumentType]
        assert saver.save(1, {"params": {"x": 1}}, guarantee="weights").result(30).guarantee.level == "weights"
        with pytest.raises(CallError, match="lies before step 1"):
            saver.save(0, {"params": {"x": 1}}, guarantee="weights")


def test_a_superseded_job_stops_with_a_clear_error(tmp_path: Path) -> None:
    with checkpointer(tmp_path / "run") as older:
        older.save(1, {"params": {"x": 1}}).result(30)
        with checkpointer(tmp_path / "run") as newer:
            newer.restore(like={"params": {"x": 0}})
            with pytest.raises(Superseded, match=r"incarnation 2 .*has been claimed"):
                older.save(2, {"params": {"x": 2}}).result(30)
            newer.save(2, {"params": {"x": 3}})
    assert resume(tmp_path / "run", {"params": {"x": 0}}).components["params"] == {"x": 3}


DISK_FULL = """
import resource, signal
import numpy as np
from ckptcore.errors import SaveFailed, StoreFull
from tests.jaxckpt.runs import assert_same, checkpointer
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
state = {"x": np.random.default_rng(0).standard_normal(200_000)}
with checkpointer(ARGS[0]) as saver:
    saver.save(1, {"params": state}).result(30)
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, unlimited[1]))
    try:
        saver.save(2, {"params": state}).result(30)
    except SaveFailed as error:
        assert isinstance(error.__cause__, StoreFull), repr(error.__cause__)
        print("told:", error)
    saver.wait()
    assert_same(saver.restore(like={"params": state}).components["params"], state)
    resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    print("then:", saver.save(3, {"params": state}).result(30).step)
"""


def test_a_full_disk(tmp_path: Path) -> None:
    output = run_job(DISK_FULL, size=1, devices=1, args=[str(tmp_path / "run")])[0]
    assert "told: rank 0 could not write its part of" in output
    assert "then: 3" in output
