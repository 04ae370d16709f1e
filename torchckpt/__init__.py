"""Training checkpoints for PyTorch that can be proven whole.

```
with torchckpt.Checkpointer("gs://bucket/run-42", interval=1000) as ckpt:
    restored = ckpt.restore_or_init(lambda: components, like=components)
    ...
    if ckpt.should_save(step):
        ckpt.save(step, components)
```
"""

from importlib.util import find_spec as _find_spec

if _find_spec("torch") is None:
    raise ImportError(
        "torchckpt needs PyTorch: pip install 'jaxckpt[torch]'. To read checkpoints without it, use ckptcore.open_run."
    )

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
from ckptcore.schedule import Every, Optimal
from ckptcore.store import Storage
from torchckpt.checkpointer import Checkpointer, open_run
from torchckpt.dcp_source import DcpCheckpoint
from torchckpt.gradients import Gradients
from torchckpt.joining import initialize
from torchckpt.preemption import ignore_sigterm
from torchckpt.rng import rng_state
from torchckpt.sampler import Sampler
from torchckpt.tree import Merged

__all__ = [
    "Approximate",
    "Best",
    "Checkpointer",
    "DcpCheckpoint",
    "Event",
    "Every",
    "Gradients",
    "Keep",
    "Local",
    "Merged",
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
    "ignore_sigterm",
    "initialize",
    "open_run",
    "rng_state",
]
