"""A checkpoint that does not fit its target: every difference is told, and what is allowed is said by the caller."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ckptcore.errors import CallError, NotFound, StructureMismatch
from jaxckpt import open_run
from tests.jaxckpt.runs import assert_same, checkpointer, resume, save

STATE = {
    "encoder": {"w": jnp.arange(6, dtype=jnp.float32).reshape(2, 3), "b": jnp.zeros(3, jnp.bfloat16)},
    "steps": jnp.int32(4),
    "key": jax.random.key(0),
    "none": None,
    "name": "base",
    "rate": 0.5,
    "layers": [np.float32(1), np.int8(2)],
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    save(tmp_path / "run", {"params": STATE, "extra": {"x": np.arange(3)}})
    return tmp_path / "run"


def differences(run: Path, like: Any, **options: Any) -> tuple[str, ...]:
    with pytest.raises(StructureMismatch, match="does not fit the target") as caught:
        open_run(run).restore(like=like, components="params", **options)
    assert all(difference in str(caught.value) for difference in caught.value.differences)
    return caught.value.differences


def test_all_differences_at_once(run: Path) -> None:
    like = {
        "encoder": {"w": jnp.zeros((3, 2)), "b": jnp.zeros(3), "bias": jnp.zeros(1)},
        "steps": jnp.float32(0),
        "key": jax.random.key(0, impl="rbg"),
        "none": {},
        "name": 5,
        "layers": [np.float32(0)],
    }
    assert sorted(differences(run, like)) == [
        (
            "params['encoder']['b']: dtype bfloat16 in the checkpoint, float32 in the target"
            " (restore(cast=…) casts floating-point arrays)"
        ),
        "params['encoder']['bias']: not in the checkpoint",
        "params['encoder']['w']: shape [2, 3] in the checkpoint, [3, 2] in the target",
        (
            "params['key']: random key implementation 'threefry2x32' in the checkpoint, 'rbg' in the target;"
            " shape [2] in the checkpoint, [4] in the target"
        ),
        "params['layers'][1]: in the checkpoint, not in the target",
        "params['name']: the target holds a Python int, the checkpoint 'base'",
        "params['none']: the target is {} there, the checkpoint None",
        "params['rate']: in the checkpoint, not in the target",
        "params['steps']: dtype int32 in the checkpoint, float32 in the target",
    ]


@pytest.mark.parametrize(
    ("like", "stored", "match"),
    [
        (None, jnp.ones(2), "the target is None there, the checkpoint an array of"),
        (jnp.ones(2), None, r"the target is an array of float32\[2\], the checkpoint holds the value None"),
        (1, 1.0, "a Python int, the checkpoint 1.0"),
        (1.0, 1, "a Python float, the checkpoint 1"),
        (True, 1, "a Python bool, the checkpoint 1"),
        (1, True, "a Python int, the checkpoint True"),
        (1, jnp.ones(()), r"a Python int, the checkpoint an array of float32\[\]"),
        (1, jnp.ones(1, jnp.int32), r"a Python int, the checkpoint an array of int32\[1\]"),
        (jnp.float32(0), 1, "an array of float32"),
        ([], (), r"the target is \[\] there, the checkpoint \(\)"),
        (np.ones(2, np.int64), np.ones(2, np.int32), "dtype int32 in the checkpoint, int64"),
        (jnp.ones(2, jnp.uint32), jax.random.split(jax.random.key(0), 1)[0], "random key implementation"),
        (jax.random.key(0), jnp.ones(2, jnp.uint32), "random key implementation None"),
        ("text", b"text", r"a Python str, the checkpoint b'text'"),
        ("5", 5, "a Python str, the checkpoint 5"),
        (b"", None, "a Python bytes, the checkpoint None"),
    ],
)
def test_nothing_is_converted_without_a_word(like: Any, stored: Any, match: str, tmp_path: Path) -> None:
    save(tmp_path / "run", {"params": {"x": stored}})
    with pytest.raises(StructureMismatch, match=rf"params\['x'\]: .*{match}"):
        resume(tmp_path / "run", {"params": {"x": like}})


def test_casts_are_the_callers(run: Path) -> None:
    like = {**STATE, "encoder": {"w": jnp.zeros((2, 3), jnp.bfloat16), "b": jnp.zeros(3, jnp.bfloat16)}}
    like["layers"] = [jnp.bfloat16(0), np.int8(0)]
    restored = open_run(run).restore(like=like, components="params", cast=jnp.bfloat16)
    assert_same(restored["encoder"]["w"], STATE["encoder"]["w"].astype(jnp.bfloat16))
    assert_same(restored["steps"], STATE["steps"])
    assert restored["rate"] == 0.5
    plain = open_run(run).restore(components="params", cast="float64")
    assert (plain["encoder"]["b"].dtype, plain["steps"].dtype) == (np.float64, np.int32)


@pytest.mark.parametrize("cast", ["int32", np.int8, "bool", jnp.complex64, "nonsense"])
def test_other_casts_are_refused(cast: Any, run: Path) -> None:
    with pytest.raises(CallError, match="only floating-point arrays are cast"):
        open_run(run).restore(components="params", cast=cast)


def test_renaming_by_prefix(run: Path) -> None:
    like = {name: value for name, value in STATE.items() if name != "encoder"} | {"body": {"net": STATE["encoder"]}}
    assert len(differences(run, like)) == 4
    restored = open_run(run).restore(like=like, components="params", rename={"params.body.net": "params.encoder"})
    assert_same(restored, like)
    missed = differences(run, like, rename={"params.body": "params.elsewhere"})
    assert "params['body']['net']['w']: not in the checkpoint (looked for as 'params.elsewhere.net.w')" in missed


def test_renaming_by_function_and_across_components(run: Path) -> None:
    like = {"model": STATE["encoder"]}
    restored = open_run(run).restore(like=like, rename=lambda name: name.replace("model.", "params.encoder."), extra="ignore")
    assert_same(restored["model"], STATE["encoder"])


def test_a_part_of_the_components(run: Path) -> None:
    restored = open_run(run).restore(like={"extra": {"x": np.zeros(3, np.int64)}})
    assert restored["extra"]["x"].tolist() == [0, 1, 2]
    assert open_run(run).restore(components=["extra"]).keys() == {"extra"}
    with pytest.raises(NotFound, match=r"no component 'optimizer'; it has \['extra', 'params'\]"):
        open_run(run).restore(components="optimizer")
    with pytest.raises(NotFound, match="no component 'optimizer'"):
        open_run(run).restore(like={"optimizer": {"x": np.zeros(3)}})


def test_missing_leaves_keep_what_the_target_holds(run: Path) -> None:
    own = jnp.full(4, 7.0)
    like = {**STATE, "head": own, "note": "mine", "empty": {}}
    assert len(differences(run, like)) == 3
    assert_same(open_run(run).restore(like=like, components="params", missing="keep"), like)
    like["head"] = jax.ShapeDtypeStruct((4,), jnp.float32)
    with pytest.raises(StructureMismatch, match=r"params\['head'\]: only an abstract array; give a real one to keep"):
        open_run(run).restore(like=like, components="params", missing="keep")


def test_extra_leaves_are_left_out_if_told_to(run: Path) -> None:
    like = {"encoder": {"w": STATE["encoder"]["w"]}, "none": None}
    assert len(differences(run, like)) == 7
    assert_same(open_run(run).restore(like=like, components="params", extra="ignore"), like)


def test_a_smaller_model_does_not_part_load_a_bigger_one(tmp_path: Path) -> None:
    save(tmp_path / "run", {"params": {"layers": [jnp.ones(2)] * 2}})
    with pytest.raises(StructureMismatch, match=r"params\['layers'\]\[2\]: not in the checkpoint"):
        resume(tmp_path / "run", {"params": {"layers": [jnp.ones(2)] * 3}})
    with pytest.raises(StructureMismatch, match=r"params\['layers'\]\[1\]: in the checkpoint, not in the target"):
        resume(tmp_path / "run", {"params": {"layers": [jnp.ones(2)]}})


def test_a_refused_restore_changes_nothing_and_can_be_repeated(run: Path) -> None:
    with checkpointer(run) as saver:
        with pytest.raises(StructureMismatch):
            saver.restore(like={"params": {**STATE, "more": 1}, "extra": {"x": np.zeros(3, np.int64)}})
        restored = saver.restore(like={"params": {**STATE, "more": 1}}, missing="keep", accept_guarantee="replay")
        assert_same(restored.components["params"], {**STATE, "more": 1})
        assert saver.save(2, {"params": STATE}).result(30).parent == "000001-000000000001-1"


def test_restoring_an_older_step_and_going_on(tmp_path: Path) -> None:
    with checkpointer(tmp_path / "run") as saver:
        for step in (1, 2, 3):
            saver.save(step, {"params": {"x": step}})
    with checkpointer(tmp_path / "run") as saver:
        with pytest.raises(NotFound, match=r"no checkpoint of step 5; it has steps \[1, 2, 3\]"):
            saver.restore(like={"params": {"x": 0}}, step=5)
        assert saver.restore(like={"params": {"x": 0}}, step=2).components["params"] == {"x": 2}
    rolled_back = resume(tmp_path / "run", {"params": {"x": 0}})
    assert (rolled_back.step, rolled_back.reason) == (2, "newest")
