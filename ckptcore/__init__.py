"""The framework-free core: the checkpoint format, its commit protocol, and reading.

`open_run` reads any checkpoint as host arrays, without the framework that wrote it. Training loops
use `jaxckpt`. What is not named here is internal.

A name is imported when it is first used: a command, or a program that may never read a checkpoint, begins without.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

if _TYPE_CHECKING:
    from ckptcore import errors
    from ckptcore.formats.safetensors import Safetensors
    from ckptcore.run import Run, open_run
    from ckptcore.sampler import Sampler
    from ckptcore.store import Storage

__all__ = ["Run", "Safetensors", "Sampler", "Storage", "errors", "open_run"]

_HOMES = {
    "Run": "run",
    "Safetensors": "formats.safetensors",
    "Sampler": "sampler",
    "Storage": "store",
    "open_run": "run",
}
"""Public name → the module that has it."""


def __getattr__(name: str) -> _Any:
    if name == "errors":
        return _import_module("ckptcore.errors")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(_import_module(f"{__name__}.{_HOMES[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
