"""Scenario files: parameters, short generation IDs, and every mistake that an author can make."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ckpt_conformance.cases.scenario import Case, cases, load_file, names, select
from ckpt_conformance.cases.steps import Act, Job, Like
from ckpt_conformance.cases.texts import ScenarioError, fill

LATEST = {"do": "latest", "expect": {"exit": "done"}}
KILL = {"name": "before-data", "rank": 1, "action": "kill"}


def table(*steps: dict[str, Any], case: dict[str, Any] | None = None, **rest: Any) -> dict[str, Any]:
    return {"title": "t", "why": "w", "clauses": ["P-1"], "cases": {"only": case or {}}, "steps": list(steps or [LATEST]), **rest}


def one(*steps: dict[str, Any], case: dict[str, Any] | None = None, **rest: Any) -> Case:
    (found,) = cases("crash/x", table(*steps, case=case, **rest))
    return found


def save(**rest: Any) -> dict[str, Any]:
    return {"do": "save", "state": "exact", "saves": [1], "expect": {"exit": "done"}, **rest}


def job(**rest: Any) -> Job:
    (step,) = one(save(**rest)).steps
    assert isinstance(step, Job)
    return step


def test_parameters_keep_their_type_as_a_whole_and_become_text_inside() -> None:
    filled, used = fill({"a": "$n", "b": "x${n}y", "k${n}": ["$list"], "c": "$null"}, {"n": 3, "list": [1]})
    assert filled == {"a": 3, "b": "x3y", "k3": [[1]], "c": None}
    assert used == {"n", "list"}


def test_keys_of_encoded_values_are_no_parameters() -> None:
    assert fill({"$float": "1.5"}, {})[0] == {"$float": "1.5"}


def test_short_generation_ids_are_written_out() -> None:
    filled, _ = fill({"1/2/3": "generations/{4/5/6}/x", "a": ["$g"], "b": "1/2", "c": "see 1/2/3"}, {"g": "7/8/9"})
    assert filled == {
        "000001-000000000002-3": "generations/000004-000000000005-6/x",
        "a": ["000007-000000000008-9"],
        "b": "1/2",
        "c": "see 1/2/3",
    }


def test_a_case_has_what_the_file_says_and_may_replace_it() -> None:
    found = one(case={"title": "own", "clauses": ["S-2"], "quick": True}, needs=["uneven"], stores=["file"])
    assert (found.id, found.title, found.why, found.clauses) == ("crash/x.only", "own", "w", ("S-2",))
    assert (found.needs, found.stores, found.quick, found.family) == (("uneven",), ("file",), True, "crash")


def test_titles_may_use_parameters() -> None:
    assert one(case={"point": "before-data"}, title="at ${point}").title == "at before-data"


def test_a_step_is_left_out_where_its_parameter_is_false() -> None:
    steps = [LATEST, {**LATEST, "when": "$also"}]
    assert [len(one(*steps, case={"also": also}).steps) for also in (True, False)] == [2, 1]


def test_short_forms_of_a_job() -> None:
    plain = job(processes=2, saves=[1, {"step": 2, "metrics": {"loss": 1}}])
    assert plain.mesh == {"x": 2}
    assert plain.fields["saves"] == [{"step": 1}, {"step": 2, "metrics": {"loss": 1}}]
    assert (plain.fields["resume"], plain.deadline, plain.adapter, plain.run, plain.devices) == ("head", 60, "a", "main", 2)
    assert job(saves=[{"step": 1, "state": "other"}]).states == ["exact", "other"]


def test_what_is_compared_of_trainings() -> None:
    train = {"do": "train", "steps": 3, "expect": {"exit": "done"}}
    found = one({**train, "keep_as": "k"}, {**train, "expect": {"exit": "done", "like": {"closely": "k", "of": ["losses"]}}})
    last = found.steps[1]
    assert isinstance(last, Job)
    assert last.expect is not None
    assert last.expect.like == Like(name="k", exactly=False, of=("losses",))


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([{"do": "fly"}], "do = 'fly'"),
        ([{**LATEST, "colour": 1}], "step 1: latest: unknown key 'colour'"),
        ([{"do": "latest"}], "either expect, or background"),
        ([{"do": "save", "state": "s", "expect": {"exit": "done"}}], "'saves' is missing"),
        ([{"do": "restore", "expect": {"exit": "done"}}], "'state' is missing"),
        ([save(saves=[{"step": 1, "stp": 2}])], "unknown key 'stp'"),
        ([save(expect={"exit": "fine"})], "expect.exit is 'fine'"),
        ([save(expect={"answer": {}})], "'exit' is missing"),
        ([save(expect={"exit": "done", "step": 1})], "only restore"),
        (
            [{"do": "train", "steps": 1, "expect": {"exit": "refused", "error": "call", "like": {"exactly": "k"}}}],
            "all must be done",
        ),
        ([{"do": "restore", "state": "s", "expect": {"exit": "done", "content": {"a": 1}}}], "goes with expect.step"),
        ([save(processes=0)], "processes is 0"),
        ([save(processes=True)], "processes is True"),
        ([save(processes=2, mesh={"x": 3})], "3 devices cannot be shared evenly by 2"),
        ([save(mesh={"x": "2"})], "mesh.x is '2'"),
        ([save(processes=2, expect={"exit": ["done"]})], "exit has 1 entries, and there are 2 processes"),
        ([save(processes=2, expect={"exit": "done", "answer": {"ranks": [{}]}})], "answer.ranks has 1 entries"),
        ([save(mesh={"x": 2}, remap={"0": 1})], "as many devices as processes"),
        ([save(failpoint={"name": "x", "rank": 0, "action": "kill"})], "failpoint.name is 'x'"),
        ([save(failpoint={"name": "before-data", "rank": 1, "action": "kill"})], "failpoint.rank is 1"),
        ([save(failpoint={"name": "before-data", "rank": 0, "action": "sing"})], "failpoint.action is 'sing'"),
        ([save(expect={"exit": "any"})], "expect.exit is 'any'"),
        ([save(expect={"exit": "done-or-refused"})], "expect.error"),
        ([save(expect={"exit": "refused"})], "expect.error"),
        ([save(expect={"exit": "killed"})], "no failpoint kills it"),
        ([save(processes=2, expect={"exit": ["gone", "done"]})], "rank 0 is expected to be gone"),
        ([save(processes=2, failpoint=KILL, expect={"exit": "gone"})], "rank 1 is expected to be gone"),
        ([save(processes=2, failpoint=KILL, expect={"exit": "killed"})], "rank 0 is expected to be killed"),
        ([save(processes=2, failpoint={**KILL, "action": "error"}, expect={"exit": ["killed", "done"]})], "rank 0 is expected"),
        ([{**save(background="j"), "expect": {"exit": "done"}}], "either expect, or background"),
        ([{"do": "save", "state": "s", "saves": [1], "background": "j"}], "stops itself"),
        ([{"do": "kill", "job": "j"}], "no step before it has background = 'j'"),
        ([{"do": "store", "generations": {"1/2/3": {"color": 1}}}], "generations.000001-000000000002-3: unknown key 'color'"),
        ([{"do": "damage"}], "'ops' is missing"),
        ([{**LATEST, "adapter": "c"}], "adapter is 'c'"),
        ([{**LATEST, "adapter": "b"}], "roles = 2"),
        ([{**LATEST, "when": 1}], "when is 1"),
        ([save(processes=2, nodes=["a"])], "nodes has 1 entries, and there are 2 processes"),
        ([save(nodes=["../a"])], "nodes has '../a'"),
        ([save(nodes=["a", "b"], processes=2, mesh={"x": 4})], "as many devices as processes"),
        ([{"do": "restore", "state": "s", "nodes": ["a"], "expect": {"exit": "done"}}], "only with mode"),
        ([{**LATEST, "nodes": ["a"]}], "latest: unknown key 'nodes'"),
        ([{"do": "lose"}], "'node' is missing"),
        ([save(copies=True)], "goes with nodes"),
        ([save(nodes=["a"], copies=1)], "copies is true or false"),
        ([save(processes=2, failpoint={**KILL, "action": "hold"})], "adapters that make copies only"),
        ([save(processes=2, nodes=["a", "b"], copies=True, failpoint={**KILL, "action": "hold"})], "without background"),
        ([save(processes=2, failpoint=[KILL, {**KILL, "rank": 0}])], "adapters that make copies only"),
        ([save(processes=2, failpoint=[KILL, KILL])], "a rank has one only"),
        ([{"do": "store", "node": "a", "incarnations": {"1": "base"}}], "nodes have no incarnations"),
        ([{"do": "store", "node": "a", "generations": {"1/2/3": {"staged": [0]}}}], "unknown key 'staged'"),
        ([{"do": "store", "generations": {"1/2/3": {"half": [0]}}}], "unknown key 'half'"),
        ([{**LATEST, "keep_as": "k"}], "only train"),
        ([{"do": "train", "steps": 1, "expect": {"exit": "done", "like": {"exactly": "k"}}}], "keep_as = 'k'"),
        ([{"do": "train", "steps": 1, "expect": {"exit": "done", "like": {}}}], "either exactly or closely"),
        ([{"do": "latest", "expect": {"exit": "done"}, "run": "$nobody"}], "there is no parameter 'nobody'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_step_is_refused(steps: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(ScenarioError) as error:
        one(*steps)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"colour": 1}, "unknown key 'colour'"),
        ({"cases": {}}, "at least one case"),
        ({"steps": []}, "at least one case and one step"),
        ({"cases": {"Bad_name": {}}}, "'Bad_name' is no name"),
        ({"cases": {"only": {"spare": 1}}}, "parameter 'spare' is used by no step"),
        ({"clauses": []}, "a clause"),
        ({"clauses": ["P1"]}, "'P1' is no clause"),
        ({"title": ""}, "a case has a title"),
        ({"roles": 2}, "roles = 2"),
        ({"roles": 3}, "roles is 3"),
        ({"stores": ["tape"]}, "stores is 'tape'"),
        ({"cases": {"only": {"quick": "yes"}}}, "quick is 'yes'"),
        ({"cases": {"only": 1}}, "expected a table"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_file_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError) as error:
        cases("crash/x", {**table(), **change})
    assert message in str(error.value)


def test_every_case_has_every_parameter() -> None:
    with pytest.raises(ScenarioError, match="no parameter 'run'"):
        cases("crash/x", {**table({**LATEST, "run": "$run"}), "cases": {"one": {"run": "r"}, "two": {}}})


def test_errors_name_the_file(tmp_path: Path) -> None:
    folder = tmp_path / "crash"
    folder.mkdir()
    for text, message in (("title = ", "Invalid value"), ('title = "x"', "'cases' is missing"), ("\xff", "")):
        (folder / "y.toml").write_bytes(text.encode("latin-1"))
        with pytest.raises(ScenarioError, match=r"crash/y\.toml") as error:
            load_file(folder / "y.toml")
        assert message in str(error.value)


def test_acts_keep_their_fields() -> None:
    (step,) = one({"do": "store", "run": "fork", "generations": {"1/2/3": {"decision": "none"}}}).steps
    assert step == Act(do="store", fields={"run": "fork", "generations": {"000001-000000000002-3": {"decision": "none"}}})


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [
        ("crash/x.only", True),
        ("crash/", True),
        ("crash", True),
        ("*/x.*", True),
        ("crash/x.o?ly", True),
        ("x.only", False),
        ("crash/y", False),
    ],
)
def test_cases_are_named_by_id_beginning_or_pattern(pattern: str, matches: bool) -> None:  # noqa: FBT001
    assert names(pattern, "crash/x.only") is matches


def test_selection_by_all_that_can_be_asked() -> None:
    found = [one(case={"quick": True}), one(stores=["file"])]
    assert select(found, []) == found
    assert select(found, [], quick=True) == found[:1]
    assert select(found, [], store="s3") == found[:1]
    assert select(found, ["nothing"]) == []
    assert select(found, ["nothing", "crash"]) == found
