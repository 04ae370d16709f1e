"""A long run, and what the command needs to begin."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from ckptcore import names, records
from ckptcore.names import GenerationId
from tests.ckptcli.support import Ckpt
from tests.ckptcore.support import Job, file_store, manifest
from tests.processes import ROOT

GENERATIONS, FOLDERS = 1000, 20


def long_run(place: Path) -> Path:
    """A run of 1,000 commits in its ledger; the newest 20 have a data folder, as after retention."""
    job = Job(file_store(place / "run"))
    job.open()
    first = manifest(job.save(1))
    for step in range(2, GENERATIONS + 1):
        generation = GenerationId(1, step, 1)
        record = msgspec.structs.replace(first, generation=str(generation), step=step)
        (place / "run" / names.ledger_key(generation)).write_bytes(records.encode(record))
        if step > GENERATIONS - FOLDERS:
            (place / "run" / names.generation_prefix(generation)).mkdir()
    return place / "run"


def test_a_thousand_generations(ckpt: Ckpt, place: Path) -> None:
    run = long_run(place)
    told = ckpt("ls", run).out.splitlines()
    assert len(told) == GENERATIONS + 2
    assert [line.split()[1] for line in told if line.startswith("*")] == ["000001-000000001000-1"]
    (found,) = ckpt("ls", run, "--json").json["runs"]
    assert len(found["generations"]) == GENERATIONS


@pytest.mark.parametrize(
    "arguments", [["--version"], ["ls", "conformance/golden"], ["cat", "conformance/golden/1.0-by-jax-0.1.0", "params.mask"]]
)
def test_no_framework_is_loaded(arguments: list[str]) -> None:
    program = f"import sys; from ckptcli.app import main; main({arguments!r}); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, timeout=60, check=True)
    loaded = {name.partition(".")[0] for name in done.stderr.split()}
    assert loaded & {"jax", "jaxlib", "flax", "torch", "jaxckpt", "torchckpt"} == set()
    assert {"ckptcli", "ckptcore"} <= loaded
