"""A small model, every optimizer of torch for it, and what they hold, in a form that compares."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn, optim

from tests.torchckpt.held import fill, hold
from torchckpt import optimizers

Make = Callable[[nn.Module], optim.Optimizer]


def laid_out(module: nn.Module, form: torch.memory_format) -> Any:
    """A module with its tensors in another layout."""
    return module.to(memory_format=form)  # type: ignore[call-overload] - torch's stubs lack it


class Net(nn.Module):
    """Two layers, a channels-last convolution, and a parameter that never gets a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = laid_out(nn.Conv2d(3, 4, 2), torch.channels_last)
        self.head = nn.Linear(4, 2)
        self.unused = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.conv(x)).mean((2, 3)))


def net(seed: int = 0) -> Net:
    torch.manual_seed(seed)
    return Net()


def two_groups(kind: Any, **options: Any) -> Make:
    """Groups that differ in all that they can."""

    def make(model: nn.Module) -> optim.Optimizer:
        matrices = [p for p in model.parameters() if p.ndim > 1]
        others = [p for p in model.parameters() if p.ndim == 1]
        first, second = options.get("lr", 1e-2), options.get("lr", 1e-2) / 3
        return kind([{"params": matrices, "weight_decay": 0.1, "lr": first}, {"params": others, "lr": second}], **options)

    return make


def one_group(kind: Any, **options: Any) -> Make:
    return lambda model: kind(list(model.parameters()), **options)


def lbfgs(**options: Any) -> Make:
    """It takes contiguous parameters only."""
    return lambda model: optim.LBFGS(list(laid_out(model, torch.contiguous_format).parameters()), **options)


MAKERS: dict[str, Make] = {
    "adam": two_groups(optim.Adam),
    "adam-amsgrad": two_groups(optim.Adam, amsgrad=True, betas=(0.8, 0.95)),
    "adam-single": two_groups(optim.Adam, foreach=False),
    "adam-foreach": two_groups(optim.Adam, foreach=True),
    "adamw": two_groups(optim.AdamW),
    "adamw-fused": two_groups(optim.AdamW, fused=True),
    "sgd": two_groups(optim.SGD),
    "sgd-momentum": two_groups(optim.SGD, momentum=0.9),
    "sgd-nesterov": two_groups(optim.SGD, momentum=0.9, nesterov=True),
    "adagrad": two_groups(optim.Adagrad, lr_decay=0.1, initial_accumulator_value=0.2),
    "adadelta": two_groups(optim.Adadelta),
    "adamax": two_groups(optim.Adamax),
    "nadam": two_groups(optim.NAdam),
    "radam": two_groups(optim.RAdam),
    "rmsprop": two_groups(optim.RMSprop, momentum=0.9, centered=True),
    "rprop": one_group(optim.Rprop),
    "asgd": two_groups(optim.ASGD, t0=2),
    "adafactor": two_groups(optim.Adafactor),
    "lbfgs": lbfgs(max_iter=3, history_size=4),
    "lbfgs-wolfe": lbfgs(max_iter=3, line_search_fn="strong_wolfe"),
    "muon": lambda model: optim.Muon([p for p in model.parameters() if p.ndim == 2]),
}


def names(model: nn.Module) -> dict[int, str]:
    return {id(parameter): name for name, parameter in model.named_parameters()}


def train(model: nn.Module, optimizer: optim.Optimizer, steps: range) -> list[float]:
    """The loss of each step; the data depend on its number alone."""
    losses: list[float] = []
    for step in steps:
        x = torch.randn(5, 3, 4, 4, generator=torch.Generator().manual_seed(step))

        def closure(x: torch.Tensor = x) -> torch.Tensor:
            optimizer.zero_grad()
            loss = (model(x) - 1).square().mean()
            loss.backward()
            return loss

        losses.append(optimizer.step(closure).item())  # type: ignore[arg-type] - a step with a closure returns its loss
    return losses


def save(model: nn.Module, optimizer: optim.Optimizer) -> dict[Any, Any]:
    return hold(optimizers.leaves(optimizer, names(model), (), "optimizer"))


def restore(model: nn.Module, optimizer: optim.Optimizer, held: Any) -> None:
    fill(optimizers.slots(optimizer, names(model), (), "optimizer"), held)


def copy_parameters(source: nn.Module, target: nn.Module) -> None:
    with torch.no_grad():
        for old, new in zip(source.parameters(), target.parameters(), strict=True):
            new.copy_(old)


def described(value: Any) -> Any:
    """A value with the types, dtypes, strides and bytes of everything in it."""
    if isinstance(value, torch.Tensor):
        return (type(value), value.dtype, tuple(value.shape), value.stride(), value.device, value.detach().flatten().tolist())
    if isinstance(value, dict):
        return {key: described(value[key]) for key in sorted(value, key=str)}
    if isinstance(value, list | tuple):
        return (type(value), [described(item) for item in value])
    return (type(value), repr(value))


def everything(model: nn.Module, optimizer: optim.Optimizer) -> Any:
    """All that an optimizer holds, by name."""
    named = names(model)
    groups = [{**group, "params": [named[id(p)] for p in group["params"]]} for group in optimizer.param_groups]
    state = {named[id(p)]: state for p, state in optimizer.state.items() if state}
    return described({"state": state, "groups": groups})


def tensors(tree: Any) -> Iterator[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, dict | list | tuple):
        for item in tree.values() if isinstance(tree, dict) else tree:
            yield from tensors(item)


def identities(optimizer: optim.Optimizer) -> list[tuple[int, int]]:
    found = tensors([dict(optimizer.state), [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]])
    return [(id(tensor), tensor.data_ptr()) for tensor in found]
