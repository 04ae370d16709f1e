"""Whether the components of a commit meet the needs of the level that it states (spec: G-2 to G-6)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_NEEDS = {
    "exact": ("parameters", "optimizer", "schedule", "rng", "data"),
    "coverage": ("parameters", "optimizer", "schedule", "data"),
    "replay": ("parameters", "optimizer", "schedule", "data"),
    "weights": ("parameters",),
}


def unmet(guarantee: Mapping[str, Any], components: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """What is missing for a guarantee, in words; `components`: name → its `kind` and `scope`."""
    derived = guarantee.get("derived", {})
    for need, component in derived.items():
        if component != "step" and component not in components:
            yield f"{need} is said to be in {component!r}, which is not in the commit"
    kinds = {facts["kind"] for facts in components.values()}
    for need in _NEEDS[guarantee["level"]]:
        if need not in kinds and need not in derived:
            yield f"nothing meets the need {need!r} of {guarantee['level']!r}"
    if guarantee["level"] == "coverage" and not _is_global(derived.get("data"), components):
        yield "`coverage` needs a data cursor that no rank's number enters into"


def _is_global(derived: str | None, components: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether all that meets the need `data` is of scope `global` (G-6)."""
    cursors = [facts["scope"] for name, facts in components.items() if facts["kind"] == "data" or name == derived]
    return "rank" not in cursors
