"""What the leaves of an optax state are, by their paths: pure.

A state of optax is the states of a chain's transforms, nested in tuples. Understood are `ScaleByAdamState` (count, mu, nu),
`TraceState` (trace), a schedule's count, states without content (clipping, weight decay, a constant learning rate), and the
`step` that `nnx.Optimizer` and a Flax `TrainState` keep beside. A path says where a state lies and what its fields are
called, not which transform it belongs to: that is what hyper-parameters given by the caller stand for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from ckptcore.names import Path

Leaf = TypeVar("Leaf")

ADAM = frozenset({"count", "mu", "nu"})
TRACE = frozenset({"trace"})
COUNTERS = (frozenset({"count"}), frozenset({"step"}))
MOMENTS = ("mu", "nu", "trace")
_WRAPPER = "opt_state"
"""The attribute of `nnx.Optimizer` that holds optax's state."""


@dataclass
class OptaxState(Generic[Leaf]):
    """`moments`: by field (mu, nu, trace) and dotted parameter name. `count` is Adam's; `counters` are the others.

    `strange` are the leaves that are not understood.
    """

    moments: dict[str, dict[str, Leaf]] = field(default_factory=dict)
    count: Leaf | None = None
    counters: list[Leaf] = field(default_factory=list)
    strange: list[Leaf] = field(default_factory=list)

    @property
    def parameters(self) -> dict[str, Leaf]:
        """The parameters that have moments, by name."""
        return next(iter(self.moments.values()), {})


def parse(leaves: Iterable[tuple[Path, Leaf]]) -> OptaxState[Leaf]:
    """Sort the leaves of a state, given by their paths in it, those of empty nodes left out.

    More than one Adam or trace is not understood, nor is one that lacks a field for some parameter.
    """
    states: dict[Path, dict[str, dict[str, Leaf]]] = defaultdict(lambda: defaultdict(dict))
    result: OptaxState[Leaf] = OptaxState()
    for path, leaf in leaves:
        depth = next((depth for depth, element in enumerate(path) if not _is_chain(*element)), len(path))
        name = str(path[depth][1]) if depth < len(path) else ""
        if path and name not in {*MOMENTS, "count", "step"}:
            result.strange.append(leaf)
        else:
            states[path[:depth]][name or "step"][".".join(str(key) for _, key in path[depth + 1 :])] = leaf
    for fields in states.values():
        _add(result, fields)
    return result


def _is_chain(kind: str, key: str | int) -> bool:
    """Whether a path element leads into a chain. (NNX gives a tuple's indexes as keys.)"""
    return kind == "index" or isinstance(key, int) or key == _WRAPPER


def _add(result: OptaxState[Leaf], fields: Mapping[str, Mapping[str, Leaf]]) -> None:
    """Add one transform's state. A `step` may lie beside the others."""
    names = frozenset(fields)
    counts = [fields[name] for name in ("count", "step") if name in fields]
    if any(set(count) != {""} for count in counts):
        result.strange.extend(leaf for leaves in fields.values() for leaf in leaves.values())
    elif names in COUNTERS:
        result.counters.append(counts[0][""])
    elif names in (ADAM, TRACE) and not result.moments and len({frozenset(fields[name]) for name in names - {"count"}}) == 1:
        result.moments = {name: dict(fields[name]) for name in MOMENTS if name in names}
        result.count = counts[0][""] if counts else None
    else:
        result.strange.extend(leaf for leaves in fields.values() for leaf in leaves.values())
