"""Gradients that have been accumulated over several batches and not been used yet: `.grad` of a module's parameters."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from ckptcore.backend import Found
from ckptcore.errors import StructureMismatch, UnsupportedLeaf
from ckptcore.geometry import Box
from ckptcore.names import Path, show_path
from ckptcore.records import ArrayLeaf
from torchckpt import modules, shards
from torchckpt.objects import content
from torchckpt.slots import Leaf, Slot


class Gradients:
    """The gradients of a module as a component: `{"grad_accum": Gradients(model)}`.

    A save between two updates needs them: a restore puts them back, and takes away those of parameters that had none.
    Each is stored under its parameter's name, and divided over ranks like it. What DDP has accumulated in `no_sync()`
    is each rank's own: `PerRank(Gradients(model))`.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module


def leaves(gradients: Gradients, path: Path, component: str) -> list[Leaf]:
    """A gradient for each parameter, or None. Raises `UnsupportedLeaf` for gradients that FSDP2 has not reduced yet."""
    where = show_path(component, path)
    for node in gradients.module.modules():
        if isinstance(node, FSDPModule) and _is_unreduced(node):
            raise UnsupportedLeaf(
                f"{where}: {type(node).__name__} holds gradients that are not reduced yet (set_requires_gradient_sync(False));"
                " save after the backward pass that reduces them"
            )
    held = _parameters(gradients, path, component)
    return [Leaf(path=(*path, ("key", name)), data=parameter.grad) for name, parameter in held]


def slots(gradients: Gradients, path: Path, component: str, places: shards.Places) -> list[Slot]:
    """One slot for each parameter's gradient."""
    return [
        _slot(parameter, (*path, ("key", name)), component, places) for name, parameter in _parameters(gradients, path, component)
    ]


def _slot(parameter: nn.Parameter, path: Path, component: str, places: shards.Places) -> Slot:
    where = show_path(component, path)
    own = partial(_own, parameter, places, where)
    return Slot(path=path, prepare=partial(_prepare, parameter, where), boxes_of=own)


def _parameters(gradients: Gradients, path: Path, component: str) -> list[tuple[str, nn.Parameter]]:
    held = modules.tensors(gradients.module, component, path)
    return [(entry.name, entry.tensor) for entry in held if isinstance(entry.tensor, nn.Parameter)]


def _own(parameter: nn.Parameter, places: shards.Places, where: str, path: Path, record: ArrayLeaf) -> tuple[Box, ...]:  # noqa: ARG001
    if record.shape != tuple(parameter.shape):
        raise StructureMismatch(
            "a gradient does not fit its parameter:", [f"{where}: {list(record.shape)} for {list(parameter.shape)}"]
        )
    return (places.of(parameter, where).own,)


def _prepare(parameter: nn.Parameter, where: str, found: Found | None) -> Callable[[], None]:
    leaf = (found.below or {}).get(()) if found is not None else None
    if leaf is None:
        raise StructureMismatch("this is no gradient:", [f"{where}: the checkpoint has other leaves below it"])
    source = content((), leaf, where)
    if source is None:
        return partial(setattr, parameter, "grad", None)
    if not isinstance(source, torch.Tensor) or source.dtype != parameter.dtype:
        found_as = source.dtype if isinstance(source, torch.Tensor) else type(source).__name__
        raise StructureMismatch("a gradient does not fit its parameter:", [f"{where}: {found_as} for {parameter.dtype}"])
    return partial(_put, parameter, source)


def _put(parameter: nn.Parameter, source: torch.Tensor) -> None:
    """Fill the gradient that is there, or make one that lies like the parameter."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter, requires_grad=False)
    shards.local(parameter.grad).copy_(source)


def _is_unreduced(module: FSDPModule) -> bool:
    """Whether a backward pass has left its gradients with the gathered parameters."""
    groups = module._get_fsdp_state()._fsdp_param_groups  # noqa: SLF001 - nothing public says it
    held = [parameter for group in groups for parameter in group.fsdp_params]
    gathered = [parameter._unsharded_param for parameter in held if hasattr(parameter, "_unsharded_param")]  # noqa: SLF001
    return any(parameter.unsharded_accumulated_grad is not None for parameter in held) or any(
        parameter.grad is not None for parameter in gathered
    )
