"""Training states: those of `scenarios/states.toml`, in the form in which requests carry them."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ckpt_conformance.cases.steps import known, one_of
from ckpt_conformance.cases.texts import ScenarioError, fill

_STATE_KEYS = {"components", "leaves", "derived"}
_LIKE_KEYS = _STATE_KEYS | {"like", "without"}
_LEAF_KEYS = {
    "component", "path", "name", "dtype", "shape", "sharding", "shapes", "ranks", "alias", "prng_impl", "value",
}  # fmt: skip
State = Mapping[str, Any]


def load_states(path: Path) -> dict[str, State]:
    """Name → state, checked. Raises `ScenarioError`."""
    states: dict[str, State] = {}
    try:
        tables, _ = fill(tomllib.loads(path.read_text(encoding="utf-8")), {})
        for name, table in tables.items():
            states[name] = state_of(name, _whole(name, table, states))
    except (OSError, tomllib.TOMLDecodeError, ScenarioError) as error:
        raise ScenarioError(f"{path.name}: {error}") from error
    return states


def state_of(name: str, table: Any) -> State:
    """The state that a table of the file describes: `components`, `leaves`, `derived`. Raises `ScenarioError`."""
    known(f"state {name}", table, _STATE_KEYS, {"components", "leaves"})
    leaves = [_leaf(leaf) for leaf in table["leaves"]]
    named = [leaf["name"] for leaf in leaves]
    for leaf in leaves:
        one_of(f"state {name}: component of {leaf['name']}", leaf["component"], table["components"])
        if "alias" in leaf:
            one_of(f"state {name}: alias of {leaf['name']}", leaf["alias"], named)
    if len(set(named)) != len(named):
        raise ScenarioError(f"state {name}: a name is there twice")
    return {"components": table["components"], "leaves": leaves, "derived": table.get("derived", {})}


def _whole(name: str, table: Any, before: Mapping[str, State]) -> Any:
    """A table that is `like` a state before it, written out.

    Its leaves change those of the other that have their name (a field that is null is taken away), or come after them; `without`
    names leaves, or whole components, that are left out.
    """
    if not isinstance(table, Mapping) or "like" not in table:
        return table
    known(f"state {name}", table, _LIKE_KEYS)
    one_of(f"state {name}: like", table["like"], before)
    other = before[table["like"]]
    leaves = {leaf["name"]: leaf for leaf in other["leaves"]}
    without = set(table.get("without", []))
    for part in without:
        one_of(f"state {name}: without", part, {*leaves, *other["components"]})
    leaves = {key: leaf for key, leaf in leaves.items() if not {key, leaf["component"]} & without}
    for leaf in table.get("leaves", []):
        changed = {**leaves.get(leaf["name"], {}), **leaf}
        leaves[leaf["name"]] = {key: value for key, value in changed.items() if value is not None}
    components = {key: scope for key, scope in other["components"].items() if key not in without}
    return {
        "components": {**components, **table.get("components", {})},
        "leaves": [*leaves.values()],
        "derived": table.get("derived", other["derived"]),
    }


def _leaf(leaf: Any) -> Mapping[str, Any]:
    known("a leaf", leaf, _LEAF_KEYS, {"component", "name"})
    known(leaf["name"], leaf, _LEAF_KEYS, {"value"} if "value" in leaf else {"dtype", "shape"})
    if "path" in leaf:
        return leaf
    rest = leaf["name"].removeprefix(leaf["component"]).removeprefix(".")
    return {**leaf, "path": [["key", part] for part in rest.split(".") if part]}
