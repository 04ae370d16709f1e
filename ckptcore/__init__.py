"""The framework-free core: the checkpoint format, its commit protocol, and reading.

`open_run` reads any checkpoint as host arrays, without the framework that wrote it. Training loops
use `jaxckpt`. What is not named here is internal.
"""

from ckptcore import errors
from ckptcore.formats.safetensors import Safetensors
from ckptcore.run import Run, open_run
from ckptcore.sampler import Sampler
from ckptcore.store import Storage

__all__ = ["Run", "Safetensors", "Sampler", "Storage", "errors", "open_run"]
