"""Runs that begin with weights in another format."""

from __future__ import annotations

from collections.abc import Sequence
from errno import ENOSPC
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from ckptcore import names, posix
from ckptcore.channel import Channel
from ckptcore.checkpointer import Restored
from ckptcore.errors import CallError, Damaged, NotFound, StoreError, StructureMismatch, UnsafeStore
from ckptcore.formats.foreign import absolute
from ckptcore.formats.orbax_source import Orbax
from ckptcore.formats.safetensors import Safetensors
from ckptcore.formats.safetensors_export import export_safetensors
from ckptcore.geometry import Box
from ckptcore.history import read_run
from ckptcore.readable import StoredLeaf
from ckptcore.run import open_run
from tests.ckptcore.support import SHAPE, checkpointer, file_store, on_ranks, run_ranks, same, state, weights
from tests.spec.checker import check_run


def fresh() -> dict[str, Any]:
    return state(0)


@pytest.fixture
def file(place: Path) -> Path:
    """The weights of step 20, under names of their own."""
    return write(place / "model.safetensors", 20)


def write(path: Path, step: int, dtype: Any = np.float32) -> Path:
    save_file({"model.w": weights(step).astype(dtype), "model.b": np.full(3, step, np.float64), "junk": np.ones(1)}, path)
    return path


def source(file: Path, **options: Any) -> Safetensors:
    return Safetensors(file, names={"model": "", "junk": None}, **options)


def begin(url: Path, start_from: Any, *steps: int, **options: Any) -> Restored:
    with checkpointer(url, start_from=start_from, **options) as ckpt:
        restored = ckpt.restore_or_init(fresh, like=state(0))
        for step in steps:
            ckpt.save(step, state(step))
    return restored


def test_a_run_begins_with_weights_from_a_file(file: Path, place: Path) -> None:
    restored = begin(place / "run", source(file))
    assert (restored.step, restored.generation) == (0, None)
    assert same(restored.components["params"], state(20)["params"])
    assert same(restored.components["optimizer"], state(0)["optimizer"])
    assert restored.reason == f"started from the safetensors checkpoint {file.as_uri()}"
    run = read_run(file_store(place / "run"))
    assert run.parent is None
    assert run.origin == source(file).describe()
    assert check_run(place / "run") == []


def test_a_restart_before_the_first_commit_begins_there_again_or_not_at_all(file: Path, place: Path) -> None:
    begin(place / "run", source(file))
    assert same(begin(place / "run", source(file)).components["params"], state(20)["params"])
    with pytest.raises(CallError, match=r"created to begin from the safetensors checkpoint .*model\.safetensors.*none was given"):
        begin(place / "run", None)
    with pytest.raises(CallError, match="elsewhere was given"):
        begin(place / "run", place / "elsewhere")
    other = write(place / "other.safetensors", 30)
    with pytest.raises(CallError, match="which is another one, or has changed"):
        begin(place / "run", source(other))
    moved = file.rename(place / "moved.safetensors")
    assert begin(place / "run", source(moved)).step == 0


def test_a_start_that_failed_may_be_set_right(file: Path, place: Path) -> None:
    with pytest.raises(CallError, match=r"from the component 'weights' of .*a source in another format takes component=,"):
        begin(place / "run", Safetensors(file, component="weights"))
    with pytest.raises(StructureMismatch):
        begin(place / "run", Safetensors(file, names={"*": "other.*"}))
    assert same(begin(place / "run", source(file)).components["params"], state(20)["params"])


def test_after_the_first_commit_the_file_is_of_no_account(file: Path, place: Path) -> None:
    begin(place / "run", source(file), 5)
    file.unlink()
    for start_from in (source(file), None, source(place / "never"), place / "nowhere"):
        restored = begin(place / "run", start_from)
        assert restored.step == 5
        assert same(dict(restored.components), state(5))


def test_a_run_that_began_otherwise_does_not_take_a_file(file: Path, place: Path) -> None:
    begin(place / "plain", None)
    with pytest.raises(CallError, match=r"was created without start_from.*to start from safetensors checkpoint"):
        begin(place / "plain", source(file))
    begin(place / "parent", None, 10)
    open_run(place / "parent").fork(place / "child")
    with pytest.raises(CallError, match="was created from run"):
        begin(place / "child", source(file))
    assert begin(place / "child", None).step == 10


def test_a_fork_of_a_run_that_began_with_a_file_needs_no_file(file: Path, place: Path) -> None:
    begin(place / "run", source(file), 5)
    open_run(place / "run").fork(place / "child")
    file.unlink()
    assert begin(place / "child", None).step == 5


def test_what_cannot_be_read_begins_no_run(file: Path, place: Path) -> None:
    with pytest.raises(NotFound, match="there is no file"):
        begin(place / "run", source(place / "nowhere"))
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(Damaged, match="cut short"):
        begin(place / "run", source(file))
    with pytest.raises(CallError, match="start_from is int: expected the URL of a run, or a source"):
        begin(place / "run", 7)
    assert not (place / "run" / names.RUN).exists()


def test_what_does_not_fit_is_listed(file: Path, place: Path) -> None:
    with pytest.raises(StructureMismatch, match=r"safetensors checkpoint .* does not fit") as refused:
        begin(place / "run", Safetensors(file, names={"model.b": "b"}))
    assert sorted(text.split(":")[0] for text in refused.value.differences) == [
        "params['junk']",
        "params['model.w']",
        "params['w']",
    ]
    with pytest.raises(
        CallError, match=r"component 'model' of .*, but init\(\) makes only \['data', 'optimizer', 'params', 'rng'\]"
    ):
        begin(place / "other", source(file, component="model"))


def test_floating_point_is_cast_if_the_source_says_so(place: Path) -> None:
    file = write(place / "half.safetensors", 1, ml_dtypes.bfloat16)
    with pytest.raises(StructureMismatch, match="dtype bfloat16 in the checkpoint, float32 in the target"):
        begin(place / "refused", source(file))
    like = state(0)
    like["params"]["b"] = np.zeros(3, np.float32)
    with checkpointer(place / "run", start_from=source(file, cast=np.float32)) as ckpt:
        restored = ckpt.restore_or_init(lambda: like, like=like)
    assert np.array_equal(restored.components["params"]["w"].local, weights(1).astype(ml_dtypes.bfloat16).astype(np.float32))


class Counted(Safetensors):
    """Remembers the boxes that were read."""

    asked: list[Box]

    def read(self, wanted: Sequence[tuple[StoredLeaf, Sequence[Box]]]) -> list[list[np.ndarray]]:
        self.asked = [box for _, boxes in wanted for box in boxes]
        return super().read(wanted)


@pytest.mark.parametrize("size", [2, 3])
def test_every_rank_reads_its_own_boxes(file: Path, place: Path, size: int) -> None:
    def first(link: Channel) -> tuple[Restored, list[Box]]:
        counted = Counted(file, names={"model": "", "junk": None})
        with checkpointer(place / "run", link, start_from=counted) as ckpt:
            own = state(0, link.rank, size)
            return ckpt.restore_or_init(lambda: own, like=own), counted.asked

    for rank, (restored, asked) in enumerate(on_ranks(size, first)):
        assert same(restored.components["params"], state(20, rank, size)["params"])
        assert sorted(box.size for box in asked) == [3, state(0, rank, size)["params"]["w"].local.size]


def test_ranks_that_are_stages_of_a_pipeline_read_what_is_theirs(file: Path, place: Path) -> None:
    def first(link: Channel) -> Restored:
        own = {"params": [{"w": np.zeros(SHAPE, np.float32)}, {"b": np.zeros(3)}][link.rank]}
        with checkpointer(place / "run", link, start_from=source(file)) as ckpt:
            return ckpt.restore_or_init(lambda: own, like=own)

    one, other = on_ranks(2, first)
    assert same(one.components["params"], {"w": weights(20)})
    assert same(other.components["params"], {"b": np.full(3, 20.0)})


def test_a_rank_that_was_given_other_weights_stops_all(file: Path, place: Path) -> None:
    other = write(place / "other.safetensors", 30)

    def first(link: Channel) -> Restored:
        with checkpointer(place / "run", link, start_from=source(file if link.rank == 0 else other)) as ckpt:
            own = state(0, link.rank, 2)
            return ckpt.restore_or_init(lambda: own, like=own)

    for outcome in run_ranks(2, first):
        assert isinstance(outcome, CallError)
        assert "which is another one" in str(outcome)


def test_paths_that_no_file_can_have(file: Path, place: Path) -> None:
    with pytest.raises(CallError, match="zero byte"):
        export_safetensors(source(file), f"{place}/a\0b", component="params")
    with pytest.raises(CallError, match="zero byte"):
        Safetensors(f"{place}/a\0b")


def test_advice_is_about_files_not_about_runs(file: Path, place: Path) -> None:
    (place / "plain").write_text("")
    (place / "loop.safetensors").symlink_to("loop.safetensors")
    for path, error, advice in (
        (place / "plain" / "x.safetensors", StoreError, "Check the path, its permissions and its mount"),
        (place / "loop.safetensors", UnsafeStore, "Only files are read, and links that lead to one"),
    ):
        with pytest.raises(error, match=advice):
            Safetensors(path).leaves("params")
    with pytest.raises(StoreError, match="Check the path"):
        export_safetensors(source(file), place / "plain" / "x" / "y.safetensors", component="params")
    full = posix.translate(OSError(ENOSPC, "full"), "exporting", of_run=False)
    assert str(full).endswith("Make room, then try again")


@pytest.mark.parametrize("path", ["~nosuchuser/x", "x" * 300, "y/" * 2050, "bad-\udcff", "a\0b"])
def test_paths_that_are_refused_in_one_line(path: str) -> None:
    with pytest.raises(CallError, match="the path ") as refused:
        absolute(path)
    assert len(str(refused.value)) < 400


def test_a_folder_that_cannot_be_looked_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "is_dir", refuse)
    for kind in (Safetensors, Orbax):
        with pytest.raises(StoreError, match="Permission denied"):
            kind(tmp_path).leaves("params")
