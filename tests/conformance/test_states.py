"""`states.toml`: what is filled in, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ckpt_conformance import data
from ckpt_conformance.cases.corpus import load_corpus
from ckpt_conformance.cases.states import load_states, state_of
from ckpt_conformance.cases.texts import ScenarioError

W = {"component": "params", "name": "params.a.w", "dtype": "float32", "shape": [2]}
BASE = """
[one]
components.params = { scope = "global" }
components.extra = { scope = "rank" }
leaves = [
  { component = "params", name = "params.w", dtype = "float32", shape = [4], sharding = ["x"] },
  { component = "params", name = "params.b", value = "int" },
  { component = "extra", name = "extra", value = "int" },
]
derived = { optimizer = "step" }
"""


def state(*leaves: dict[str, Any]) -> Any:
    return state_of("s", {"components": {"params": {"scope": "global"}}, "leaves": list(leaves)})


def load(folder: Path, text: str) -> Any:
    file = folder / "states.toml"
    file.write_text(text)
    return load_states(file)


def test_a_path_follows_from_the_name() -> None:
    found = state(W, {"component": "params", "name": "params", "value": "int"}, {**W, "name": "params.0", "path": [["index", 0]]})
    assert [leaf["path"] for leaf in found["leaves"]] == [[["key", "a"], ["key", "w"]], [], [["index", 0]]]


@pytest.mark.parametrize(
    ("leaf", "message"),
    [
        ({**W, "component": "other"}, "component of params.a.w"),
        ({**W, "alias": "params.x"}, "alias of params.a.w"),
        ({**W, "colour": 1}, "unknown key 'colour'"),
        ({"component": "params", "name": "params.w", "dtype": "float32"}, "'shape' is missing"),
        ({"component": "params", "name": "params.w"}, "'dtype' is missing"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_leaves_are_refused(leaf: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        state(leaf)


def test_names_are_there_once() -> None:
    with pytest.raises(ScenarioError, match="twice"):
        state(W, W)


def test_a_state_like_another_changes_adds_and_leaves_out(tmp_path: Path) -> None:
    text = (
        '[two]\nlike = "one"\nwithout = ["extra", "params.b"]\nleaves = [{ name = "params.w", sharding = "$null", shape = [8] }]'
    )
    found = load(tmp_path, f"{BASE}\n{text}")["two"]
    assert found["components"] == {"params": {"scope": "global"}}
    assert [(leaf["name"], leaf["shape"], "sharding" in leaf) for leaf in found["leaves"]] == [("params.w", [8], False)]
    assert found["derived"] == {"optimizer": "step"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[two]\nlike = "three"', "like is 'three'"),
        ('[two]\nlike = "two"', "like is 'two'"),
        ('[two]\nlike = "one"\nwithout = ["x"]', "without is 'x'"),
    ],
    ids=lambda value: value if value.startswith("like is") else "",
)
def test_a_state_is_like_one_before_it(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        load(tmp_path, f"{BASE}\n{text}")


@pytest.mark.parametrize(
    ("line", "message"), [('state = "none"', "no state 'none'"), ('state = "one"\nmesh = { z = 1 }', "no axis 'x'")]
)
def test_steps_name_states_and_meshes_that_fit(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "states.toml").write_text(BASE)
    (tmp_path / "family").mkdir()
    step = f'[[steps]]\ndo = "save"\nsaves = [1]\nexpect = {{ exit = "done" }}\n{line}\n'
    (tmp_path / "family" / "f.toml").write_text(f'title = "t"\nwhy = "w"\nclauses = ["P-1"]\n[cases.c]\n{step}')
    with pytest.raises(ScenarioError, match=message):
        load_corpus(tmp_path)


def test_the_suite_loads() -> None:
    assert load_corpus(data.folder("scenarios")).states
