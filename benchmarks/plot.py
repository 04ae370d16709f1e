"""A comparison as bars: `python -m benchmarks.plot RECORD FILE` draws what `--json` has written, to a .png or .svg."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from benchmarks.machine import hardware
from benchmarks.tables import state_of

PANELS = (
    ("save_ratio", "Save"),
    ("restore_cold_ratio", "Restore, cold cache"),
    ("restore_cached_ratio", "Restore, cached"),
    ("2d_cold_ratio", "Restore on another mesh, cold"),
)
"""Figure → title. One in which nobody has a figure is left out."""
OURS, PEERS, DARK, LIGHT = "#0072b2", "#e69f00", "#333333", "#bbbbbb"
"""Blue and orange of Okabe and Ito: told apart by all, and by their lightness alone."""
HIGHEST = 6.0
"""Times the floor: longer bars may be cut, so that the others can be read."""
LONGER = 3.0
"""Times the middle bar of a panel: only what is longer than that, too, is cut."""


def draw(result: Mapping[str, Any], file: Path, machine: Mapping[str, Any]) -> None:
    """Draw the ratios to the floor: a panel an operation, a bar a subject, whiskers from the least to the most of the rounds.

    Where nothing was measured there is no file.
    """
    panels = [(figure, title) for figure, title in PANELS if _spreads(result, figure)]
    if not panels:
        return
    names = list(result["subjects"])
    titles = [result["subjects"][name].get("title", name) for name in names]
    with mpl.rc_context({"svg.hashsalt": "benchmarks", "font.size": 10, "font.family": "sans-serif"}):
        image = Figure(figsize=(2.2 + 2.9 * len(panels), 1.6 + 0.42 * len(names)), layout="constrained")
        axes = image.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for one, (figure, title) in zip(axes, panels, strict=True):
            _panel(one, title, [_spread(result, name, figure) for name in names], names)
        axes[0].set_yticks(range(len(names)), titles)
        axes[0].invert_yaxis()
        cut = any(_longest(spreads) > _cut(spreads) for spreads in (_spreads(result, figure) for figure, _ in panels))
        told = f"{state_of(result)}{'; → goes on beyond the axis' if cut else ''}"
        image.suptitle(f"Time relative to what the disk and memory themselves need (1.0); shorter is faster\n{told}", fontsize=11)
        image.supxlabel(hardware(machine), fontsize=8, color=DARK)
        colours = [Patch(color=OURS, label="this project"), Patch(color=PEERS, label="others")]
        image.legend(handles=colours, loc="outside lower right", ncols=2, frameon=False, fontsize=9)
        image.savefig(file, dpi=144, metadata={"Date": None} if file.suffix == ".svg" else None)


def _panel(axes: Axes, title: str, spreads: Sequence[Mapping[str, float] | None], names: Sequence[str]) -> None:
    known = [spread for spread in spreads if spread]
    longest, cut = max(1.0, *(spread["max"] for spread in known)), _cut(known)
    limit = min(cut, longest) * 1.28  # room for the numbers
    for row, (spread, name) in enumerate(zip(spreads, names, strict=True)):
        if spread is None:
            axes.text(1.08, row, "no figure", va="center", color=DARK, fontsize=9, style="italic")
        else:
            _bar(axes, row, spread, OURS if name in ("jax", "torch") else PEERS, cut)
    axes.axvline(1.0, color=DARK, linewidth=1.2, linestyle=(0, (4, 2)), zorder=3)
    axes.set_title(title, fontsize=10, fontweight="bold")
    axes.set_xlim(0, limit)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color=LIGHT, linewidth=0.5, zorder=0)
    axes.set_axisbelow(True)
    axes.set_xlabel("× floor", fontsize=9)


def _cut(spreads: Sequence[Mapping[str, float]]) -> float:
    """Where bars end at the latest: one that is much longer than the others must not hide how these differ."""
    return max(HIGHEST, LONGER * median(spread["median"] for spread in spreads))


def _longest(spreads: Sequence[Mapping[str, float]]) -> float:
    return max(spread["median"] for spread in spreads)


def _bar(axes: Axes, row: int, spread: Mapping[str, float], colour: str, cut: float) -> None:
    length = min(spread["median"], cut)
    axes.barh(row, length, height=0.62, color=colour, zorder=2)
    end = length
    if spread["max"] <= cut:
        end = spread["max"]
        axes.plot(
            [spread["min"], end], [row, row], color=DARK, linewidth=1.4, marker="|", markersize=7, markeredgewidth=1.4, zorder=4
        )
    text = f"{spread['median']:.2f}{' →' if spread['median'] > cut else ''}"
    axes.annotate(text, (max(end, 1.0), row), (6, 0), textcoords="offset points", va="center", fontsize=9)


def _spread(result: Mapping[str, Any], name: str, figure: str) -> Mapping[str, float] | None:
    return result["derived"]["subjects"].get(name, {}).get(figure)


def _spreads(result: Mapping[str, Any], figure: str) -> list[Mapping[str, float]]:
    return [found for name in result["subjects"] if (found := _spread(result, name, figure))]


def main(record: str, file: str) -> None:
    """Draw a record that `--json` has written."""
    read = json.loads(Path(record).read_text())
    draw(read["result"], Path(file), read["machine"])


if __name__ == "__main__":
    main(*sys.argv[1:])
