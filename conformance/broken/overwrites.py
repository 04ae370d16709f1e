"""Defect: what is there is overwritten in place. (The probe of the store, which would notice, is left as it is.)"""

from __future__ import annotations

from pathlib import Path

from ckpt_conformance.adapters.jax import Jax
from ckpt_conformance.adapters.process import main
from ckptcore.filestore import FileStore


def _put(self: FileStore, key: str, path: str, data: bytes) -> bytes:
    if not key.startswith("probe/"):
        Path(path).unlink(missing_ok=True)
    return _put_if_absent(self, key, path, data)


_put_if_absent, FileStore._put = FileStore._put, _put  # noqa: SLF001 -- a defect is put where the work is done

if __name__ == "__main__":
    main(Jax())
