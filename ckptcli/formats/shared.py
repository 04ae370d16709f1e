"""What exports and imports have in common: their options, and what they print."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.text import Text

from ckptcli import text
from ckptcli.options import named, settings
from ckptcli.output import Advance, emit, progress
from ckptcore.canonical import MAX_INT
from ckptcore.errors import CallError
from ckptcore.formats.exporting import Exported, array_bytes
from ckptcore.formats.foreign import Foreign
from ckptcore.formats.renames import Names
from ckptcore.reader import Checkpoint

Out = Annotated[str, typer.Argument(metavar="OUT", help="A path of the file system; there must be nothing yet.")]
Component = Annotated[str, typer.Option("--component", metavar="NAME", help="Which component; `ckpt show` lists them.")]
Components = Annotated[
    list[str] | None, typer.Option("--component", metavar="NAME", help="Only this component; may be given several times.")
]
Rules = Annotated[
    list[str] | None,
    typer.Option(
        "--names",
        metavar="THERE=HERE",
        help="What begins with THERE in the other format is called HERE in the run; `*` stands for one part of a name. Empty: no"
        " prefix; THERE=- leaves it out. May be given several times.",
    ),
]
Source = Annotated[str, typer.Argument(metavar="SRC", help="Where the checkpoint lies in the file system.")]
NewRun = Annotated[str, typer.Argument(metavar="RUN", help="Where the new run lies; there must be none yet.")]
Called = Annotated[str, typer.Option("--component", metavar="NAME", help="What the leaves are to be called together.")]

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([kMGT]i?)?B?", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


class Written(msgspec.Struct, frozen=True, kw_only=True, tag_field="command", tag="export"):
    """What `ckpt export … --json` prints. `left_out`: what the format has no place for."""

    format: str
    url: str
    generation: str
    components: list[str]
    path: str
    files: list[str]
    arrays: int
    bytes: int
    left_out: list[str]


class Imported(msgspec.Struct, frozen=True, kw_only=True, tag_field="command", tag="import"):
    """What `ckpt import … --json` prints."""

    format: str
    source: str
    url: str
    run_id: str
    generation: str
    component: str
    leaves: int
    bytes: int


def checkpoint_of(context: typer.Context, url: str, which: str | None) -> Checkpoint:
    """The commit that `WHICH` names."""
    return settings(context).run(url).checkpoint(**named(which))


def chosen(checkpoint: Checkpoint, components: Sequence[str] | None) -> list[str]:
    """The components that are named, or all. Raises `NotFound` for one that there is not."""
    names = list(dict.fromkeys(components or checkpoint.names))
    for name in names:
        checkpoint.ranks(name)
    return names


@contextmanager
def reading(checkpoint: Checkpoint, components: Sequence[str]) -> Iterator[Advance]:
    """A bar over the bytes of components."""
    with progress("exporting", array_bytes(checkpoint, components)) as advance:
        yield advance


def rules(given: Sequence[str] | None) -> Names | None:
    """`--names` as rules. Raises `CallError` for what is none."""
    found: dict[str, str | None] = {}
    for rule in given or ():
        there, separator, here = rule.partition("=")
        if not separator or there in found:
            raise CallError(f"--names {rule!r}: expected THERE=HERE, each THERE once; such as model.layers.*=layers.*")
        found[there] = None if here == "-" else here
    return found or None


def count_of_bytes(given: str) -> int:
    """A size such as `5GB` or `512MiB` in bytes. Raises `CallError`."""
    match = _SIZE.fullmatch(given.strip())
    if match is None:
        raise CallError(f"{given[:80]!r} is no size: expected one such as 5GB or 512MiB")
    unit = (match[2] or "").lower()
    count = float(match[1]) * (1024 if unit.endswith("i") else 1000) ** _POWERS[unit.rstrip("i")]
    if count > MAX_INT:
        raise CallError(f"{given[:80]!r} is more bytes than anything has: expected a size such as 5GB or 512MiB")
    return int(count)


def torch_part(module: str) -> Any:
    """A module of the torch backend, which the command does without otherwise. Raises `CallError` if torch is not installed."""
    try:
        return import_module(f"torchckpt.{module}")
    except ImportError as error:
        raise CallError(f"this format needs PyTorch: pip install 'jaxckpt[torch]' ({error})") from error


def exported(
    kind: str, found: Exported, checkpoint: Checkpoint, components: Sequence[str], *, path: Path, files: Sequence[Path] = ()
) -> Written:
    """What is printed of an export to a format."""
    return Written(
        format=kind,
        url=checkpoint.store.url,
        generation=str(checkpoint.generation),
        components=list(components),
        path=str(path),
        files=[file.name for file in files],
        arrays=found.arrays,
        bytes=found.bytes,
        left_out=list(found.left_out),
    )


def tell(written: Written, *, as_json: bool) -> None:
    """Print an export: one line, and one more for what was left out."""
    emit(written, lambda: Text(text.plain(_line(written))), as_json=as_json)


def _line(written: Written) -> str:
    arrays = f"{text.plural(written.arrays, 'array')}, {text.size(written.bytes)}"
    line = f"{written.path}: {arrays} of {', '.join(written.components)}, generation {written.generation}"
    if not written.left_out:
        return line
    shown = "; ".join(written.left_out[:8]) + ("; …" if len(written.left_out) > 8 else "")
    return f"{line}\nleft out, for want of a place in the format: {shown}"


def bring_in(context: typer.Context, source: Foreign, url: str, *, as_json: bool) -> None:
    """Import a source, and print what came of it: one line."""
    from ckptcore.formats.importing import import_source  # noqa: PLC0415 - loads what only a save needs, and commands start fast

    place, size = settings(context).store(url), source.nbytes  # a URL that is none is refused before anything is done
    with progress("importing", size) as advance:
        manifest = import_source(source, url, storage=settings(context).storage, progress=advance)
    told = Imported(
        format=source.format,
        source=str(source.path),
        url=place.url,
        run_id=manifest.run_id,
        generation=manifest.generation,
        component=source.component,
        leaves=len(source.leaves(source.component)),
        bytes=size,
    )
    leaves = f"{text.plural(told.leaves, 'leaf')}, {text.size(told.bytes)}"
    line = f"{told.url}: {leaves} as component {told.component}, generation {told.generation} (weights only)"
    emit(told, lambda: Text(text.plain(line)), as_json=as_json)
