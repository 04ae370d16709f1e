"""The names of `ckptcore` are imported when they are used: importing it costs next to nothing, and all is found as before."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import ckptcore

ROOT = Path(__file__).parents[2]
HEAVY = {"numpy", "tensorstore", "msgspec", "ml_dtypes", "blake3"}


def loaded_after(program: str) -> set[str]:
    """The modules of a fresh interpreter that has run `program`."""
    done = subprocess.run(
        [sys.executable, "-c", f"{program}\nimport sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
        check=True,
    )
    return set(done.stdout.split())


def test_importing_the_package_loads_nothing_else() -> None:
    loaded = loaded_after("import ckptcore")
    assert {name for name in loaded if name.startswith("ckptcore")} == {"ckptcore"}
    assert loaded & HEAVY == set()


def test_listing_checkpoints_loads_nothing_that_restores_them() -> None:
    """`ckpt ls`, as a process of its own."""
    program = "from ckptcli.app import main; main(['ls', 'conformance/golden/1.0-by-jax-0.1.0'])"
    loaded = loaded_after(program)
    assert "ckptcore.inspect.inventory" in loaded
    assert loaded & {"ckptcore.run", "ckptcore.forks", "ckptcore.restore", "ckptcore.formats.safetensors_export"} == set()


@pytest.mark.parametrize("name", ckptcore.__all__)
def test_every_name_is_there_whichever_way_it_is_asked_for(name: str) -> None:
    asked = (
        f"from ckptcore import {name} as one; import ckptcore; assert one is ckptcore.{name}; assert {name!r} in dir(ckptcore)"
    )
    assert "ckptcore" in loaded_after(asked)
    assert getattr(ckptcore, name) is getattr(ckptcore, name)


def test_the_names_are_those_of_their_modules() -> None:
    assert ckptcore.errors is import_module("ckptcore.errors")
    assert ckptcore.open_run is import_module("ckptcore.run").open_run
    assert ckptcore.Safetensors is import_module("ckptcore.formats.safetensors").Safetensors


def test_a_star_gives_the_public_names() -> None:
    assert "ckptcore.run" in loaded_after("from ckptcore import *\nopen_run, Run, Sampler, Safetensors, Storage, errors")


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'ckptcore' has no attribute 'open_runs'"):
        ckptcore.open_runs  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'open_runs'"):
        from ckptcore import open_runs  # type: ignore[attr-defined]  # noqa: F401
