"""Hyper-parameters of torch's optimizers: what a state of optax does not hold.

Each class gives the options of a parameter group exactly as torch keeps them. `groups` changes them for some parameters: torch
names, in which `*` stands for any text, and the options that differ there; later entries go before earlier ones.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from typing import Any

from ckptcore.errors import CallError

Groups = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Hyper(ABC):
    """The options of an optimizer. `lr` is what the next step uses; give a schedule's value, and its scheduler its own state."""

    lr: float
    groups: Groups = field(default_factory=dict)

    def __post_init__(self) -> None:
        known = {option.name for option in fields(self)} - {"groups"}
        for pattern, options in self.groups.items():
            if set(options) - known:
                unknown = sorted(set(options) - known)
                raise CallError(f"groups {pattern!r}: {type(self).__name__} takes no {unknown}; it takes {sorted(known)}")

    @property
    @abstractmethod
    def options(self) -> dict[str, Any]:
        """The options of a group, without `params`."""

    @property
    @abstractmethod
    def moments(self) -> Mapping[str, str]:
        """Torch's names of the arrays kept per parameter, and optax's."""

    def of(self, parameter: str) -> dict[str, Any]:
        """The options of one parameter, by its torch name."""
        changes = [options for pattern, options in self.groups.items() if fnmatchcase(parameter, pattern)]
        return {key: value for part in (self.options, *changes) for key, value in part.items()}

    def unused(self, parameters: Sequence[str]) -> list[str]:
        """The patterns in `groups` that fit none of `parameters`."""
        return [pattern for pattern in self.groups if not any(fnmatchcase(name, pattern) for name in parameters)]

    def param_groups(self, parameters: Sequence[str]) -> list[dict[str, Any]]:
        """The groups of `parameters`: those with equal options together, as torch keeps them, with their names as `params`."""
        found: list[dict[str, Any]] = []
        for name in parameters:
            options = self.of(name)
            group = next((group for group in found if {**group, "params": None} == {"params": None, **options}), None)
            if group is None:
                found.append({"params": [name], **options})
            else:
                group["params"].append(name)
        return found


@dataclass(frozen=True, kw_only=True)
class _Adam(Hyper):
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    foreach: bool | None = None
    capturable: bool = False
    differentiable: bool = False
    fused: bool | None = None

    @property
    def moments(self) -> Mapping[str, str]:
        """The averages of the gradient and of its square."""
        return {"exp_avg": "mu", "exp_avg_sq": "nu"}

    def _options(self, weight_decay: float, *, decoupled: bool) -> dict[str, Any]:
        return {
            "lr": self.lr,
            "betas": self.betas,
            "eps": self.eps,
            "weight_decay": weight_decay,
            "amsgrad": False,
            "maximize": False,
            "foreach": self.foreach,
            "capturable": self.capturable,
            "differentiable": self.differentiable,
            "fused": self.fused,
            "decoupled_weight_decay": decoupled,
        }


@dataclass(frozen=True, kw_only=True)
class Adam(_Adam):
    """`torch.optim.Adam`. Its weight decay is added to the gradient: `optax.add_decayed_weights` before `optax.adam`."""

    weight_decay: float = 0.0

    @property
    def options(self) -> dict[str, Any]:
        """The options of a group, without `params`."""
        return self._options(self.weight_decay, decoupled=False)


@dataclass(frozen=True, kw_only=True)
class AdamW(_Adam):
    """`torch.optim.AdamW`. The weight decay has to be given: optax's default is 1e-4, torch's 1e-2."""

    weight_decay: float

    @property
    def options(self) -> dict[str, Any]:
        """The options of a group, without `params`."""
        return self._options(self.weight_decay, decoupled=True)


@dataclass(frozen=True, kw_only=True)
class SGD(Hyper):
    """`torch.optim.SGD`, without dampening, which optax does not have."""

    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    foreach: bool | None = None
    differentiable: bool = False
    fused: bool | None = None

    @property
    def options(self) -> dict[str, Any]:
        """The options of a group, without `params`."""
        return {
            "lr": self.lr,
            "momentum": self.momentum,
            "dampening": 0,
            "weight_decay": self.weight_decay,
            "nesterov": self.nesterov,
            "maximize": False,
            "foreach": self.foreach,
            "differentiable": self.differentiable,
            "fused": self.fused,
        }

    @property
    def moments(self) -> Mapping[str, str]:
        """The buffer of momentum; a parameter without momentum has none."""
        return {"momentum_buffer": "trace"}
