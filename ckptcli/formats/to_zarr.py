"""`ckpt export zarr`: a plain zarr version 3 hierarchy."""

from __future__ import annotations

import typer

from ckptcli.formats.shared import Components, Out, checkpoint_of, chosen, exported, reading, tell
from ckptcli.options import Json, Url, Which
from ckptcore.formats.fresh_folder import check_free
from ckptcore.formats.zarr_export import export_zarr


def zarr(
    context: typer.Context, url: Url, out: Out, which: Which = None, *, component: Components = None, as_json: Json = False
) -> None:
    """Write a checkpoint as a zarr 3 hierarchy.

    There is a group for each component and container, an array for each leaf; values are attributes.
    """
    checkpoint, target = checkpoint_of(context, url, which), check_free(out)
    components = chosen(checkpoint, component)
    with reading(checkpoint, components) as advance:
        found = export_zarr(checkpoint, target, components=components, progress=advance)
    tell(exported("zarr", found, checkpoint, components, path=target), as_json=as_json)
