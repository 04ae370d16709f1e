"""Any sharding over any mesh into any other; a restore reads each chunk that it needs once, and no other."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import tensorstore as ts
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ckptcore.array_reader import ArrayReader
from ckptcore.array_results import Read
from jaxckpt import Storage, open_run
from tests.jaxckpt.procs import run_job
from tests.jaxckpt.runs import DERIVED, assert_same, checkpointer, resume, save

AXES = ("a", "b")
MESHES = [(1, 1), (2, 1), (1, 2), (2, 2), (4, 1), (1, 4)]


def mesh_of(shape: tuple[int, ...], order: Sequence[int]) -> Mesh:
    devices = np.array(jax.devices())[list(order)[: math.prod(shape)]]
    return Mesh(devices.reshape(shape), AXES[: len(shape)])


@st.composite
def shardings(draw: st.DrawFn, shape: tuple[int, ...]) -> NamedSharding:
    """A sharding that divides `shape`, over 1, 2 or 4 devices in any order; axes left out replicate."""
    mesh = mesh_of(draw(st.sampled_from(MESHES)), draw(st.permutations(range(4))))
    free = draw(st.permutations(AXES))
    spec: list[Any] = []
    for extent in shape:
        fitting = [
            axes
            for axes in ((), *((axis,) for axis in free), tuple(free))
            if extent % math.prod(mesh.shape[a] for a in axes) == 0
        ]
        axes = draw(st.sampled_from(fitting))
        spec.append(axes or None)
        free = [axis for axis in free if axis not in axes]
    return NamedSharding(mesh, PartitionSpec(*spec))


@st.composite
def moves(draw: st.DrawFn) -> tuple[np.ndarray, NamedSharding, NamedSharding, int]:
    shape = tuple(draw(st.lists(st.sampled_from([1, 2, 4, 6, 8]), min_size=0, max_size=3)))
    host = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
    return host, draw(shardings(shape)), draw(shardings(shape)), draw(st.sampled_from([8, 64, 1 << 20]))


@pytest.mark.slow
@given(moves())
@settings(max_examples=40)
def test_any_sharding_to_any_other(move: tuple[np.ndarray, NamedSharding, NamedSharding, int]) -> None:
    host, saved, wanted, chunk_bytes = move
    storage = Storage(context=ts.Context(), single_writer=True)
    save("memory://run", {"params": {"x": jax.device_put(host, saved)}}, storage=storage, chunk_bytes=chunk_bytes)
    like = {"x": jax.ShapeDtypeStruct(host.shape, host.dtype, sharding=wanted)}
    restored = open_run("memory://run", storage=storage).restore(like=like, components="params")
    assert_same(restored, {"x": jax.device_put(host, wanted)})


EIGHT = """
import math, sys
from pathlib import Path
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from jaxckpt import open_run
from tests.jaxckpt.runs import assert_same, save
devices = np.array(jax.devices())
host = np.arange(64 * 16, dtype=np.float32).reshape(64, 16)
places = [
    NamedSharding(Mesh(devices[:1].reshape(1, 1), ("a", "b")), P()),
    NamedSharding(Mesh(devices[[5, 2]].reshape(2, 1), ("a", "b")), P(None, "a")),
    NamedSharding(Mesh(devices[[7, 0, 3, 4]].reshape(2, 2), ("a", "b")), P("b", "a")),
    NamedSharding(Mesh(devices.reshape(4, 2), ("a", "b")), P("a", "b")),
    NamedSharding(Mesh(devices[::-1].reshape(2, 4), ("a", "b")), P(("a", "b"))),
    NamedSharding(Mesh(devices.reshape(2, 4), ("a", "b")), P(None, "b")),
    NamedSharding(Mesh(devices.reshape(2, 2, 2), ("a", "b", "c")), P("c", ("a", "b"))),
]
for number, saved in enumerate(places):
    url = Path(ARGS[0]) / str(number)
    save(url, {"params": {"x": jax.device_put(host, saved)}}, chunk_bytes=256)
    for wanted in places:
        like = {"x": jax.ShapeDtypeStruct(host.shape, host.dtype, sharding=wanted)}
        assert_same(open_run(url).restore(like=like, components="params"), {"x": jax.device_put(host, wanted)})
print("moved", len(places) ** 2)
"""


@pytest.mark.slow
def test_meshes_of_one_to_eight_devices(tmp_path: Path) -> None:
    assert "moved 49" in run_job(EIGHT, size=1, devices=8, args=[str(tmp_path)])[0]


@pytest.fixture
def chunk_reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each chunk was read from storage, by its key in the array database."""
    reads: Counter[str] = Counter()
    located = ArrayReader._located

    def counted(self: ArrayReader, chunks: Sequence[Read]) -> Iterator[Any]:
        reads.update(chunk.key for chunk in chunks if not chunk.key.endswith("zarr.json"))
        return located(self, chunks)

    monkeypatch.setattr(ArrayReader, "_located", counted)
    return reads


def test_each_chunk_is_read_once_whatever_needs_it(chunk_reads: Counter[str], tmp_path: Path, mesh: Mesh) -> None:
    host = np.arange(64, dtype=np.float32).reshape(8, 8)
    x = jax.device_put(host, NamedSharding(mesh, PartitionSpec("data", "model")))
    save(tmp_path / "run", {"params": {"x": x}}, chunk_bytes=64)
    for spec in (PartitionSpec(), PartitionSpec("data"), PartitionSpec(None, ("data", "model"))):
        chunk_reads.clear()
        like = {"x": jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, spec))}
        resume(tmp_path / "run", {"params": like})
        assert len(chunk_reads) == 4
        assert set(chunk_reads.values()) == {1}


def test_only_what_is_asked_for_is_read(chunk_reads: Counter[str], tmp_path: Path) -> None:
    state = {"params": {"x": np.ones(16)}, "optimizer": {"m": np.ones(16), "v": np.ones(16)}}
    save(tmp_path / "run", state, chunk_bytes=64)
    open_run(tmp_path / "run").restore(components="params")
    assert {key.split("/")[0] for key in chunk_reads} == {"params.x"}
    chunk_reads.clear()
    open_run(tmp_path / "run").restore(like={"v": np.zeros(16)}, components="optimizer", extra="ignore")
    assert {key.split("/")[0] for key in chunk_reads} == {"optimizer.v"}


def test_a_replicated_array_is_stored_once(tmp_path: Path, mesh: Mesh) -> None:
    host = np.arange(64, dtype=np.float32)
    partly = jax.device_put(host, NamedSharding(mesh, PartitionSpec("model")))
    everywhere = jax.device_put(host, NamedSharding(mesh, PartitionSpec()))
    manifest = save(tmp_path / "run", {"params": {"partly": partly, "everywhere": everywhere}})
    assert manifest.components["params"].bytes == 2 * host.nbytes


def test_the_next_job_resumes_on_another_mesh_only_if_told_to(tmp_path: Path, mesh: Mesh) -> None:
    from ckptcore.errors import GuaranteeError

    x = jax.device_put(np.arange(16.0, dtype=np.float32), NamedSharding(mesh, PartitionSpec("data")))
    save(tmp_path / "run", {"params": {"x": x}})
    line = Mesh(np.array(jax.devices()), ("line",))
    like = {"params": {"x": jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(line, PartitionSpec("line")))}}
    with pytest.raises(GuaranteeError, match=r"promises 'exact', this restore can keep 'coverage'(.|\n)*mesh"):
        resume(tmp_path / "run", like)
    with checkpointer(tmp_path / "run", derived=DERIVED) as saver:
        restored = saver.restore_or_init(dict, like=like, accept_guarantee="coverage")
    assert restored.guarantee == "coverage"
    np.testing.assert_array_equal(restored.components["params"]["x"], np.asarray(x))
