"""Checkpoints of `torch.distributed.checkpoint` as something to start from, real and hostile ones."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.distributed import checkpoint as dcp

from ckptcore import restore
from ckptcore.errors import CheckpointError, Damaged, DamageError, InvalidRecord, NotFound, UnsupportedFormat
from ckptcore.geometry import Box
from ckptcore.match import Rules
from tests.ckptcore.support import checkpointer
from tests.torchckpt.procs import run_job
from torchckpt import dcp_metadata, inert, leaves
from torchckpt.dcp_metadata import Chunk, decode
from torchckpt.dcp_source import DcpCheckpoint

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

MODEL: dict[str, torch.Tensor] = {
    "layers.0.weight": torch.arange(24.0).reshape(4, 6),
    "layers.0.bias": torch.arange(6).to(torch.bfloat16),
    "turned": torch.arange(12.0, dtype=torch.float64).reshape(3, 4).T,
    "part": torch.arange(100)[10:20],
    "scale": torch.tensor(3.5),
    "empty": torch.zeros(0, 5),
    "mask": torch.tensor([True, False]),
    "fp8": torch.arange(8.0).to(torch.float8_e4m3fn),
    "phase": torch.tensor([1 + 2j]),
}


def saved(path: Path, state: Mapping[str, Any]) -> Path:
    dcp.save(dict(state), checkpoint_id=path, no_dist=True)  # pyright: ignore[reportPrivateImportUsage] - it is public
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    state = {"model": MODEL, "optimizer": {"state": [torch.ones(2), {"x": torch.zeros(1)}], "lr": 0.1}, "step": 7}
    return saved(tmp_path_factory.mktemp("dcp") / "made", state)


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return Path(shutil.copytree(made, tmp_path / "copy"))


def whole(source: DcpCheckpoint) -> dict[str, np.ndarray]:
    return restore.host(source, [source.component], rules=Rules(), ranks={})[source.component]


def expected(tensors: Mapping[str, torch.Tensor] = MODEL) -> dict[str, np.ndarray]:
    return {name: leaves.to_numpy(tensor) for name, tensor in tensors.items()}


def equal(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> bool:
    return one.keys() == other.keys() and all(
        (one[name].dtype, one[name].shape, one[name].tobytes()) == (array.dtype, array.shape, array.tobytes())
        for name, array in other.items()
    )


# Reading


def test_the_tensors_under_a_prefix(made: Path) -> None:
    source = DcpCheckpoint(made)
    assert (source.names, source.framework) == (("model",), "torch")
    assert equal(whole(source), expected())
    assert whole(DcpCheckpoint(made, prefix="optimizer."))["state.0"].tolist() == [1, 1]
    assert "model.optimizer.state.1.x" in DcpCheckpoint(made, prefix="").leaves("model")
    with pytest.raises(NotFound, match=r"no tensor that starts with 'net\.'; it has \['model.*give prefix="):
        DcpCheckpoint(made, prefix="net.").leaves("model")


def test_a_bare_state_dict_under_other_names(tmp_path: Path) -> None:
    path = saved(tmp_path / "bare", torch.nn.Linear(2, 3).state_dict())
    source = DcpCheckpoint(path, component="params", prefix="", names={"weight": "dense.kernel"})
    assert set(source.leaves("params")) == {"params.dense.kernel", "params.bias"}


def test_boxes(made: Path) -> None:
    source = DcpCheckpoint(made)
    leaf = source.leaves("model")["model.layers.0.weight"]
    for box in (Box((1, 2), (3, 5)), Box((0, 0), (4, 6)), Box((2, 2), (2, 4))):
        assert np.array_equal(source.read([(leaf, [box])])[0][0], expected()["layers.0.weight"][box.slices()])


def test_a_description_tells_what_was_taken(made: Path, tmp_path: Path) -> None:
    first = DcpCheckpoint(made).describe()
    assert (first.format, first.url) == ("dcp", made.as_uri())
    assert DcpCheckpoint(shutil.copytree(made, tmp_path / "copy")).describe().digest == first.digest
    other = {**MODEL, "layers.0.bias": MODEL["layers.0.bias"] + 1}
    assert DcpCheckpoint(saved(tmp_path / "other", {"model": other})).describe().digest != first.digest


def test_a_digest_reads_each_chunk_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tied = torch.zeros(5 << 20)
    source = DcpCheckpoint(saved(tmp_path / "dcp", {"model": {"a": tied, "b": tied.clone(), "c": tied + 1}}))
    read: list[str] = []
    load = DcpCheckpoint._load
    monkeypatch.setattr(DcpCheckpoint, "_load", lambda self, name, chunk: (read.append(name), load(self, name, chunk))[1])
    found = {name: source.digest(leaf) for name, leaf in source.leaves("model").items()}
    assert found["model.a"] == found["model.b"] != found["model.c"]
    assert sorted(read) == ["a", "b", "c"]


def test_a_run_begins_with_weights_from_there(tmp_path: Path) -> None:
    path = saved(tmp_path / "dcp", {"model": {"w": torch.arange(6.0).reshape(2, 3), "b": torch.ones(3)}})
    like = {"params": {"w": np.zeros((2, 3), np.float32), "b": np.zeros(3, np.float32)}, "data": {"position": 0}}
    for _ in range(2):
        with checkpointer(tmp_path / "run", start_from=DcpCheckpoint(path, component="params")) as ckpt:
            restored = ckpt.restore_or_init(lambda: like, like=like)
        assert restored.step == 0
        assert np.array_equal(restored.components["params"]["w"], np.arange(6, dtype=np.float32).reshape(2, 3))
        assert f"started from the dcp checkpoint {path.as_uri()}" in (restored.reason or "")


SAVE = """
import torch.distributed.checkpoint as dcp
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
mesh = dist.init_device_mesh("cpu", (SIZE,))
whole = torch.arange(35.0).reshape(7, 5)
placed = {
    "rows": distribute_tensor(whole, mesh, [Shard(0)]),
    "columns": distribute_tensor(whole, mesh, [Shard(1)]),
    "both": distribute_tensor(whole, mesh, [Replicate()]),
    "one": distribute_tensor(torch.ones(1, 2), mesh, [Shard(0)]),
    "plain": whole + 1,
}
dcp.save({"model": placed, "optimizer": {"step": RANK}}, checkpoint_id=ARGS[0])
"""


@pytest.mark.slow
def test_a_checkpoint_of_several_ranks_is_read_chunk_by_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_job(SAVE, size=2, args=[str(tmp_path / "dcp")])
    source = DcpCheckpoint(tmp_path / "dcp")
    array = np.arange(35, dtype=np.float32).reshape(7, 5)
    found = whole(source)
    assert equal(found, {"rows": array, "columns": array, "both": array, "one": np.ones((1, 2), np.float32), "plain": array + 1})
    read: list[Chunk] = []
    load = DcpCheckpoint._load
    monkeypatch.setattr(DcpCheckpoint, "_load", lambda self, name, chunk: (read.append(chunk), load(self, name, chunk))[1])
    leaf = source.leaves("model")["model.rows"]
    assert np.array_equal(source.read([(leaf, [Box((1, 1), (3, 4)), Box((5, 0), (7, 1))])])[0][0], array[1:3, 1:4])
    assert [chunk.box for chunk in read] == [Box((0, 0), (4, 5)), Box((4, 0), (7, 5))]
    read.clear()
    source.read([(leaf, [Box((5, 0), (7, 1)), Box((4, 0), (5, 5))])])
    assert [chunk.box for chunk in read] == [Box((4, 0), (7, 5))]


# Hostile metadata


def text(value: str) -> bytes:
    return b"X" + len(value).to_bytes(4, "little") + value.encode()


def program(body: bytes) -> bytes:
    return b"\x80\x04" + body + b"."


ATTACKS: dict[str, Callable[[str], bytes]] = {
    "by name on the stack": lambda path: text("os") + text("mkdir") + b"\x93" + text(path) + b"\x85R",
    "by the module's other name": lambda path: text("posix") + text("mkdir") + b"\x93" + text(path) + b"\x85R",
    "by name in the file": lambda path: b"cos\nmkdir\n" + text(path) + b"\x85R",
    "by what torch offers": lambda path: b"ctorch\nload\n" + text(path) + b"\x85R",
    "by code": lambda path: b"cbuiltins\neval\n" + text(f"__import__('os').mkdir({path!r})") + b"\x85R",
    "after something harmless": lambda path: b"ctorch\nSize\n)\x85R0cos\nmkdir\n" + text(path) + b"\x85R",
    "in an old way": lambda path: b"(" + text(path) + b"ios\nmkdir\n",
    "in another old way": lambda path: b"(cos\nmkdir\n" + text(path) + b"o",
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_nothing_that_metadata_names_is_run(folder: Path, tmp_path: Path, attack: Callable[[str], bytes]) -> None:
    mark = tmp_path / "ran"
    (folder / ".metadata").write_bytes(program(attack(str(mark))))
    with pytest.raises(InvalidRecord) as refused:
        DcpCheckpoint(folder).leaves("model")
    assert ".metadata" in str(refused.value)
    assert not mark.exists()


def test_the_attack_of_these_tests_is_one(tmp_path: Path) -> None:
    """What is refused above does run where a pickle is loaded as one."""
    mark = tmp_path / "ran"

    class Attack:
        def __reduce__(self) -> Any:
            return (os.mkdir, (str(mark),))

    torch.save(Attack(), tmp_path / "attack")
    torch.load(tmp_path / "attack", weights_only=False)
    assert mark.exists()


def test_nothing_that_a_chunk_names_is_run(tmp_path: Path) -> None:
    mark = tmp_path / "ran"

    class Attack:
        def __reduce__(self) -> Any:
            return (os.mkdir, (str(mark),))

    path = saved(tmp_path / "one", {"model": {"w": torch.zeros(400)}})
    data = (path / ".metadata").read_bytes()
    torch.save(Attack(), path / "__0_0.distcp")
    length = (path / "__0_0.distcp").stat().st_size
    stored = DcpCheckpoint(path)._stored["w"].chunks[0]
    (path / ".metadata").write_bytes(data.replace(stored.length.to_bytes(2, "little"), length.to_bytes(2, "little")))
    assert DcpCheckpoint(path)._stored["w"].chunks[0].length == length
    with pytest.raises(Damaged, match=r"__0_0\.distcp, chunk \[0\] of 'model\.w': torch\.load refuses it.*mkdir"):
        whole(DcpCheckpoint(path))
    assert not mark.exists()


def test_no_cut_of_metadata_is_taken_for_metadata(folder: Path) -> None:
    data = (folder / ".metadata").read_bytes()
    for size in range(0, len(data), 7):
        with pytest.raises(DamageError):
            decode(data[:size], where="x")


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_spoilt_metadata_is_refused_or_means_something(made: Path, data: st.DataObject) -> None:
    """Whatever is done to it: an error of ours, or tensors whose chunks make them up."""
    content = bytearray((made / ".metadata").read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = decode(bytes(content), where="x")
    except CheckpointError:
        return
    for tensor in found.values():
        assert sum(chunk.box.size for chunk in tensor.chunks) == Box.whole(tensor.shape).size


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"N", "no Metadata where one is expected"),
        (b"}", "no Metadata"),
        (b"]K\x01", "no Metadata"),
        (b"0", "POP"),
        (b"h\x07", "not a pickle of plain data"),
        (b"R", "a value is missing"),
        (b"(R", "a value is missing"),
        (b"t", "a mark is missing"),
        (b"Na", "not a pickle of plain data"),
        (b"NNa", "what is no list"),
        (b"NNNs", "what is no dictionary"),
        (b"NNb", "what is no object"),
        (b"}(Nu", "not a pickle of plain data"),
        (b"NN\x93", "a name is no text"),
        (b"Q", "BINPERSID"),
    ],
)
def test_instructions_that_make_no_sense(body: bytes, message: str) -> None:
    with pytest.raises(InvalidRecord, match=message):
        decode(program(body), where="x")
    with pytest.raises(InvalidRecord, match=r"not a pickle|ends too early"):
        decode(b"", where="x")


def test_plain_data_is_described() -> None:
    body = b"(" + text("a") + b"K\x01X\x01\x00\x00\x00bG?\xf0\x00\x00\x00\x00\x00\x00u"
    found = inert.describe(program(b"}" + body), (), where="x")
    assert found.items == [("a", 1), ("b", 1.0)]


def test_a_chunk_does_not_lie_outside_of_the_folder(folder: Path) -> None:
    data = (folder / ".metadata").read_bytes()
    for path in (b"../_0.distcp", b"/_0_0.distcp", b"__0/./distcp", b"__0\x000.distcp"):
        assert len(path) == len(b"__0_0.distcp")
        with pytest.raises(InvalidRecord, match="no path inside of the checkpoint"):
            decode(data.replace(b"__0_0.distcp", path), where="x")


def test_a_chunk_that_is_transformed_is_refused() -> None:
    fields = inert.Pairs([("relative_path", "x"), ("offset", 0), ("length", 1), ("transform_descriptors", ["zstd"])])
    place = inert.Made("torch.distributed.checkpoint.filesystem._StorageInfo", [()], fields)
    sizes = [inert.Made("torch.Size", [(size,)]) for size in (0, 1)]
    chunk = inert.Pairs([("offsets", sizes[0]), ("sizes", sizes[1])])
    described = inert.Made("torch.distributed.checkpoint.metadata.ChunkStorageMetadata", [()], chunk)
    with pytest.raises(UnsupportedFormat, match="compressed or otherwise transformed"):
        dcp_metadata._chunk("w", described, {("w", (0,)): place}, "x")


@pytest.mark.parametrize(
    ("shape", "boxes", "fits"),
    [
        ((), [Box((), ())], True),
        ((), [], False),
        ((0, 3), [], True),
        ((4,), [Box((0,), (2,)), Box((2,), (4,))], True),
        ((4,), [Box((0,), (2,)), Box((3,), (4,))], False),
        ((4,), [Box((0,), (3,)), Box((2,), (4,))], False),
        ((4,), [Box((0,), (5,))], False),
        ((4,), [Box((0, 0), (4, 1))], False),
        ((4, 4), [Box((0, 0), (4, 1)), Box((0, 1), (2, 4)), Box((2, 1), (4, 4))], True),
        ((4, 4), [Box((0, 0), (4, 1)), Box((0, 1), (2, 4)), Box((2, 2), (4, 4))], False),
    ],
)
def test_chunks_make_up_an_array(shape: tuple[int, ...], boxes: list[Box], fits: bool) -> None:  # noqa: FBT001
    assert dcp_metadata._tile(shape, boxes) is fits


# Broken files


def test_a_folder_that_lacks_something(folder: Path) -> None:
    source = DcpCheckpoint(folder)
    assert source.leaves("model")
    (folder / "__0_0.distcp").unlink()
    with pytest.raises(NotFound, match=r"there is no file .*__0_0"):
        whole(source)
    (folder / ".metadata").unlink()
    with pytest.raises(NotFound, match=r"there is no file .*\.metadata"):
        DcpCheckpoint(folder).leaves("model")


def test_a_file_that_is_cut_short(folder: Path) -> None:
    path = folder / "__0_0.distcp"
    data = path.read_bytes()
    places = [(chunk.offset, chunk.length) for tensor in DcpCheckpoint(folder)._stored.values() for chunk in tensor.chunks]
    start, length = max(places)
    for size in (0, 100, start + 1, start + length // 2, start + length - 1):
        path.write_bytes(data[:size])
        with pytest.raises(Damaged, match=r"__0_0\.distcp"):
            whole(DcpCheckpoint(folder))


def test_a_chunk_of_another_shape_or_kind(tmp_path: Path) -> None:
    one = saved(tmp_path / "one", {"model": {"w": torch.zeros(400)}})
    length = (one / "__0_0.distcp").stat().st_size
    for number, content in enumerate(
        (torch.zeros(300), torch.zeros(400, dtype=torch.int32), {"w": 1}, torch.zeros(4).to_sparse())
    ):
        other = Path(shutil.copytree(one, tmp_path / f"copy{number}"))
        torch.save(content, other / "__0_0.distcp")
        data = (other / ".metadata").read_bytes()
        longer = (other / "__0_0.distcp").stat().st_size
        assert data.count(length.to_bytes(2, "little")) == 1
        (other / ".metadata").write_bytes(data.replace(length.to_bytes(2, "little"), longer.to_bytes(2, "little")))
        with pytest.raises(CheckpointError, match=r"__0_0\.distcp, chunk \[0\] of 'model\.w': (holds|a sparse)"):
            whole(DcpCheckpoint(other))


@pytest.mark.filterwarnings("ignore:ComplexHalf support")
def test_a_dtype_that_has_no_place(tmp_path: Path) -> None:
    path = saved(tmp_path / "odd", {"model": {"w": torch.zeros(4, dtype=torch.complex32)}})
    with pytest.raises(CheckpointError, match=r"model\.w.*complex32"):
        DcpCheckpoint(path).leaves("model")
