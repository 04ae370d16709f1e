"""`ckpt export safetensors`: files as Hugging Face's libraries read them."""

from __future__ import annotations

from typing import Annotated

import typer

from ckptcli.formats.shared import Component, Out, Rules, checkpoint_of, count_of_bytes, exported, reading, rules, tell
from ckptcli.options import Json, Url, Which
from ckptcore.formats.exporting import Exported
from ckptcore.formats.fresh_folder import check_free
from ckptcore.formats.safetensors import Safetensors
from ckptcore.formats.safetensors_export import export_safetensors

DTYPES = {"bf16": "bfloat16", "fp16": "float16", "f16": "float16", "fp32": "float32", "f32": "float32"}

Dtype = Annotated[str | None, typer.Option(metavar="DTYPE", help="Cast floating-point arrays to it, such as bf16 or float32.")]
MaxShard = Annotated[str, typer.Option(metavar="SIZE", help="The most bytes of one of several files.")]


def safetensors(
    context: typer.Context,
    url: Url,
    out: Out,
    which: Which = None,
    *,
    component: Component,
    names: Rules = None,
    dtype: Dtype = None,
    max_shard: MaxShard = "5GB",
    as_json: Json = False,
) -> None:
    """Write a component as safetensors files.

    OUT is one file if it ends in .safetensors; else a folder with model.safetensors, or with several files and their index.
    """
    checkpoint = checkpoint_of(context, url, which)
    options = {"names": rules(names), "dtype": DTYPES.get(dtype or "", dtype), "max_shard_bytes": count_of_bytes(max_shard)}
    target = check_free(out)
    with reading(checkpoint, [component]) as advance:
        files = export_safetensors(checkpoint, target, component=component, progress=advance, **options)
    made = Safetensors(files[-1], component=component)
    found = Exported(len(made.leaves(component)), made.nbytes)
    tell(exported("safetensors", found, checkpoint, [component], path=target, files=files), as_json=as_json)
