"""The examples of one process: a run that is ended in the middle and started again is the same run, bit for bit."""

from __future__ import annotations

import os
import re
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import absl.flags
import jax
import numpy as np
import pytest
import torch
from flax import nnx
from safetensors import safe_open

from ckptcore.run import open_run
from examples import (
    grain_jax,
    huggingface_export,
    linen_jax,
    maxtext_like_jax,
    nnx_jax,
    optax_schedule_jax,
)
from tests.examples.stopping import Stopped, assert_same, stopped
from tests.processes import ROOT, Rank
from tests.spec.checker import check_run

# Outside of an absl application nobody parses the flags that Grain looks at.
absl.flags.FLAGS.mark_as_parsed()

EXAMPLES: dict[str, tuple[Callable[..., Any], int, str]] = {
    "nnx": (nnx_jax.main, 40, "model"),
    "linen": (linen_jax.main, 40, "state"),
    "optax": (optax_schedule_jax.main, 60, "params"),
    "grain": (grain_jax.main, 40, "params"),
    "maxtext-like": (maxtext_like_jax.main, 40, "params"),
    "hugging-face": (huggingface_export.train, 30, "model"),
}
"""What trains, up to which step, and the component with the parameters."""


def arrays(state: Any) -> list[np.ndarray]:
    """Everything in what an example returns."""
    if isinstance(state, torch.nn.Module):
        return [tensor.numpy() for tensor in state.state_dict().values()]
    tree = nnx.state(state) if isinstance(state, nnx.Module) else state
    return [
        np.asarray(jax.random.key_data(leaf) if jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf)
        for leaf in jax.tree.leaves(tree)
        if hasattr(leaf, "dtype")
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_a_run_that_is_ended_in_the_middle_is_the_same_run(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train, steps, component = EXAMPLES[name]
    whole = arrays(train(tmp_path / "whole"))
    with stopped(), pytest.raises(Stopped):
        train(tmp_path / "parts")
    before = open_run(tmp_path / "parts")
    assert (before.checkpoint().manifest.step, before.checkpoint().manifest.guarantee.level) == (20, "exact")
    learned = jax.tree.leaves(before.restore(components=component))
    assert_same(arrays(train(tmp_path / "parts")), whole)
    train(tmp_path / "parts")
    told = [line for line in capsys.readouterr().out.splitlines() if line.startswith("from step")]
    assert told == [f"from step {first} to step {steps}" for first in (0, 20, steps)]
    after = jax.tree.leaves(open_run(tmp_path / "parts").restore(components=component))
    assert any(not np.array_equal(one, other) for one, other in zip(learned, after, strict=True))  # something was learned
    check_run(tmp_path / "parts")


@pytest.mark.slow
def test_the_export_has_the_names_and_the_numbers(tmp_path: Path) -> None:
    model = huggingface_export.train(tmp_path / "run")
    (file,) = huggingface_export.export(tmp_path / "run", tmp_path / "hf")
    with safe_open(file, framework="pt") as stored:
        written = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    blocks = [
        f"model.layers.{n}.{part}.weight" for n in (0, 1) for part in ("mlp.down_proj", "mlp.up_proj", "post_attention_layernorm")
    ]
    assert sorted(written) == sorted([*blocks, "lm_head.weight", "model.embed_tokens.weight", "model.norm.weight"])
    assert torch.equal(written["model.layers.1.mlp.up_proj.weight"], model.state_dict()["blocks.1.up.weight"].bfloat16())


def test_the_loss_scale_of_the_example_moves() -> None:
    """Gradients that overflow float16 are left out, and halve the scale; what is accumulated stays."""
    state = optax_schedule_jax.fresh()
    huge = jax.numpy.full((16, 8), 1e4)
    after, _ = optax_schedule_jax.update(state, huge)
    assert after["loss_scale"] == {"scale": 2.0**14, "good_steps": 0}
    assert_same(arrays(after["params"]), arrays(state["params"]))
    assert int(after["optimizer"].mini_step) == 0
    good, _ = optax_schedule_jax.update(state | {"loss_scale": {"scale": jax.numpy.float32(8), "good_steps": 0}}, huge * 1e-4)
    assert (int(good["loss_scale"]["good_steps"]), int(good["optimizer"].mini_step)) == (1, 1)


@pytest.mark.slow
def test_the_maxtext_like_loop_saves_once_more_when_it_is_told_to_stop(tmp_path: Path) -> None:
    """In a process of its own, on four devices: SIGTERM, status 143, and the next start goes on from that very step."""
    program = """\
import sys, jax
jax.config.update("jax_num_cpu_devices", 4)
from examples import maxtext_like_jax as example
import ckptcore.checkpointer as core
asked = core.Checkpointer.should_save
def should_save(self, step):
    if step == 7:
        print("at step 7", flush=True)
        sys.stdin.readline()
    return asked(self, step)
core.Checkpointer.should_save = should_save
example.train(example.Config(base_output_directory=sys.argv[1], steps=40, checkpoint_period=1000))
"""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env,
    )  # fmt: skip
    rank = Rank(process)
    try:
        rank.wait_for("at step 7")
        rank.send(signal.SIGTERM)
        assert process.stdin is not None
        process.stdin.write("go on\n")
        process.stdin.close()
        assert rank.wait() == 143, rank.output
    finally:
        rank.end()
    head = open_run(tmp_path).head()
    assert head is not None
    assert (head.step, head.guarantee.level, head.topology.devices) == (7, "exact", 4)


@pytest.mark.slow
def test_an_evaluation_is_noted_on_its_checkpoint(tmp_path: Path) -> None:
    maxtext_like_jax.train(maxtext_like_jax.Config(str(tmp_path), steps=20))
    noted = {known.step: dict(known.metrics) for known in open_run(tmp_path).generations()}
    assert noted[10] == {}
    assert 0 < noted[20]["eval_loss"] < 10


@pytest.mark.parametrize(
    "name",
    [
        "nnx_jax",
        "linen_jax",
        "optax_schedule_jax",
        "grain_jax",
        "maxtext_like_jax",
        "multihost_jax",
        "fsdp2_torch",
        "huggingface_export",
    ],
)
def test_without_arguments_there_is_a_usage_line(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    file = ROOT / "examples" / f"{name}.py"
    monkeypatch.setattr(sys, "argv", [str(file)])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(file), run_name="__main__")
    assert re.fullmatch(rf"usage: (python|torchrun --nproc-per-node=N) examples/{file.name} URL.*", str(ended.value))
