"""What the nodes of a component are, and the names that optimizers know their parameters by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ckptcore import components as parts
from ckptcore.names import Path
from torchckpt import modules, tree


def is_empty(node: Any) -> bool:
    """Whether `node` is None or a container without children: a leaf of its own, so that it survives."""
    return node is None or (isinstance(node, dict | list | tuple) and not node)


class ParameterNames:
    """The names of all parameters in a set of components: modules' own, and those of single tensors in trees.

    An optimizer knows parameters only as objects. Its state is stored under their names in the component that
    holds them; if there are several such components, each name begins with its component's.
    """

    def __init__(self, components: Mapping[str, Any]) -> None:
        self._known: dict[int, tuple[str, str]] = {}
        found = [(part, *held) for part, value in components.items() for held in tree.walk(part, parts.unwrap(value)[0])]
        # Modules first: that a tree has one of their tensors too, before or after them, does not change its name.
        for component, path, node in sorted(found, key=lambda held: not isinstance(held[2], torch.nn.Module)):
            for key, name in _names(path, node).items():
                self._known.setdefault(key, (component, name))

    def of(self, optimizer: torch.optim.Optimizer) -> Mapping[int, str]:
        """The names of the optimizer's parameters that are known, by the parameter's `id`."""
        held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        found = {id(parameter): self._known[id(parameter)] for parameter in held if id(parameter) in self._known}
        several = len({component for component, _ in found.values()}) > 1
        return {key: f"{component}.{name}" if several else name for key, (component, name) in found.items()}


def _names(path: Path, node: Any) -> dict[int, str]:
    above = ".".join(str(element) for _, element in path)
    if isinstance(node, torch.nn.Module):
        return {key: f"{above}.{name}" if above else name for key, name in modules.names(node).items()}
    return {id(node): above} if isinstance(node, torch.Tensor) and above else {}
