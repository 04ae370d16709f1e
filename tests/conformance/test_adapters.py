"""The two adapters: what each verb answers, and that any state comes back bit for bit."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ckpt_conformance import fixture
from ckptcore import dtypes
from tests.conformance.jobs import CANNOT, DONE, REFUSED, array, check_restored, exact, served, state, value
from tests.processes import ROOT

pytestmark = pytest.mark.slow
ADAPTERS = ("jax", "torch")
FIRST, SECOND, THIRD = (f"000001-{step:012d}-1" for step in (1, 2, 3))
VALUES = ("null", "bool", "int", "bigint", "float", "string", "bytes", "empty-dict", "empty-list")


def saved(name: str, run: Path, told: dict[str, Any], processes: int = 2, steps: tuple[int, ...] = (1,), **fields: Any) -> None:
    saves = [{"step": step} for step in steps]
    answers = served(name).done("save", processes, store=run.as_uri(), state=told, saves=saves, resume="head", **fields)
    assert all([save["outcome"] for save in answer["saves"]] == ["committed"] * len(steps) for answer in answers), answers


def restored(name: str, run: Path, told: dict[str, Any], expected: int = 1, processes: int = 2, **fields: Any) -> None:
    answers = served(name).done("restore", processes, store=run.as_uri(), state=told, **{"mode": "read", **fields})
    assert {answer["step"] for answer in answers} == {expected}
    assert all(answer["leaves"].keys() == {leaf["name"] for leaf in told["leaves"]} for answer in answers)
    check_restored(told, expected, answers)


def test_a_process_reads_one_request_and_ends() -> None:
    command = [sys.executable, "-m", "ckpt_conformance.adapters.jax"]
    environment = {"PYTHONPATH": f"{ROOT / 'conformance'}:{ROOT}", "PATH": ""}
    done = subprocess.run(
        command, check=False, input='{"contract": 1, "verb": "describe"}', capture_output=True, text=True, env=environment
    )
    assert done.returncode == DONE, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    assert (answer["contract"], answer["framework"], answer["serve"]) == (1, "jax", True)


@pytest.mark.parametrize("name", ADAPTERS)
def test_what_is_described_is_offered(name: str) -> None:
    (answer,) = served(name).done("describe")
    assert answer["name"] == f"{name}ckpt"
    assert len(answer["failpoints"]) == 18
    assert set(answer["dtypes"]) <= dtypes.LOGICAL
    (unknown,) = served(name).run("juggle")
    assert unknown.status == CANNOT


@pytest.mark.parametrize("name", ADAPTERS)
def test_a_run_from_the_first_save_to_a_fork(name: str, tmp_path: Path) -> None:
    adapter, run, told = served(name), tmp_path / "run", exact()
    (nothing,) = adapter.run("latest", store=run.as_uri())
    assert (nothing.status, nothing.answer["error"]) == (REFUSED, "not-found")
    saved(name, run, told, steps=(1, 2, 3))
    assert adapter.done("latest", store=run.as_uri()) == [{"generation": THIRD, "step": 3}]
    restored(name, run, told, 3)
    restored(name, run, told, 2, step=2)
    restored(name, run, told, 1, generation=FIRST)
    (whole,) = adapter.done("verify", store=run.as_uri(), generation=None, depth="deep")
    assert whole == {"generation": THIRD, "whole": True, "problems": []}
    (settled,) = adapter.done("recover", store=run.as_uri())
    assert settled == {"incarnation": 2, "base": THIRD, "reason": "newest", "settled": [], "skipped": []}
    (collected,) = adapter.done("collect", store=run.as_uri(), keep={"last": 2, "every": None})
    assert collected == {"retired": [FIRST], "aborted": [], "deleted": [FIRST]}
    (forked,) = adapter.done("fork", store=run.as_uri(), target=(tmp_path / "fork").as_uri(), generation=SECOND, components=None)
    assert forked["run_id"] == json.loads((tmp_path / "fork" / "run.json").read_text())["run_id"]


@pytest.mark.parametrize("name", ADAPTERS)
def test_a_job_goes_on_and_goes_back(name: str, tmp_path: Path) -> None:
    adapter, run, told = served(name), tmp_path / "run", exact()
    saved(name, run, told, steps=(1, 2))
    answers = adapter.done("restore", 2, store=run.as_uri(), state=told, mode="resume")
    assert {(answer["generation"], answer["guarantee"]) for answer in answers} == {(SECOND, "exact")}
    check_restored(told, 2, answers)
    for resume in ({"step": 1}, {"generation": FIRST}):
        (answer, _) = adapter.done("save", 2, store=run.as_uri(), state=told, saves=[], resume=resume)
        assert answer["resumed"] == FIRST
    refused = adapter.run("save", 2, store=run.as_uri(), state=told, saves=[], resume={"step": 7})
    assert [(process.status, process.answer["error"]) for process in refused] == [(REFUSED, "not-found")] * 2


@pytest.mark.parametrize("name", ADAPTERS)
def test_a_reader_says_what_it_fell_back_to(name: str, tmp_path: Path) -> None:
    run, told = tmp_path / "run", exact()
    saved(name, run, told, steps=(1, 2))
    next((run / "generations" / SECOND).glob("roster-*")).unlink()
    restored(name, run, told, 1)
    (named,) = served(name).run("restore", 1, store=run.as_uri(), state=told, mode="read", generation=SECOND)
    assert (named.status, named.answer["error"]) == (REFUSED, "damaged")


@pytest.mark.parametrize("name", ADAPTERS)
def test_every_dtype_and_every_value(name: str, tmp_path: Path) -> None:
    (offered,) = served(name).done("describe")
    arrays = [array(f"params.{dtype}", dtype, [4, 6], ["x", None]) for dtype in offered["dtypes"]]
    host = [array("params.scalar", "float32", []), array("params.none", "int32", [0, 3], ["x", None])]
    told = state(*arrays, *host, *(value(f"extra.{sort}", sort) for sort in VALUES), value("step", "int"))
    run = tmp_path / "run"
    answers = served(name).done("save", 2, store=run.as_uri(), state=told, saves=[{"step": 1, "guarantee": "weights"}])
    assert answers[0]["saves"][0]["outcome"] == "committed", answers
    restored(name, run, told)


@pytest.mark.parametrize("name", ADAPTERS)
def test_arrays_on_a_mesh_of_two_axes(name: str, tmp_path: Path) -> None:
    shardings = {
        "rows": ["x", "y"],
        "columns": ["y", "x"],
        "both": [["x", "y"], None],
        "turned": [None, ["y", "x"]],
        "one": [None, "y"],
    }
    arrays = [array(f"params.{kind}", "float32", [4, 8], sharding) for kind, sharding in shardings.items()]
    told, run = state(*arrays), tmp_path / "run"
    mesh = {"axes": ["x", "y"], "shape": [2, 2]}
    saves = [{"step": 1, "guarantee": "weights"}]
    served(name).done("save", 4, store=run.as_uri(), state=told, saves=saves, mesh=mesh)
    restored(name, run, told, processes=4, mesh=mesh)
    other = state(*(array(f"params.{kind}", "float32", [4, 8], ["x", None]) for kind in shardings))
    restored(name, run, other, processes=2)


@pytest.mark.parametrize("name", ADAPTERS)
def test_rank_scoped_state_of_other_shapes_and_other_ranks(name: str, tmp_path: Path) -> None:
    ranked = [array("rng.key", "uint32", [2], shapes={"1": [3]}), value("rng.note", "string")]
    told, run = state(*exact()["leaves"][:4], *ranked, exact()["leaves"][-1], ranked=["rng"]), tmp_path / "run"
    saved(name, run, told)
    restored(name, run, told)
    (lone,) = served(name).done(
        "restore", 1, store=run.as_uri(), state=told, mode="resume", accept="coverage", remap={"0": 0}, components=None
    )
    check_restored(told, 1, [lone])
    (without,) = served(name).done("restore", 1, store=run.as_uri(), state=told, mode="resume", accept="coverage")
    assert {"rng.key", "rng.note"}.isdisjoint(without["leaves"])


@pytest.mark.parametrize("name", ADAPTERS)
def test_tied_arrays_and_casts(name: str, tmp_path: Path) -> None:
    tied = [array("params.w", "float32", [4, 6], ["x", None]), array("params.tied", "float32", [4, 6], alias="params.w")]
    run, told = tmp_path / "run", state(*tied)
    served(name).done("save", 2, store=run.as_uri(), state=told, saves=[{"step": 1, "guarantee": "weights"}])
    restored(name, run, told)
    answers = served(name).done("restore", 2, store=run.as_uri(), state=told, mode="read", cast="float64")
    assert {leaf["dtype"] for answer in answers for leaf in answer["leaves"].values()} == {"float64"}


def test_random_keys_in_jax(tmp_path: Path) -> None:
    keys = [
        array("params.keys", "uint32", [4, 2], ["x", None], prng_impl="threefry2x32"),
        array("params.own", "uint32", [4], prng_impl="rbg"),
    ]
    run, told = tmp_path / "run", state(*keys)
    served("jax").done("save", 2, store=run.as_uri(), state=told, saves=[{"step": 1, "guarantee": "weights"}])
    restored("jax", run, told)


def test_devices_in_jax_are_more_than_processes(tmp_path: Path) -> None:
    run, told = tmp_path / "run", exact()
    saved("jax", run, told, 2, mesh={"axes": ["x"], "shape": [4]})
    answers = served("jax").done("restore", 2, store=run.as_uri(), state=told, mode="read", mesh={"axes": ["x"], "shape": [4]})
    assert [len(answer["leaves"]["params.w"]["boxes"]) for answer in answers] == [2, 2]
    check_restored(told, 1, answers)


def test_uneven_shards_and_pipeline_stages_in_torch(tmp_path: Path) -> None:
    arrays = [array("params.w", "float32", [5, 3], ["x", None]), array("params.few", "float32", [1, 3], ["x", None])]
    stages = [array(f"params.stage{rank}", "float32", [2], ranks=[rank]) for rank in range(2)]
    run, told = tmp_path / "run", state(*arrays, *stages)
    served("torch").done("save", 2, store=run.as_uri(), state=told, saves=[{"step": 1, "guarantee": "weights"}])
    for mode in ({"mode": "read"}, {"mode": "read", "step": 1}):
        answers = served("torch").done("restore", 2, store=run.as_uri(), state=told, **mode)
        check_restored(told, 1, answers)
        assert ["params.stage0" in answer["leaves"] for answer in answers] == [True, False]
    assert answers[1]["leaves"]["params.few"]["boxes"] == []


def test_a_run_that_is_not_there_is_refused_by_its_id(tmp_path: Path) -> None:
    (ended,) = served("jax").run("save", store=(tmp_path / "run").as_uri(), state=exact(), saves=[], run_id="0" * 32)
    assert (ended.status, ended.answer["error"]) == (REFUSED, "not-found")


def test_a_failure_of_the_adapter_is_no_refusal(tmp_path: Path) -> None:
    (ended,) = served("jax").run("save", store=(tmp_path / "run").as_uri(), state={"components": {}, "leaves": [{}]})
    assert (ended.status, ended.answer) == (1, {})
    assert "KeyError" in ended.log


def test_the_check_of_these_tests_sees_one_wrong_bit() -> None:
    told = state(array("params.w", "float32", [2]))
    digest = fixture.box_digest("params.w", "float32", [2], 1, [0], [2])
    answer = {"leaves": {"params.w": {"dtype": "float32", "boxes": [{"start": [0], "stop": [2], "digest": digest}]}}}
    check_restored(told, 1, [answer])
    with pytest.raises(AssertionError):
        check_restored(told, 2, [answer])
