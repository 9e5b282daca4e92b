"""Plots of the paper's table: savings by size, and times to learn and to place."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture

if TYPE_CHECKING:
    from tests.benchmarks.bench_paper_table import Figure

_COLOURS = {
    "dreamshard": "#4c72b0",
    "cost_greedy": "#937860",
    "paper": "#dd8452",
    "autoshard": "#c44e52",
    "rnn": "#8172b3",
    "neuroshard": "#55a868",
    "torchrec_planner": "#8c8c8c",
}
"""The placers that are drawn, in order."""

_WITH_DREAMSHARD = ("cost_greedy", "neuroshard")  # learn nothing of their own
_LEAST = -60  # percent; a larger loss is not shown
_OFFSET = 0.09  # between the placers of a size


def draw(figures: Sequence["Figure"], folder: Path) -> None:
    """Write `paper-table-sizes.svg` and `paper-table-times.svg`; equal figures give equal bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context({"svg.hashsalt": "dreamshard", "svg.fonttype": "none"}):
        for name, picture in (("sizes", _sizes(figures)), ("times", _times(figures))):
            picture.savefig(folder / f"paper-table-{name}.svg", metadata={"Date": None})


def _sizes(figures: Sequence["Figure"]) -> Picture:
    """Savings over the best rule of thumb, with intervals: a panel per dims, sizes across."""
    dims, sizes = _distinct(figure.dims for figure in figures), _distinct(figure.size for figure in figures)
    picture = Picture(figsize=(6.2 * len(dims), 4.6), layout="constrained")
    panels = picture.subplots(1, len(dims), sharey=True, squeeze=False)[0]
    for axes, name in zip(panels, dims, strict=True):
        for i, (placer, colour) in enumerate(_COLOURS.items()):
            offset = _OFFSET * (i - (len(_COLOURS) - 1) / 2)
            points = [
                (sizes.index(each.size) + offset, 100 * gain.mean, 100 * gain.low, 100 * gain.high)
                for each in figures
                if (each.placer, each.dims) == (placer, name)
                and (gain := each.gain).mean is not None
                and gain.low is not None
                and gain.high is not None
            ]
            if points:
                x, mean, low, high = (list(column) for column in zip(*points, strict=True))
                below, above = (
                    [max(b - a, 0) for a, b in zip(*pair, strict=True)] for pair in ((low, mean), (mean, high))
                )
                axes.errorbar(x, mean, yerr=[below, above], fmt="o", markersize=4, color=colour, label=placer)
        axes.set(title=name, xlabel="tables x devices")
        axes.axhline(0, color="#888888", linewidth=0.8, zorder=0)
        _tidy(axes, sizes)
    panels[0].set_ylabel(f"saved over the best rule, % (down to {_LEAST})")
    panels[0].set_ylim(bottom=_LEAST)
    _legend(picture, panels[0])
    return picture


def _times(figures: Sequence["Figure"]) -> Picture:
    """CPU seconds to learn and milliseconds to place by size, of the last of the dims."""
    own = [figure for figure in figures if figure.dims == figures[-1].dims]
    sizes = _distinct(figure.size for figure in own)
    picture = Picture(figsize=(12.4, 4.6), layout="constrained")
    learning, placing = picture.subplots(1, 2)
    for placer, colour in _COLOURS.items():
        found = [figure for figure in own if figure.placer == placer]
        style: dict[str, Any] = {"color": colour, "markersize": 4, "linewidth": 1.2, "label": placer}
        x = [sizes.index(figure.size) for figure in found]
        placing.plot(x, [figure.place_ms for figure in found], "o-", **style)
        if placer not in _WITH_DREAMSHARD and any(figure.learning_s for figure in found):
            there = [figure for figure in found if figure.placed == figure.trained]
            learning.plot(x[: len(there)], [figure.learning_s for figure in there], "o-", **style)
    for axes, what in ((learning, "CPU seconds to learn"), (placing, "CPU ms to place a task")):
        axes.set(yscale="log", ylabel=what, xlabel="tables x devices", title=own[0].dims)
        _tidy(axes, sizes)
    _legend(picture, placing)
    return picture


def _distinct(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))


def _tidy(axes: Axes, sizes: Sequence[str]) -> None:
    labels = [size.replace(", trained", ",\ntrained") for size in sizes]
    axes.set_xticks(range(len(sizes)), labels, fontsize="small")
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _legend(picture: Picture, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    picture.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize="small")
