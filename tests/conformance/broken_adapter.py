"""The JAX adapter with one of the defects of `conformance/broken`, named by the field `defect` of the request, or with none.

So one server makes the processes of all of them: a defect is put into a process when it has been forked.
"""

from __future__ import annotations

import importlib.util

from ckpt_conformance.adapters.jax import Jax, JaxDevices
from ckpt_conformance.adapters.process import main
from ckpt_conformance.adapters.request import Request
from tests.processes import ROOT


class Defective(Jax):
    def join(self, request: Request) -> JaxDevices:
        if request["defect"] is not None:
            put_in(request["defect"])
        return super().join(request)


def put_in(defect: str) -> None:
    spec = importlib.util.spec_from_file_location(defect, ROOT / "conformance" / "broken" / f"{defect}.py")
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))


if __name__ == "__main__":
    main(Defective())
