"""`ckpt import safetensors`: a new run from safetensors files."""

from __future__ import annotations

import typer

from ckptcli.formats.shared import Called, NewRun, Rules, Source, bring_in, rules
from ckptcli.options import Json
from ckptcore.formats.safetensors import Safetensors


def safetensors(
    context: typer.Context, src: Source, url: NewRun, *, component: Called, names: Rules = None, as_json: Json = False
) -> None:
    """Make a new run from safetensors files.

    SRC is a file, an index, or a folder with one of them. Other runs start from the new one (start_from); none resumes from it.
    """
    bring_in(context, Safetensors(src, component=component, names=rules(names)), url, as_json=as_json)
