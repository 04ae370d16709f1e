"""What a command prints: a record as JSON, or a rendering for people; progress bars where somebody looks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
from rich import box
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from ckptcli.ending import printing
from ckptcli.text import plain

MANY = 200
"""Rows from which on a table is printed as plain lines on a terminal, too."""

NARROWEST = 20
"""Cells that the last column of a table gets at least on a terminal; with less room for it a table is plain lines."""

Advance = Callable[[int], None]
"""Called with the bytes that were done since the last call."""

STYLES = {
    "verified": "green",
    "committed": "green",
    "stray": "yellow",
    "undecided": "yellow",
    "quarantined": "red",
    "damaged": "red",
    "unreadable": "red",
    "aborted": "dim",
    "retired": "dim",
}
"""How a state is shown (`ckptcore.inspect.inventory`). Nothing is said by color alone."""


def emit(record: msgspec.Struct, render: Callable[[], RenderableType], *, as_json: bool) -> None:
    """Print `record` as one line of JSON, or what `render` makes of it."""
    if as_json:
        with printing():
            sys.stdout.buffer.write(msgspec.json.encode(record) + b"\n")
            sys.stdout.flush()
    else:
        show(render())


def show(rendered: RenderableType) -> None:
    """Print for people; into a pipe or a file without the blanks that fill up a line."""
    shown = console()
    with printing():
        for part in rendered.renderables if isinstance(rendered, Group) else [rendered]:
            _show(part, shown)
        sys.stdout.flush()


def _show(part: RenderableType, shown: Console) -> None:
    if isinstance(part, Table) and part.show_header and not _fits(part, shown):
        sys.stdout.write("".join(f"{line}\n" for line in lines(part)))
    elif shown.is_terminal:
        shown.print(part, soft_wrap=isinstance(part, Text) and bool(part.no_wrap))
    else:
        with shown.capture() as captured:
            shown.print(part)
        sys.stdout.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


def _fits(made: Table, shown: Console) -> bool:
    """Whether a table is drawn: on a terminal that is wide enough for all columns but the last, which folds."""
    *widths, last = (max(map(cell_len, cells)) for cells in _columns(made))
    needed = sum(widths) + 3 * len(widths) + (last if made.columns[-1].no_wrap else min(last, NARROWEST))
    return shown.is_terminal and made.row_count <= MANY and needed <= shown.width


def _columns(made: Table) -> list[list[str]]:
    return [[str(column.header), *map(str, column.cells)] for column in made.columns]


def lines(made: Table) -> Iterator[str]:
    """A table as plain lines, as wide as its cells: Rich takes a millisecond and more for a row."""
    columns = _columns(made)
    widths = [max(map(cell_len, cells)) for cells in columns]
    pads = [str.rjust if column.justify == "right" else str.ljust for column in made.columns]
    for number, row in enumerate(zip(*columns, strict=True)):
        cells = [pad(cell, width - cell_len(cell) + len(cell)) for pad, cell, width in zip(pads, row, widths, strict=True)]
        yield "   ".join(cells).rstrip()
        if number == 0:
            yield ("─" if (sys.stdout.encoding or "").lower().startswith("utf") else "-") * (sum(widths) + 3 * (len(widths) - 1))


def console(*, stderr: bool = False) -> Console:
    """A console that does not color what is no terminal, nor cut what is read by a program."""
    made = Console(stderr=stderr, highlight=False, markup=False, emoji=False)
    return made if made.is_terminal else Console(stderr=stderr, highlight=False, markup=False, emoji=False, width=10_000)


def table(*columns: str, right: Sequence[str] = ()) -> Table:
    """An empty table. Columns named in `right` are aligned to the right. Only the last one folds, unless it is one of them."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        is_right = column in right
        folds = column == columns[-1] and not is_right
        made.add_column(column, justify="right" if is_right else "left", no_wrap=not folds, overflow="fold")
    return made


def facts(pairs: Sequence[tuple[str, Any]]) -> Table:
    """Names and values, one a line; what is empty is left out."""
    made = Table.grid(padding=(0, 2))
    made.add_column(style="bold", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in pairs:
        if value not in (None, ""):
            made.add_row(name, value if isinstance(value, Table) else plain(str(value)))
    return made


@contextmanager
def progress(what: str, total: int) -> Iterator[Advance]:
    """A bar on standard error over `total` bytes, if that is a terminal and there is more than an instant's work."""
    shown = console(stderr=True)
    if not shown.is_terminal or total < (8 << 20):
        yield lambda _: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn())
    with Progress(*columns, console=shown, transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.advance(task, done)
