"""Messages between ranks, and that ranks agree: real jobs of two processes."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from typing import Any

import jax
import pytest

from ckptcore.channel import LocalChannel
from ckptcore.errors import CallError, CheckpointError
from jaxckpt import channel
from jaxckpt.backend import JaxBackend
from jaxckpt.channel import JaxChannel
from tests.jaxckpt.procs import run_job

MESSAGES = """
    from ckptcore.errors import DeadlineExceeded
    from jaxckpt.backend import JaxBackend

    first, second = JaxBackend("a").channel(), JaxBackend("a").channel()
    # Channels of other runs may be opened in another order.
    others = {label: JaxBackend(label).channel() for label in ("bc" if RANK else "cb")}

    assert (first.rank, first.size) == (RANK, SIZE)
    assert first.broadcast(b"x" * 5_000_000 if RANK == 0 else None, timeout=30, what="large") == b"x" * 5_000_000
    assert first.broadcast(b"" if RANK == 0 else None, timeout=30, what="empty") == b""
    assert second.gather(b"s%d" % RANK, timeout=30, what="second") == [b"s0", b"s1"]
    for turn in range(5):
        assert first.gather(b"%d/%d" % (turn, RANK), timeout=30, what="turn") == [b"%d/%d" % (turn, rank) for rank in range(SIZE)]
    assert len(first._written) == 1 + (RANK == 0)
    for label, channel in sorted(others.items()):
        assert channel.gather(label.encode(), timeout=30, what="other") == [label.encode()] * SIZE

    if RANK == 0:
        try:
            second.gather(b"", timeout=0.5, what="agree on the step")
        except DeadlineExceeded as error:
            print("LATE", error)
    else:
        try:
            others["b"].broadcast(None, timeout=0.5, what="what nobody sends")
        except DeadlineExceeded as error:
            print("LATE", error)
    first.gather(b"", timeout=30, what="the end")
    print("DONE")
"""

AGREEMENT = """
    import json
    import numpy as np
    import jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec as P
    from ckptcore import records
    from ckptcore.components import PerRank, RankZero
    from ckptcore.digests import digest
    from ckptcore.geometry import Box
    from jaxckpt.backend import JaxBackend, flatten, target
    from tests.jaxckpt.memory import Memory, plan_of, stage

    channel = JaxBackend().channel()
    grid = np.array(jax.devices()).reshape(2, 2)
    meshes = {"rows": jax.sharding.Mesh(grid, ("a", "b")), "permuted": jax.sharding.Mesh(grid.T[::-1], ("a", "b"))}
    value = np.arange(96, dtype=np.float32).reshape(8, 12)

    def put(mesh, *spec, value=value):
        sharding = NamedSharding(meshes[mesh], P(*spec))
        return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])

    specs = [(), ("a",), (None, "b"), ("a", "b"), (("b", "a"),)]
    params = {f"{mesh}-{spec}": put(mesh, *spec) for mesh in meshes for spec in specs}
    keys = jax.random.wrap_key_data(put("rows", "a", value=np.arange(8, dtype=np.uint32).reshape(4, 2)))
    assert keys.shape == (4,)
    components = {
        "params": params,
        "opt_state": {"local": jnp.arange(40.0), "count": 3, "step": jax.device_put(2, NamedSharding(meshes["rows"], P()))},
        "rng": {"keys": keys},
        "data": PerRank({"mine": np.full(RANK + 2, RANK), "jax": jnp.full(3, RANK), f"only{RANK}": "x"}),
        "extra": RankZero({"stats": np.full(20, RANK)}),
    }
    flat = flatten(components)
    plan = plan_of(flat, rank=RANK)
    shared = {name: table for name, table in plan.layout.components.items() if table.scope == "global"}
    layouts = channel.gather(records.encode(records.Layout(components=shared)), timeout=30, what="layouts")
    assert layouts[0] == layouts[1]
    topology = JaxBackend().topology(flat.meshes)
    assert len(topology.meshes) == 2 and (topology.participants, topology.devices) == (2, 4)
    topologies = channel.gather(records.encode(records.Claim(
        run_id="00000000-0000-0000-0000-000000000000", incarnation=1, nonce="00000000", created="2026-01-01T00:00:00Z",
        topology=topology)), timeout=30, what="topology")
    assert topologies[0] == topologies[1]

    # Every chunk of a global array is owned exactly once; bytes are balanced.
    owns = [json.loads(text) for text in channel.gather(json.dumps(plan.own).encode(), timeout=30, what="own")]
    for name, grid in plan.grids.items():
        if not name.startswith("data"):
            cells = [cell for own in owns for cell in own.get(name, [])]
            assert sorted(cells) == list(range(grid.size)), name
    sizes = [int(text) for text in channel.gather(b"%d" % plan.own_bytes, timeout=30, what="bytes")]
    assert max(sizes) <= 1.2 * min(sizes), sizes

    staged = stage(flat, plan)
    assert set(staged.whole) == {"opt_state.local"}
    assert digest(staged.whole["opt_state.local"]) == digest(np.arange(40, dtype=np.float32))
    assert ("extra.stats" in plan.own) == (RANK == 0)

    # A whole checkpoint in each process, from both processes' chunks.
    memory = Memory(plan.layout, {leaf.name: leaf.value for leaf in flat.values})
    for rank in range(SIZE):
        # A stand-in for reading the other rank's files: the same chunks, cut from what both know.
        for name, cells in owns[rank].items():
            if rank != RANK and name.startswith("params."):
                memory.chunks.setdefault(name, {}).update(
                    {cell: value[plan.grids[name].cell(cell).slices()] for cell in cells})
            elif rank == RANK and name.startswith("params."):
                for cell, chunk in zip(cells, staged.chunks[name], strict=True):
                    np.testing.assert_array_equal(chunk, value[plan.grids[name].cell(cell).slices()])
                    memory.chunks.setdefault(name, {})[cell] = chunk

    abstract = {name: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=list(params.values())[-i].sharding)
                for i, (name, a) in enumerate(params.items())}
    wanted = target({"params": abstract})
    assert all(len(leaf.boxes) <= 2 for leaf in wanted.wanted)
    restored = memory.restore(wanted)["params"]
    for name, array in restored.items():
        assert array.sharding == abstract[name].sharding
        for shard in array.addressable_shards:
            np.testing.assert_array_equal(shard.data, value[shard.index])
    # The restored arrays are global: a computation over both processes gives the whole sum.
    assert all(float(jax.jit(jnp.sum)(array)) == value.sum() for array in restored.values())

    # A weak scalar on all devices, and typed keys over both processes.
    memory.chunks["opt_state.step"] = {0: np.int32(2).reshape(())}
    data = np.arange(8, dtype=np.uint32).reshape(4, 2)
    grid = plan.grids["rng.keys"]
    memory.chunks["rng.keys"] = {cell: data[grid.cell(cell).slices()] for cell in range(grid.size)}
    like = {"opt_state": {"step": components["opt_state"]["step"]}, "rng": components["rng"]}
    again = memory.restore(target(like))
    step, restored_keys = again["opt_state"]["step"], again["rng"]["keys"]
    assert step.weak_type and step.sharding == like["opt_state"]["step"].sharding and not step.is_fully_addressable
    assert jax.jit(lambda x: x + 1)(step).weak_type
    assert restored_keys.dtype == keys.dtype and restored_keys.sharding == keys.sharding
    for shard in jax.random.key_data(restored_keys).addressable_shards:
        np.testing.assert_array_equal(shard.data, data[shard.index])
    channel.gather(b"", timeout=30, what="the end")
    print("DONE")
"""


@pytest.mark.slow
def test_two_processes_exchange_messages_and_name_who_is_late() -> None:
    first, second = run_job(MESSAGES)
    assert "LATE agree on the step: nothing from rank 1 of 2 after 0.5 s" in first
    assert "LATE what nobody sends: nothing from rank 0 of 2 after 0.5 s" in second
    assert "DONE" in first
    assert "DONE" in second


@pytest.mark.slow
def test_two_processes_agree_on_layout_owners_and_topology_and_restore_each_others_chunks() -> None:
    assert all("DONE" in output for output in run_job(AGREEMENT))


class Service:
    """The part of JAX's distributed client that a channel uses, for ranks that are threads; counts the requests of each."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.values: dict[str, bytes] = {}
        self.openings: Counter[str] = Counter()
        self.requests: Counter[str] = Counter()

    def key_value_increment(self, key: str, number: int) -> int:
        self.openings[key] += number
        return self.openings[key]

    def key_value_set_bytes(self, key: str, data: bytes) -> None:
        with self.changed:
            self.requests[threading.current_thread().name] += 1
            assert key not in self.values
            self.values[key] = data
            self.changed.notify_all()

    def blocking_key_value_get_bytes(self, key: str, milliseconds: int) -> bytes:
        with self.changed:
            self.requests[threading.current_thread().name] += 1
            if not self.changed.wait_for(lambda: key in self.values, milliseconds / 1000):
                raise jax.errors.JaxRuntimeError("DEADLINE_EXCEEDED")
            return self.values[key]

    def key_value_try_get_bytes(self, key: str) -> bytes:
        with self.changed:
            self.requests[threading.current_thread().name] += 1
            if key not in self.values:
                raise jax.errors.JaxRuntimeError("NOT_FOUND")
            return self.values[key]

    def key_value_delete(self, key: str) -> None:
        with self.changed:
            self.requests[threading.current_thread().name] += 1
            del self.values[key]


def gathered(service: Service, ranks: Iterable[int], size: int, timeout: float, turns: int = 1) -> dict[int, Any]:
    """What each of `ranks` gets in the last of `turns` exchanges, or raises."""

    def work(rank: int) -> None:
        link = JaxChannel(service, rank=rank, size=size, label="")
        try:
            for turn in range(turns):
                outcomes[rank] = link.gather(b"%d of turn %d" % (rank, turn), timeout=timeout, what="agree")
        except CheckpointError as error:
            outcomes[rank] = error

    outcomes: dict[int, Any] = {}
    threads = [threading.Thread(target=work, args=(rank,), name=f"{rank}") for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    return outcomes


def test_an_exchange_costs_a_rank_a_few_requests_whatever_the_size_of_the_job() -> None:
    service, size = Service(), 40
    outcomes = gathered(service, range(size), size, 30.0, turns=3)
    assert all(outcome == [b"%d of turn 2" % rank for rank in range(size)] for outcome in outcomes.values())
    assert max(service.requests[f"{rank}"] for rank in range(1, size)) <= 9
    assert service.requests["0"] <= 3 * (size + 4)
    assert len(service.values) == size + 1


def test_who_is_late_is_named_alike_on_all_ranks() -> None:
    outcomes = gathered(Service(), [0, 1, 3], 5, 0.3)
    assert {str(outcome) for outcome in outcomes.values()} == {
        "agree: nothing from ranks 2, 4 of 5 after 0.3 s. Look at the logs there, then restart the job."
    }


def test_a_rank_0_that_never_comes_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "_LINGER", 0.1)
    outcomes = gathered(Service(), [1, 2], 3, 0.1)
    assert all("nothing from rank 0 of 3" in str(outcome) for outcome in outcomes.values())


def test_one_process_needs_no_service() -> None:
    link = JaxBackend("run").channel()
    assert isinstance(link, LocalChannel)
    assert (link.rank, link.size) == (0, 1)
    assert link.broadcast(b"x", timeout=0, what="x") == b"x"
    assert link.gather(b"y", timeout=0, what="y") == [b"y"]
    with pytest.raises(CallError, match="hand-over: rank 0 broadcasts without data"):
        link.broadcast(None, timeout=0, what="hand-over")


def test_versions_name_the_libraries() -> None:
    versions = JaxBackend().versions()
    assert {"python", "jax", "jaxlib", "numpy", "tensorstore"} <= versions.keys()
