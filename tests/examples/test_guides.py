"""The code in the guides does what they say, and their tables name what there is."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from ckptcli import app
from tests.examples.guides import DOCS, blocks, program, run

ocp = pytest.importorskip("orbax.checkpoint")


def named(guide: str) -> set[str]:
    """The words in code in a guide's tables."""
    rows = [line for line in (DOCS / guide).read_text().splitlines() if line.startswith("| ")]
    return {word for row in rows for code in re.findall(r"`([^`]+)`", row.split(" | ")[0]) for word in re.findall(r"\w+", code)}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*[Ss]harding.*")
def test_from_orbax(tmp_path: Path) -> None:
    run(program("orbax.md", tmp_path))
    for line in "".join(blocks("orbax.md", "sh")).replace("/tmp/orbax", str(tmp_path)).splitlines():
        assert app.main(line.split()[1:]) == 0
    with ocp.StandardCheckpointer() as reader:
        theirs = reader.restore(tmp_path / "exported")
    assert theirs["params"]["w"].shape == (4, 2)


def test_every_option_of_orbax_is_in_the_table() -> None:
    options = {field.name for field in dataclasses.fields(ocp.CheckpointManagerOptions)}
    assert len(options) > 30
    assert options - named("orbax.md") == set()


def test_every_method_of_orbax_is_in_the_table() -> None:
    methods = {name for name, member in vars(ocp.CheckpointManager).items() if not name.startswith("_") and callable(member)}
    assert {"save", "restore", "best_step"} <= methods
    assert methods - named("orbax.md") - {"close"} == set()
