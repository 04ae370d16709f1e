"""Expected failures: `expected/<column>.toml`, a line a case: `"crash/x.y" = "why"`. They are strict: to pass is an error."""

from __future__ import annotations

import tomllib
from collections.abc import Collection
from pathlib import Path

from ckpt_conformance.cases.texts import ScenarioError


def load_expected(folder: Path, column: str, cases: Collection[str]) -> dict[str, str]:
    """Case → why it fails in that column (`jax`, or `jax→torch` of the file `jax-to-torch.toml`). Raises `ScenarioError`."""
    path = folder / f"{column.replace('→', '-to-')}.toml"
    if not path.is_file():
        return {}
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ScenarioError(f"{path}: {error}") from error
    for case, reason in found.items():
        if case not in cases:
            raise ScenarioError(f"{path}: there is no case {case!r}")
        if not isinstance(reason, str) or not reason:
            raise ScenarioError(f"{path}: {case} has no reason")
    return found
