"""The random generators of a process: Python's, numpy's, torch's for the CPU and for every device it sees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ckptcore import hostrandom
from ckptcore.components import PerRank
from ckptcore.errors import StructureMismatch

_NAME = "rng_state"


def rng_state() -> PerRank:
    """A component that holds the random generators of each rank.

    Use it as `components["rng"] = rng_state()`. It reads the global generators of `random`, `numpy.random` and torch
    (CPU and all devices that the process sees) when a checkpoint is saved, and sets them when one is restored; each rank
    has its own. A generator of your own, as in `DataLoader(generator=…)`, is not among them.
    """
    return PerRank(RandomState())


class RandomState:
    """Captures and restores the global random generators. Its state is made of plain values."""

    def get_state(self) -> dict[str, Any]:
        """`{"python": …, "numpy": …, "torch": bytes, "device": "cuda" or None, "devices": [bytes, …]}`."""
        kind = _device()
        return {
            **hostrandom.capture(),
            "torch": _bytes(torch.get_rng_state()),
            "device": kind,
            "devices": [_bytes(state) for state in _device_states(kind)],
        }

    def set_state(self, state: Any) -> None:
        """Put a state from `get_state` back.

        Raises `StructureMismatch`, and changes nothing, for anything else, and for a state of more, fewer or other
        devices than this process sees.
        """
        apply_host = hostrandom.prepare(state, name=_NAME)
        apply_torch = _prepare(state)
        apply_host()
        apply_torch()


def _prepare(state: dict[str, Any]) -> Callable[[], None]:
    """What sets torch's generators. Every state is tried on a generator of its own first."""
    kind = _device()
    try:
        _check_devices(state["device"], len(state["devices"]), kind)
        cpu = _tried(state["torch"], "cpu")
        devices = [_tried(saved, kind) for saved in state["devices"]]
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise hostrandom.foreign(_NAME, f"{type(error).__name__}: {error}") from error

    def apply() -> None:
        torch.set_rng_state(cpu)
        if kind is not None:
            _set_device_states(kind, devices)

    return apply


def _check_devices(saved_kind: str | None, saved: int, kind: str | None) -> None:
    count = len(_device_states(kind))
    if (saved_kind, saved) != (kind, count):
        raise StructureMismatch(
            "the random state is that of other devices: let every process see as many as when it was saved"
            " (CUDA_VISIBLE_DEVICES), or leave the component out of the restore",
            [f"saved: {_shown(saved_kind, saved)}, here: {_shown(kind, count)}"],
        )


def _shown(kind: str | None, count: int) -> str:
    return f"{count} {kind} {'device' if count == 1 else 'devices'}" if kind else "no device"


def _device() -> str | None:
    """The kind of the accelerator that this process sees: `cuda`, `xpu`, `mps`, …"""
    device = torch.accelerator.current_accelerator(check_available=True)
    return None if device is None else device.type


def _device_states(kind: str | None) -> list[torch.Tensor]:
    if kind is None:
        return []
    module = torch.get_device_module(kind)
    # A kind with one device, as mps, has no function for all of them.
    return module.get_rng_state_all() if hasattr(module, "get_rng_state_all") else [module.get_rng_state()]


def _set_device_states(kind: str, states: list[torch.Tensor]) -> None:
    module = torch.get_device_module(kind)
    if hasattr(module, "set_rng_state_all"):
        module.set_rng_state_all(states)
    else:
        module.set_rng_state(*states)


def _tried(saved: Any, kind: str | None) -> torch.Tensor:
    """A state as torch wants it, uint8. Raises when no generator of that kind takes it."""
    state = torch.frombuffer(bytearray(saved), dtype=torch.uint8)
    torch.Generator(kind or "cpu").set_state(state)
    return state


def _bytes(state: torch.Tensor) -> bytes:
    return state.cpu().numpy().tobytes()
