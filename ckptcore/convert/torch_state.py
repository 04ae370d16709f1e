"""What the leaves of a torch optimizer are, by their paths."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from ckptcore.convert.shown import Shape, is_array, shape_of
from ckptcore.names import Path
from ckptcore.readable import Readable, StoredLeaf

COUNT = "step"
MOMENT_OF: Mapping[str, str] = MappingProxyType({"mu": "exp_avg", "nu": "exp_avg_sq", "trace": "momentum_buffer"})
"""Optax's names of moments, and torch's."""

_ALL_EQUAL = ("betas", "eps", "momentum", "nesterov")
"""Options that optax has once for all parameters."""
_REFUSED = ("amsgrad", "maximize", "dampening")
"""Options without a counterpart in optax; they have to be off."""
_NEEDS = {"mu": ("betas", "amsgrad"), "trace": ("momentum", "dampening")}
"""Options by which the optimizers are told that have a moment of optax's."""


@dataclass
class TorchState:
    """`parameters`: per name, in the order of the groups, its arrays and its step; `groups`: the options of each group.

    `strange` are the leaves that are not understood.
    """

    parameters: dict[str, dict[str, StoredLeaf]] = field(default_factory=dict)
    groups: list[dict[str, Any]] = field(default_factory=list)
    strange: list[StoredLeaf] = field(default_factory=list)

    @classmethod
    def of(cls, stored: Sequence[tuple[Path, StoredLeaf]], source: Readable) -> TorchState:
        """Sort the leaves of an optimizer, given by their paths in it."""
        result = cls()
        result.groups = _groups(stored, source)
        result.parameters = {str(name): {} for group in result.groups for name in group.get("params", ())}
        for path, leaf in stored:
            if path[0] != ("key", "param_groups") and not _is_nothing(leaf, source):
                result._add(tuple(key for _, key in path), leaf)
        return result

    def _add(self, keys: tuple[str | int, ...], leaf: StoredLeaf) -> None:
        known = len(keys) == 3 and keys[0] == "state" and keys[2] in {COUNT, *MOMENT_OF.values()}
        if known and (is_array(leaf) or keys[2] == COUNT):
            self.parameters.setdefault(str(keys[1]), {})[str(keys[2])] = leaf
        else:
            self.strange.append(leaf)

    @property
    def counts(self) -> bool:
        """Whether the optimizer counts steps."""
        return any("betas" in group for group in self.groups) or any(COUNT in keys for keys in self.parameters.values())

    @property
    def shapes(self) -> dict[str, Shape | None]:
        """The shape of each parameter, as far as its moments tell."""
        moments = {fqn: [leaf for key, leaf in keys.items() if key != COUNT] for fqn, keys in self.parameters.items()}
        return {fqn: shape_of(leaves[0]) if leaves else None for fqn, leaves in moments.items()}

    def misfits(self, moments: Collection[str]) -> list[str]:
        """Why the groups' options cannot be those of an optimizer of optax that has `moments`."""
        problems = [
            f"param_groups of {group['params'][:1]}: {name}={group[name]!r} has no counterpart in optax"
            for group in self.groups
            for name in _REFUSED
            if group.get(name)
        ]
        for name in _ALL_EQUAL:
            found = list({repr(group[name]): None for group in self.groups if name in group})
            if len(found) > 1:
                problems.append(f"param_groups differ in {name}: {', '.join(found)}; optax has one for all parameters")
        for moment, options in _NEEDS.items():
            lacking = [group for group in self.groups if not group.keys() >= set(options)]
            if moment in moments and (lacking or not self.groups):
                problems.append(f"the target has the moment {moment!r} of optax, which this optimizer of torch does not keep")
        return problems


def _groups(stored: Sequence[tuple[Path, StoredLeaf]], source: Readable) -> list[dict[str, Any]]:
    """The options of each group. One that has a tensor (a learning rate) is stored in parts; its digest stands for the tensor."""
    found: dict[Any, dict[str, Any]] = {}
    for path, leaf in stored:
        if path[0] == ("key", "param_groups"):
            content: Any = source.digest(leaf) if is_array(leaf) else source.value(leaf)
            group = found.setdefault(path[1:2], {})
            if len(path) > 3:
                group.setdefault(str(path[2][1]), {})[path[3:]] = content
            else:
                group.update(content if len(path) < 3 else {str(path[2][1]): content})
    return list(found.values())


def _is_nothing(leaf: StoredLeaf, source: Readable) -> bool:
    """Whether it is a value without content: `momentum_buffer` before the first step is None."""
    if is_array(leaf):
        return False
    value = source.value(leaf)
    return value is None or (isinstance(value, dict) and all(item is None for item in value.values()))
