"""`ckpt import orbax`: a new run from an Orbax checkpoint."""

from __future__ import annotations

from typing import Annotated

import typer

from ckptcli.formats.shared import Called, NewRun, Rules, Source, bring_in, count_of_bytes, rules
from ckptcli.options import Json
from ckptcore.formats.orbax_source import Orbax

Subtree = Annotated[
    str | None,
    typer.Option(metavar="KEYS", help="Which leaves: the keys on the way to them, with dots. Default: NAME; '' for all."),
]
Item = Annotated[str | None, typer.Option(metavar="ITEM", help="Which item of a CheckpointManager's.")]
Step = Annotated[int | None, typer.Option(metavar="STEP", help="Which step; the newest by default.")]
MaxChunk = Annotated[str, typer.Option(metavar="SIZE", help="The most memory for one chunk of an array.")]


def orbax(
    context: typer.Context,
    src: Source,
    url: NewRun,
    *,
    component: Called,
    subtree: Subtree = None,
    item: Item = None,
    step: Step = None,
    names: Rules = None,
    max_chunk: MaxChunk = "1GiB",
    as_json: Json = False,
) -> None:
    """Make a new run from an Orbax checkpoint.

    SRC is a checkpoint's folder, or a CheckpointManager's. Other runs start from the new one (start_from); none resumes from it.
    """
    options = {"names": rules(names), "item": item, "step": step, "max_chunk_bytes": count_of_bytes(max_chunk)}
    source = Orbax(src, component=component, subtree=subtree, **options)
    bring_in(context, source, url, as_json=as_json)
