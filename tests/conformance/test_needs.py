"""What steps need of an adapter, and in how many processes it runs them."""

from __future__ import annotations

from typing import Any

import pytest

from ckpt_conformance.cases.needs import features_of, lacking, missing, processes_of
from ckpt_conformance.cases.states import state_of
from ckpt_conformance.cases.steps import Job, step_of

ARRAY = {"component": "params", "name": "params.w", "dtype": "float32", "shape": [6]}
DESCRIBE: dict[str, Any] = {
    "verbs": ["save", "restore"], "failpoints": [], "features": [], "dtypes": ["float32"], "stores": ["file"],
    "devices_per_process": "any",
}  # fmt: skip


def state(*leaves: dict[str, Any], scope: str = "global") -> Any:
    return state_of("s", {"components": {"params": {"scope": scope}}, "leaves": [{**ARRAY, **leaf} for leaf in leaves]})


def job(do: str = "save", **rest: Any) -> Job:
    given = {"do": do, "state": "s", "expect": {"exit": "done"}, **({"saves": [1]} if do == "save" else {}), **rest}
    step = step_of(given)
    assert isinstance(step, Job)
    return step


@pytest.mark.parametrize(
    ("leaf", "feature"),
    [
        ({"ranks": [0]}, "pipeline"),
        ({"alias": "params.w"}, "aliases"),
        ({"prng_impl": "threefry2x32"}, "prng"),
        ({"value": "int"}, "values"),
        ({"shapes": {"1": [3]}}, "unequal-rank-shapes"),
        ({"sharding": ["x"], "shape": [5]}, "uneven"),
    ],
)
def test_features_of_states(leaf: dict[str, Any], feature: str) -> None:
    assert features_of(state(leaf), {"x": 2}) == {feature}


def test_plain_states_need_no_feature_and_rank_scope_is_one() -> None:
    assert features_of(state({"sharding": ["x"]}), {"x": 2}) == set()
    assert features_of(state({}, scope="rank"), {"x": 2}) == {"rank-scope"}


@pytest.mark.parametrize(
    ("step", "lack"),
    [
        (job("latest"), "verb latest"),
        (job(failpoint={"name": "before-data", "rank": 0, "action": "kill"}), "failpoint before-data"),
        (job(saves=[{"step": 1, "unchanged": ["params"]}]), "feature references"),
        (job(saves=[{"step": 1, "metrics": {"loss": 1}}]), "feature metrics"),
        (job(saves=[{"step": 1, "state": "bf16"}]), "dtype bfloat16"),
        (job(remap={"0": 1}), "feature remap"),
        (job(resume={"step": 1}), "feature rollback"),
        (job(single_writer=True), "feature single-writer"),
        (job(nodes=["a"]), "feature nodes"),
        (job("restore", cast="float16"), "feature cast"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_a_step_needs_and_is_not_offered(step: Job, lack: str) -> None:
    states = {"s": state({}), "bf16": state({"dtype": "bfloat16"})}
    assert missing(step, DESCRIBE, states) == [lack]


def test_a_plain_step_lacks_nothing() -> None:
    assert missing(job(processes=2), DESCRIBE, {"s": state({})}) == []


def test_copies_are_a_feature() -> None:
    assert missing(job(nodes=["a"], copies=True), {**DESCRIBE, "features": ["nodes"]}, {"s": state({})}) == ["feature copies"]


def test_a_word_of_a_person_is_a_feature() -> None:
    assert "feature vouching" in missing(job("collect", vouched=[2]), DESCRIBE, {"s": state({})})


def test_devices_decide_on_the_number_of_processes() -> None:
    wide = job(processes=2, mesh={"x": 2, "y": 2})
    assert processes_of(wide, DESCRIBE) == 2
    assert processes_of(wide, {**DESCRIBE, "devices_per_process": 1}) == 4


def test_an_adapter_with_few_processes_reads_in_one_and_does_not_write() -> None:
    few = {**DESCRIBE, "max_processes": 1}
    uneven = {"s": state({"sharding": ["x"], "shape": [5]})}
    assert processes_of(job("restore", processes=2), few) == 1
    assert missing(job("restore", processes=2), few, uneven) == []
    assert missing(job("save", processes=2), few, {"s": state({})}) == ["a job of 2 processes"]
    assert missing(job("restore", processes=2), DESCRIBE, uneven) == ["feature uneven"]


def test_words_of_needs_may_be_in_any_list() -> None:
    assert lacking(["float32", "save", "uneven", "s3"], DESCRIBE) == ["uneven", "s3"]
