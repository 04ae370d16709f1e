"""The comparison must see what it claims to see: one bit, one step, one sample."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from demo.compare import array_differences, epoch_problems, identical, step_differences
from demo.run_log import Step, read_log


def state() -> dict[str, np.ndarray]:
    return {"params": np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4), "count": np.array(7, np.int32)}


def steps() -> dict[int, Step]:
    return {number: Step(loss=float(number).hex(), rng=(number, 1), samples=(number, 2)) for number in (1, 2, 3)}


def test_equal_states_have_no_differences() -> None:
    assert array_differences(state(), state()) == []


@pytest.mark.parametrize("byte", [0, 21, 47])
@pytest.mark.parametrize("bit", [0, 7])
def test_one_flipped_bit_is_found(byte: int, bit: int) -> None:
    other = state()
    other["params"].view(np.uint8).reshape(-1)[byte] ^= 1 << bit
    assert array_differences(state(), other) == ["params differs in 1 bits"]


def test_the_sign_of_zero_and_the_bits_of_nan_count() -> None:
    assert array_differences({"x": np.zeros(2)}, {"x": -np.zeros(2)}) == ["x differs in 2 bits"]
    assert array_differences({"x": np.full(1, np.nan)}, {"x": np.full(1, np.nan)}) == []
    assert array_differences({"x": np.full(1, np.nan)}, {"x": np.full(1, -np.nan)}) == ["x differs in 1 bits"]


def test_another_type_or_shape_with_the_same_bytes_is_found() -> None:
    reference = {"x": np.zeros((2, 3), np.float32)}
    assert array_differences(reference, {"x": np.zeros((3, 2), np.float32)}) == ["x is float32(3, 2), expected float32(2, 3)"]
    assert array_differences(reference, {"x": np.zeros((2, 3), np.int32)}) == ["x is int32(2, 3), expected float32(2, 3)"]


def test_an_array_that_only_one_run_has_is_found() -> None:
    assert array_differences(state(), {"params": state()["params"]}) == ["count is in one run only"]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("loss", {"loss": float(np.nextafter(2.0, 3.0)).hex()}),
        ("rng", {"rng": (2, 0)}),
        ("samples", {"samples": (2, 1)}),
    ],
)
def test_one_changed_figure_of_one_step_is_found(name: str, change: dict) -> None:
    same = steps()[2]
    other = {2: Step(**{"loss": same.loss, "rng": same.rng, "samples": same.samples, **change})}
    found = step_differences(steps(), other)
    assert [key for key, differences in found.items() if differences] == [name]
    assert found[name][0].startswith("step 2: ")


def test_a_step_that_the_reference_never_ran_is_found() -> None:
    assert all(step_differences(steps(), {4: steps()[3]}).values())


def test_whole_epochs_have_no_problems() -> None:
    assert epoch_problems([[0, 3], [1, 2], [2, 0], [3, 1]], samples=4) == []


@pytest.mark.parametrize(
    "batches",
    [
        [],
        [[0, 1], [2, 2]],  # one repeated, one skipped
        [[0, 1], [2]],  # cut short
        [[0, 1], [2, 4]],  # not of this data set
        [[0, 1], [2, 3], [0, 1], [2, 0]],  # in the second epoch
        [[0, 1], [2, 0], [3, 1], [2, 3]],  # across the border of two epochs
    ],
)
def test_a_repeated_or_skipped_sample_is_found(batches: list[list[int]]) -> None:
    assert len(epoch_problems(batches, samples=4)) == 1 + (len(batches) == 4 and batches[1] == [2, 0])


def test_a_check_fails_when_there_is_a_difference_and_names_it() -> None:
    assert identical("losses", [], "3 steps").held
    failed = identical("losses", ["step 2", "step 3"], "3 steps")
    assert (failed.held, failed.detail) == (False, "step 2; step 3")


def test_a_line_that_the_kill_cut_short_is_passed_over(tmp_path: Path) -> None:
    lines = [json.dumps(line) for line in ({"start": 4}, {"step": 5, "loss": "0x1p0", "rng": [1, 2], "samples": [3]})]
    path = tmp_path / "rank-0.jsonl"
    path.write_text("\n".join([*lines, '{"step": 6, "lo']))
    log = read_log(path)
    assert (log.start, list(log.steps), log.last) == (4, [5], 5)
