"""A checkpoint in another format as a run of its own: through the protocol, in bounded memory, weights only."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from threading import Event
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from ckptcore.errors import CallError, Damaged, NotFound, SaveFailed, UnsupportedLeaf
from ckptcore.formats import hosting
from ckptcore.formats.foreign import Foreign, Tensor
from ckptcore.formats.importing import import_source
from ckptcore.formats.safetensors import Safetensors
from ckptcore.geometry import Box
from ckptcore.handle import SaveHandle
from ckptcore.history import read_run
from ckptcore.run import open_run
from tests.ckptcore.support import checkpointer, file_store, same, state, weights
from tests.spec.checker import check_run

TENSORS = {
    "layers.0.weight": np.arange(24, dtype=np.float32).reshape(4, 6),
    "layers.0.scale": np.arange(6).astype(ml_dtypes.bfloat16),
    "count": np.array(7),
    "empty": np.zeros((0, 5), np.int8),
    "mask": np.array([True, False]),
}


class Counted(Foreign):
    """Tensors that are made when they are read; what is read at a time is noted, and one of them may be damaged."""

    format = "counted"

    def __init__(self, tensors: Mapping[str, np.ndarray], damaged: str = "", values: Mapping[str, Any] | None = None) -> None:
        super().__init__("/counted", component="params")
        self.tensors, self.damaged, self.stated = dict(tensors), damaged, values or {}
        self.reads: list[int] = []

    def _tensors(self) -> Mapping[str, Tensor]:
        return {name: Tensor(array.dtype.name, array.shape) for name, array in self.tensors.items()}

    def _values(self) -> Mapping[str, Any]:
        return self.stated

    def _read(self, tensor: str, boxes: Sequence[Box]) -> list[np.ndarray]:
        if tensor == self.damaged:
            raise Damaged(f"{tensor} is damaged")
        found = [self.tensors[tensor][(..., *box.slices())].copy() for box in boxes]
        self.reads.append(sum(array.nbytes for array in found))
        return found

    def _heads(self, tensors: Sequence[str]) -> Iterator[bytes]:
        return (self.tensors[name].tobytes()[:16] for name in tensors)


def test_what_is_imported_is_what_is_restored(place: Path) -> None:
    save_file(TENSORS, place / "model.safetensors")
    source = Safetensors(place / "model.safetensors", component="model")
    told: list[int] = []
    manifest = import_source(source, place / "run", progress=told.append)
    run = open_run(place / "run")
    assert same(run.restore(components="model"), TENSORS)
    assert (manifest.step, manifest.guarantee.level, manifest.topology.framework) == (0, "weights", "torch")
    assert run.identity.origin == source.describe()
    assert run.verify(deep=True).ok
    assert check_run(place / "run") == []
    assert sum(told) == source.nbytes == sum(array.nbytes for array in TENSORS.values())


def test_values_and_names_that_say_nothing_of_weights(place: Path) -> None:
    source = Counted({"w": np.ones(3)}, values={"step": 7, "name": "x", "none": None})
    source.component = "ema"
    manifest = import_source(source, place / "run")
    assert same(open_run(place / "run").restore(components="ema"), {"w": np.ones(3), "step": 7, "name": "x", "none": None})
    assert manifest.guarantee.derived == {"parameters": "ema"}
    assert check_run(place / "run") == []


def test_large_arrays_are_read_in_parts(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosting, "PART_BYTES", 40 << 20)
    big = np.arange(24 << 20, dtype=np.uint32)
    source = Counted({"big": big, "small": big[:100]})
    import_source(source, place / "run")
    assert max(source.reads) <= 40 << 20
    assert sum(source.reads) == big.nbytes + 400
    assert open_run(place / "run").restore(components="params")["big"].tobytes() == big.tobytes()


def test_a_run_starts_from_what_was_imported(place: Path) -> None:
    import_source(Counted({"w": weights(20), "b": np.full(3, 20.0)}), place / "imported")
    with checkpointer(place / "run", start_from=place / "imported") as ckpt:
        restored = ckpt.restore_or_init(lambda: state(0), like=state(0))
    assert same(restored.components["params"], state(20)["params"])


def test_a_run_that_has_checkpoints_is_refused(place: Path) -> None:
    import_source(Counted(TENSORS), place / "run")
    with pytest.raises(CallError, match="holds a run with checkpoints already; import to a new URL"):
        import_source(Counted(TENSORS), place / "run")


def test_an_import_that_failed_is_taken_up_again_from_the_same_source(place: Path) -> None:
    with pytest.raises(SaveFailed, match="mask is damaged"):
        import_source(Counted(TENSORS, damaged="mask"), place / "run")
    run_id = read_run(file_store(place / "run")).run_id
    with pytest.raises(CallError, match="which is another one, or has changed"):
        import_source(Counted(TENSORS | {"more": np.ones(2)}), place / "run")
    assert import_source(Counted(TENSORS), place / "run").run_id == run_id
    assert same(open_run(place / "run").restore(components="params"), TENSORS)
    assert check_run(place / "run") == []


def test_nothing_is_made_from_a_source_that_cannot_be_opened(place: Path) -> None:
    (place / "model.safetensors").write_bytes(b"x")
    with pytest.raises(Damaged):
        import_source(Safetensors(place / "model.safetensors"), place / "run")
    assert not (place / "run").exists()


def test_an_interrupt_ends_the_save(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, stopped = Event(), Event()

    def wait(_: int) -> None:
        reading.set()
        assert stopped.wait(30)

    def interrupted(_: SaveHandle) -> None:
        assert reading.wait(30)
        raise KeyboardInterrupt

    def stop(host: hosting.Hosting) -> None:
        real(host)
        stopped.set()

    real = hosting.Hosting.stop
    monkeypatch.setattr(hosting.Hosting, "stop", stop)
    monkeypatch.setattr(SaveHandle, "result", interrupted)
    source = Counted({f"t{number}": np.ones(8) for number in range(9)})
    with pytest.raises(KeyboardInterrupt):
        import_source(source, place / "run", progress=wait)
    assert len(source.reads) == 1


class Nested(Counted):
    """Names with dots are paths."""

    def _path(self, new: str, name: str) -> Any:  # noqa: ARG002
        return tuple(("key", part) for part in new.split("."))


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (Counted({"x" * 2000: np.ones(1)}), "its stored name takes"),
        (Nested({"a": np.ones(1), "a.b": np.ones(1)}), "another leaf is on its path|a leaf and a container"),
        (Nested({".".join("a" * 400): np.ones(1)}), "nested deeper"),
        (Counted({"w": np.ones(1)}, values={"text": "\ud800"}), "lone surrogate"),
        (Counted({"k\udcff": np.ones(1)}), "not valid Unicode"),
        (Counted({"w": np.ones(1)}, values={"deep": json.loads("[" * 60 + "]" * 60)}), "nested too deeply"),
    ],
    ids=["long", "clash", "deep-path", "text", "key", "deep"],
)
def test_what_a_save_would_refuse_is_refused_before_there_is_a_run(place: Path, source: Counted, reason: str) -> None:
    with pytest.raises(UnsupportedLeaf, match=reason) as refused:
        import_source(source, place / "run")
    assert len(str(refused.value)) < 600
    assert not (place / "run").exists()


def test_nothing_to_import(place: Path) -> None:
    with pytest.raises(NotFound, match="no leaves to import"):
        import_source(Counted({}), place / "run")
    save_file({"a": np.ones(1)}, place / "model.safetensors")
    with pytest.raises(NotFound, match="no leaves to import"):
        import_source(Safetensors(place / "model.safetensors", names={"": None}), place / "run")
    assert not (place / "run").exists()
