"""Flipped bits: each is counted, and the checkpoint that is copied stays whole."""

import argparse
import json
from pathlib import Path

import numpy as np
import pytest

from ckptcore.errors import Damaged


def test_every_outcome_is_told_apart(tmp_path: Path) -> None:
    silent_damage = pytest.importorskip("benchmarks.silent_damage")
    state = {"x": np.arange(3.0)}

    def refuses(_: Path) -> dict[str, np.ndarray]:
        raise Damaged("a digest differs")

    assert silent_damage.outcome(refuses, tmp_path, state) == "refused"
    assert silent_damage.outcome(lambda _: {"x": np.arange(3.0)}, tmp_path, state) == "harmless"
    assert silent_damage.outcome(lambda _: {"x": np.arange(3.0) + 1}, tmp_path, state) == "silently wrong"


def test_no_tries_are_nonsense(capsys: pytest.CaptureFixture[str]) -> None:
    silent_damage = pytest.importorskip("benchmarks.silent_damage")
    parser = argparse.ArgumentParser()
    silent_damage.add_arguments(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(["--tries", "0"])
    assert "argument --tries: " in capsys.readouterr().err


@pytest.mark.slow
def test_none_is_silent_here(tmp_path: Path) -> None:
    silent_damage = pytest.importorskip("benchmarks.silent_damage")
    result = silent_damage.run(argparse.Namespace(smoke=True, dir=tmp_path, tries=0))
    assert json.loads(json.dumps(result)) == result
    here, orbax = result["outcomes"]
    assert (here["library"], here["counted"]) == ("jaxckpt", {"refused": 2, "silently wrong": 0, "harmless": 0})
    assert sum(orbax["counted"].values()) == 2
    assert "| jaxckpt " in silent_damage.table(result)
