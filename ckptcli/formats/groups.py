"""The two groups of commands."""

from __future__ import annotations

import typer

from ckptcli.formats import from_dcp, from_orbax, from_safetensors, to_dcp, to_orbax, to_safetensors, to_zarr

exports = typer.Typer(
    no_args_is_help=True, add_completion=False, rich_markup_mode=None, help="Write a checkpoint in another format."
)
for command in (to_safetensors.safetensors, to_dcp.dcp, to_orbax.orbax, to_zarr.zarr):
    exports.command()(command)

imports = typer.Typer(
    no_args_is_help=True, add_completion=False, rich_markup_mode=None, help="Make a new run from a checkpoint in another format."
)
for command in (from_safetensors.safetensors, from_orbax.orbax, from_dcp.dcp):
    imports.command()(command)

GROUPS = {"export": exports, "import": imports}
"""By name."""
