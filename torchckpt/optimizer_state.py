"""The state of one parameter of an optimizer: where each of its tensors lies, and how they are filled again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Replicate

from ckptcore import nested
from ckptcore.backend import Found
from ckptcore.errors import StructureMismatch
from ckptcore.geometry import Box
from ckptcore.names import Path, show_path
from ckptcore.records import ArrayLeaf
from torchckpt import shards
from torchckpt.objects import NUMPY, content


@dataclass(frozen=True, kw_only=True, eq=False)
class Member:
    """A parameter of an optimizer, its name, and its group."""

    name: str
    tensor: torch.Tensor
    group: dict[str, Any]


def on_device(group: Mapping[str, Any]) -> bool:
    """Whether the optimizer reads its counters on the device: torch's rule for `step`, which else stays on the CPU."""
    return bool(group.get("capturable") or group.get("fused"))


@dataclass(frozen=True)
class State:
    """The state of one parameter of the target.

    `shapes` are the global ones of what `boxes_of` was asked about: what is found does not say them.
    """

    optimizer: torch.optim.Optimizer
    member: Member
    places: shards.Places
    where: str
    shapes: dict[Path, tuple[int, ...]] = field(default_factory=dict)

    def boxes_of(self, path: Path, record: ArrayLeaf) -> tuple[Box, ...]:
        """This rank's shard of an array that is divided like one that the target has; else the whole."""
        self.shapes[path] = shape = tuple(record.shape)
        model = None if record.memory_kind == NUMPY else self._model(path, shape)
        return (Box.whole(shape) if model is None else self.places.of(model, show_path(self.where, path)).own,)

    def prepare(self, found: Found | None) -> Callable[[], None]:
        """Make the new tensors, and see which old ones are filled instead."""
        if found is None:
            return lambda: None
        fills: list[tuple[torch.Tensor, torch.Tensor]] = []
        ready = {path: self._ready(path, leaf, fills) for path, leaf in (found.below or {}).items()}
        state = nested.build(ready, where=self.where)
        held = self._held()

        def apply() -> None:
            for old, new in fills:
                shards.local(old).copy_(new)
            held.clear()
            held.update(state)
            self._move_step(held)
            self.optimizer.state[self.member.tensor] = held

        return apply

    def _held(self) -> dict[Any, Any]:
        return self.optimizer.state.get(self.member.tensor, {})

    def _ready(self, path: Path, leaf: Found, fills: list[tuple[torch.Tensor, torch.Tensor]]) -> Any:
        source = content(path, leaf, self.where)
        if not isinstance(source, torch.Tensor):
            return source
        shape = self.shapes.get(path, tuple(source.shape))
        old, model = _at(self._held(), path), self._model(path, shape)
        if self._fits(old, source, shape, model):
            fills.append((old, source))
            return old
        return self._new(path, source, shape, model)

    def _fits(self, old: Any, source: torch.Tensor, shape: tuple[int, ...], model: DTensor | None) -> bool:
        """Whether an old tensor can be filled: it has the dtype and the shape, and is divided in the same way."""
        if not isinstance(old, torch.Tensor) or old.dtype != source.dtype or tuple(old.shape) != shape:
            return False
        return old is model or (model is None and not isinstance(old, DTensor))

    def _model(self, path: Path, shape: tuple[int, ...]) -> DTensor | None:
        """The `DTensor` that an array of `shape` is divided like: the target's own there, or the parameter. None: it is plain."""
        old, tensor = _at(self._held(), path), self.member.tensor
        if isinstance(old, DTensor) and tuple(old.shape) == shape:
            return old
        counter = shape == () and path == (("key", "step"),)
        return tensor if isinstance(tensor, DTensor) and tuple(tensor.shape) == shape and not counter else None

    def _new(self, path: Path, source: torch.Tensor, shape: tuple[int, ...], model: DTensor | None) -> torch.Tensor:
        tensor = self.member.tensor
        if model is not None:
            local = _copy_like(shards.local(model), source)
            mesh, cut = model.device_mesh, model.placements
            return DTensor.from_local(local, mesh, cut, run_check=False, shape=model.shape, stride=model.stride())
        if shape == ():
            return source if path == (("key", "step"),) else source.to(tensor.device)
        if not isinstance(tensor, DTensor):
            return _copy_like(tensor, source) if tuple(tensor.shape) == shape else source.to(tensor.device)
        mesh = tensor.device_mesh
        if mesh.size() > 1:
            raise self._undivided(path, shape, tensor)
        return DTensor.from_local(source.to(tensor.device), mesh, [Replicate()] * mesh.ndim, run_check=False)

    def _undivided(self, path: Path, shape: tuple[int, ...], tensor: DTensor) -> StructureMismatch:
        what = f"an array of shape {list(shape)} beside a parameter of shape {list(tensor.shape)}, {tensor.placements}"
        advice = "run one step before restoring, then the target shows how this state lies"
        return StructureMismatch(
            f"nobody can say how a state is divided over {tensor.device_mesh.size()} ranks:",
            [f"{show_path(self.where, path)}: {what}; {advice}"],
        )

    def _move_step(self, state: dict[Any, Any]) -> None:
        """By now the group says where its counter has to be."""
        step = state.get("step")
        if isinstance(step, torch.Tensor) and not isinstance(step, DTensor) and on_device(self.member.group):
            state["step"] = step.to(self.member.tensor.device)


def _copy_like(model: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """`source` on the device and with the strides of `model`, as `zeros_like` would lay it out."""
    made = torch.empty_like(model, dtype=source.dtype, requires_grad=False)
    if made.device == source.device and made.stride() == source.stride():
        return source
    return made.copy_(source)


def _at(state: Any, path: Path) -> Any:
    """What a state has at a path, or None."""
    for kind, key in path:
        if isinstance(state, dict) and kind == "key":
            state = state.get(key)
        elif isinstance(state, list | tuple) and kind == "index" and isinstance(key, int) and key < len(state):
            state = state[key]
        else:
            return None
    return state
