"""`ckpt export orbax`: a folder that Orbax restores."""

from __future__ import annotations

import typer

from ckptcli.formats.shared import Components, Out, checkpoint_of, chosen, exported, reading, tell
from ckptcli.options import Json, Url, Which
from ckptcore.formats.fresh_folder import check_free
from ckptcore.formats.orbax_export import export_orbax


def orbax(
    context: typer.Context, url: Url, out: Out, which: Which = None, *, component: Components = None, as_json: Json = False
) -> None:
    """Write a checkpoint for Orbax.

    OUT is a folder that orbax.checkpoint restores, with and without a target. Each component is a subtree.
    """
    checkpoint, target = checkpoint_of(context, url, which), check_free(out)
    components = chosen(checkpoint, component)
    with reading(checkpoint, components) as advance:
        found = export_orbax(checkpoint, target, components=components, progress=advance)
    tell(exported("orbax", found, checkpoint, components, path=target), as_json=as_json)
