"""`ckpt import dcp`: a new run from a folder of torch.distributed.checkpoint."""

from __future__ import annotations

from typing import Annotated

import typer

from ckptcli.formats.shared import Called, NewRun, Rules, Source, bring_in, rules, torch_part
from ckptcli.options import Json

Prefix = Annotated[
    str, typer.Option(metavar="TEXT", help="Which tensors, and what is taken away from their names; the empty text for all.")
]
AllowPickle = Annotated[
    bool,
    typer.Option(
        "--allow-pickle",
        help="Unpickle tensors that torch refuses to load safely. This RUNS WHATEVER CODE the files name, as you: only for files"
        " that you wrote yourself.",
    ),
]


def dcp(
    context: typer.Context,
    src: Source,
    url: NewRun,
    *,
    component: Called,
    prefix: Prefix = "model.",
    names: Rules = None,
    allow_pickle: AllowPickle = False,
    as_json: Json = False,
) -> None:
    """Make a new run from a torch.distributed.checkpoint folder.

    Needs PyTorch. No code of the files is run, unless --allow-pickle is given.
    Other runs start from the new one (start_from); none resumes from it.
    """
    torch = torch_part("dcp_source")
    source = torch.DcpCheckpoint(src, component=component, prefix=prefix, names=rules(names), allow_pickle=allow_pickle)
    bring_in(context, source, url, as_json=as_json)
