"""`ckpt export dcp`: a folder that torch.distributed.checkpoint loads."""

from __future__ import annotations

from typing import Annotated

import typer

from ckptcli.formats.shared import Component, Out, Rules, checkpoint_of, exported, reading, rules, tell, torch_part
from ckptcli.options import Json, Url, Which
from ckptcore.formats.fresh_folder import check_free

Prefix = Annotated[str, typer.Option(metavar="TEXT", help="What comes before each name: the empty text for a bare state dict.")]


def dcp(
    context: typer.Context,
    url: Url,
    out: Out,
    which: Which = None,
    *,
    component: Component,
    prefix: Prefix = "model.",
    names: Rules = None,
    as_json: Json = False,
) -> None:
    """Write a component for torch.distributed.checkpoint.

    OUT is a folder that its load() reads into a state dict. Needs PyTorch.
    """
    torch = torch_part("dcp_export")
    checkpoint, target = checkpoint_of(context, url, which), check_free(out)
    with reading(checkpoint, [component]) as advance:
        found = torch.export_dcp(checkpoint, target, component=component, prefix=prefix, names=rules(names), progress=advance)
    tell(exported("dcp", found, checkpoint, [component], path=target), as_json=as_json)
