"""The LoRA examples: the frozen weights are written once, kept while they are referred to, and a resumed run is the same run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckptcore.run import open_run
from examples import lora_jax, lora_torch
from tests.spec.checker import check_run

pytestmark = pytest.mark.slow
EXAMPLES = pytest.mark.parametrize("example", [lora_torch, lora_jax], ids=["torch", "jax"])


@EXAMPLES
def test_the_base_is_written_once_and_kept(tmp_path: Path, example: Any) -> None:
    example.main(tmp_path)
    run = open_run(tmp_path)
    assert [known.step for known in run.generations() if known.state == "committed"] == [10, 30, 40]
    first, *later = (run.checkpoint(step=step).manifest for step in (10, 30, 40))
    assert first.components["base"].source is None
    assert {manifest.components["base"].source for manifest in later} == {first.generation}
    frozen = first.components["base"].bytes
    assert frozen >= 3 * 64 * 64 * 4
    for manifest in later:
        folder = tmp_path / "generations" / manifest.generation
        assert sum(path.stat().st_size for path in folder.rglob("ranks/*/d/*")) < frozen
    assert run.verify(deep=True).ok
    check_run(tmp_path)


@EXAMPLES
def test_without_a_url_there_is_a_usage_line(example: Any) -> None:
    done = subprocess.run([sys.executable, example.__file__], capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stderr) == (1, f"usage: python examples/{Path(example.__file__).name} URL\n")


@EXAMPLES
def test_an_interrupted_run_is_the_same_run(tmp_path: Path, example: Any, capsys: pytest.CaptureFixture[str]) -> None:
    whole = example.main(tmp_path / "whole")
    example.main(tmp_path / "parts", steps=25)
    assert example.main(tmp_path / "parts") == whole
    example.main(tmp_path / "parts")
    *trained, idle = (line.partition(", loss ")[0] for line in capsys.readouterr().out.splitlines())
    assert trained == ["steps 1 to 40", "steps 1 to 25", "steps 26 to 40"]
    assert idle == "nothing left to do: the run is at step 40"
    one, other = (
        open_run(tmp_path / name).restore(components=["params" if example is lora_jax else "model", "base"])
        for name in ("whole", "parts")
    )
    np.testing.assert_equal(one, other)
