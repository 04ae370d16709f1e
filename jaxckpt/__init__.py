"""Training checkpoints for JAX that can be proven whole.

```
with jaxckpt.Checkpointer("gs://bucket/run-42", interval=1000) as ckpt:
    restored = ckpt.restore_or_init(init, like=abstract)
    ...
    if ckpt.should_save(step):
        ckpt.save(step, components)
```
"""

from importlib.util import find_spec as _find_spec

if _find_spec("jax") is None:
    raise ImportError("jaxckpt needs JAX: pip install 'jaxckpt[jax]'. To read checkpoints without it, use ckptcore.open_run.")

from ckptcore import errors
from ckptcore.components import PerRank, RankZero
from ckptcore.events import Event
from ckptcore.formats.orbax_source import Orbax
from ckptcore.formats.safetensors import Safetensors
from ckptcore.guarantees import Approximate
from ckptcore.handle import SaveHandle
from ckptcore.keep import Best, Keep
from ckptcore.nodes import Local
from ckptcore.restored import Restored
from ckptcore.sampler import Sampler
from ckptcore.schedule import Every, Optimal
from ckptcore.store import Storage
from jaxckpt.checkpointer import Checkpointer, open_run
from jaxckpt.joining import initialize
from jaxckpt.rng import host_rng_state

__all__ = [
    "Approximate",
    "Best",
    "Checkpointer",
    "Event",
    "Every",
    "Keep",
    "Local",
    "Optimal",
    "Orbax",
    "PerRank",
    "RankZero",
    "Restored",
    "Safetensors",
    "Sampler",
    "SaveHandle",
    "Storage",
    "errors",
    "host_rng_state",
    "initialize",
    "open_run",
]
