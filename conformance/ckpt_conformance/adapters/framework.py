"""What the verbs need of a framework. There is one for JAX and one for PyTorch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, Protocol

import numpy as np

from ckpt_conformance.adapters.request import Request
from ckpt_conformance.adapters.state import Box, Leaf
from ckpt_conformance.adapters.training import Model
from ckptcore.backend import Backend


class Devices(Protocol):
    """The devices of this process, as part of the job's mesh."""

    def array(self, leaf: Leaf, step: int) -> Any:
        """An array of the leaf's elements at a step, where the leaf says that it lies."""
        ...

    def blank(self, leaf: Leaf) -> Any:
        """What to restore the leaf into."""
        ...

    def boxes(self, array: Any) -> Sequence[Box]:
        """What this process holds of an array, each distinct box once; of random keys the key data."""
        ...

    def model(self, beginning: Mapping[Leaf, np.ndarray], batch: int) -> Model:
        """The model of the training task, from its arrays at the beginning; `batch` rows over all processes."""
        ...


class Framework(Protocol):
    """One framework and the product's package for it."""

    @property
    def name(self) -> str:
        """As the format calls it."""
        ...

    @property
    def library(self) -> ModuleType:
        """The product's package."""
        ...

    @property
    def features(self) -> Sequence[str]:
        """What the adapter offers beyond the verbs."""
        ...

    @property
    def devices_per_process(self) -> int | str:
        """1, or `any`."""
        ...

    @property
    def preloaded(self) -> Sequence[str]:
        """What a fork server imports beside the adapter: modules that the framework imports late."""
        ...

    def dtypes(self) -> list[str]:
        """The logical dtypes that it has arrays of."""
        ...

    def join(self, request: Request) -> Devices:
        """Become a process of the job: start the framework with as many devices as the mesh asks of each process."""
        ...

    def backend(self, url: str) -> Backend:
        """The product's backend, for a run at `url`."""
        ...
