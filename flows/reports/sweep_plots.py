"""Plots of a sweep: quality by size, transfer, number of measurements, CPU times."""

import io
from collections.abc import Sequence

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from dreamshard.sweep import Figure, with_all_budgets
from dreamshard.sweep.rosters import LEARNED, WITHOUT_POLICY

_COLOURS = {
    "dreamshard": "#4c72b0",
    "dreamshard_policy": "#64b5cd",
    "cost_greedy": "#937860",
    "paper": "#dd8452",
    "autoshard": "#c44e52",
    "rnn": "#8172b3",
    "neuroshard": "#55a868",
    "torchrec_planner": "#8c8c8c",
}
"""The placers that are drawn, in order; every other one is in the tables."""

_BY_MEASUREMENTS = {
    **{placer: colour for placer, colour in _COLOURS.items() if placer not in ("cost_greedy", "torchrec_planner")},
    WITHOUT_POLICY: "#ccb974",
}
_WITH_DREAMSHARD = ("dreamshard_policy", "cost_greedy")  # learnt with it
_FULL_COLOUR = 15.0  # percent of a gain or loss; larger ones would leave all others pale
_OFFSET = 0.09  # between the placers of a size


def plots(figures: Sequence[Figure]) -> dict[str, Picture]:
    """By experiment, or `times`; only of experiments that there are."""
    drawn: dict[str, Picture] = {}
    sizes = _of(figures, "sizes")
    if sizes:
        drawn["sizes"] = _quality(sizes)
        drawn["times"] = _times(sizes)
    if transfer := _of(figures, "transfer"):
        drawn["transfer"] = _transfer(transfer)
    if _of(figures, "measurements"):
        drawn["measurements"] = _measurements(with_all_budgets(figures))
    return drawn


def svg(picture: Picture) -> bytes:
    """The picture's file, the same bytes for the same figures."""
    content = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "dreamshard", "svg.fonttype": "none"}):
        picture.savefig(content, format="svg", metadata={"Date": None})
    return content.getvalue()


def _of(figures: Sequence[Figure], experiment: str) -> list[Figure]:
    return [figure for figure in figures if figure.setting.experiment == experiment]


def _all_dims(figures: Sequence[Figure]) -> list[str]:
    return list(dict.fromkeys(figure.setting.dims for figure in figures))


def _quality(figures: Sequence[Figure]) -> Picture:
    """Gain over the best rule of thumb, with intervals: a panel per dims, sizes across."""
    dims = _all_dims(figures)
    picture = Picture(figsize=(5.2 * len(dims), 4.2), layout="constrained")
    panels = picture.subplots(1, len(dims), sharey=True, squeeze=False)[0]
    sizes = list(dict.fromkeys(figure.setting.placed for figure in figures))
    for axes, name in zip(panels, dims, strict=True):
        for i, (placer, colour) in enumerate(_COLOURS.items()):
            own = [figure for figure in figures if figure.placer == placer and figure.setting.dims == name]
            offset = _OFFSET * (i - (len(_COLOURS) - 1) / 2)
            _intervals(axes, placer, own, colour, [sizes.index(figure.setting.placed) + offset for figure in own])
        axes.set_xticks(range(len(sizes)), sizes)
        axes.set(title=name, xlabel="tables x devices")
        _tidy(axes)
    panels[0].set_ylabel("saved over the best rule, %")
    _legend(picture, panels)
    return picture


def _intervals(axes: Axes, placer: str, figures: Sequence[Figure], colour: str, across: Sequence[float]) -> None:
    """Points with 95 % intervals at their places on the axis, without those that have no mean."""
    found = [
        (place, 100 * gain.mean, 100 * gain.low, 100 * gain.high)
        for figure, place in zip(figures, across, strict=True)
        if (gain := figure.gain).mean is not None and gain.low is not None and gain.high is not None
    ]
    if not found:
        return
    x, mean, low, high = (list(column) for column in zip(*found, strict=True))
    below = [max(a - b, 0) for a, b in zip(mean, low, strict=True)]
    above = [max(b - a, 0) for a, b in zip(mean, high, strict=True)]
    axes.errorbar(
        x,
        mean,
        yerr=[below, above],
        fmt="o",
        markersize=4,
        linewidth=1.2,
        color=colour,
        label=placer,
    )


def _measurements(figures: Sequence[Figure]) -> Picture:
    """Gain, and the error of own predictions, by the number of measured placements: a column per dims."""
    dims = _all_dims(figures)
    picture = Picture(figsize=(5.2 * len(dims), 6.4), layout="constrained")
    rows = picture.subplots(2, len(dims), sharex=True, sharey="row", squeeze=False)
    budgets = sorted({figure.setting.budget for figure in figures})
    for column, name in enumerate(dims):
        gains, errors = rows[0][column], rows[1][column]
        for placer, colour in _BY_MEASUREMENTS.items():
            own = [figure for figure in figures if figure.placer == placer and figure.setting.dims == name]
            _intervals(gains, placer, own, colour, [figure.setting.budget for figure in own])
            known = [(figure.setting.budget, 100 * figure.error) for figure in own if figure.error is not None]
            if known:
                errors.plot(*zip(*known, strict=True), "o-", markersize=4, linewidth=1.2, color=colour)
        gains.set_title(name)
        errors.set(xscale="log", xlabel="measured placements")
        errors.set_xticks(budgets, [str(budget) for budget in budgets])
        errors.xaxis.set_minor_locator(NullLocator())
        errors.set_ylim(bottom=0)
        for axes in (gains, errors):
            _tidy(axes)
    rows[0][0].set_ylabel("saved over the best rule, %")
    rows[1][0].set_ylabel("error of own predictions, %")
    _legend(picture, rows[0])
    return picture


def _transfer(figures: Sequence[Figure]) -> Picture:
    """A matrix per algorithm and dims of the gain, trained at (down), placed at (across)."""
    dims = _all_dims(figures)
    trained = list(dict.fromkeys(figure.setting.trained for figure in figures))
    placed = list(dict.fromkeys(figure.setting.placed for figure in figures))
    size = ((1.6 + 0.62 * len(placed)) * len(dims), (1.1 + 0.4 * len(trained)) * len(LEARNED))
    picture = Picture(figsize=size, layout="constrained")
    panels = picture.subplots(len(LEARNED), len(dims), sharex=True, sharey=True, squeeze=False)
    for row, placer in enumerate(LEARNED):
        for column, name in enumerate(dims):
            axes = panels[row][column]
            gains = {
                (figure.setting.trained, figure.setting.placed): figure.gain.mean
                for figure in figures
                if figure.placer == placer and figure.setting.dims == name
            }
            values = [[100 * (gains.get((a, b)) or 0.0) for b in placed] for a in trained]
            axes.imshow(values, cmap="RdBu", vmin=-_FULL_COLOUR, vmax=_FULL_COLOUR, aspect="auto")
            for y, a in enumerate(trained):
                for x, b in enumerate(placed):
                    gain = gains.get((a, b))
                    text = "-" if gain is None else f"{round(100 * gain):+d}" if round(100 * gain) else "0"
                    dark = gain is not None and abs(100 * gain) > 0.6 * _FULL_COLOUR
                    axes.text(x, y, text, ha="center", va="center", fontsize=8, color="white" if dark else "#222222")
            aim = " (minimises compute alone)" if placer == "autoshard" else ""
            axes.set_title(f"{placer}, {name}{aim}", fontsize=9)
            axes.set_yticks(range(len(trained)), trained, fontsize=8)
            axes.set_xticks(range(len(placed)), placed, fontsize=8, rotation=45)
    picture.supxlabel("placed at: cost saved over the best rule of thumb, %", fontsize=9)
    picture.supylabel("trained at", fontsize=9)
    return picture


def _times(figures: Sequence[Figure]) -> Picture:
    """CPU seconds to learn and milliseconds to place by size, of the last of the dims."""
    dims = _all_dims(figures)[-1]
    picture = Picture(figsize=(10.4, 3.8), layout="constrained")
    learning, placing = picture.subplots(1, 2)
    sizes = list(dict.fromkeys(figure.setting.placed for figure in figures))
    for placer, colour in _COLOURS.items():
        own = {f.setting.placed: f for f in figures if f.placer == placer and f.setting.dims == dims}
        x = [sizes.index(size) for size in sizes if size in own]
        found = [own[size] for size in sizes if size in own]
        style = {"color": colour, "markersize": 4, "linewidth": 1.2}
        placing.plot(x, [figure.place_ms for figure in found], "o-", label=placer, **style)
        if found and found[0].learning_s and placer not in _WITH_DREAMSHARD:
            learning.plot(x, [figure.learning_s for figure in found], "o-", **style)
    for axes, what in ((learning, "CPU seconds to learn"), (placing, "CPU ms to place a task")):
        axes.set(yscale="log", ylabel=what, xlabel="tables x devices", title=dims)
        axes.set_xticks(range(len(sizes)), sizes)
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_locator(NullLocator())
        _tidy(axes)
    _legend(picture, [placing])
    return picture


def _tidy(axes: Axes) -> None:
    if axes.get_yscale() == "linear":
        axes.axhline(0, color="#888888", linewidth=0.8, zorder=0)
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _legend(picture: Picture, panels: Sequence[Axes]) -> None:
    """One for all panels, below them."""
    known = {label: handle for axes in panels for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    picture.legend(
        list(known.values()), list(known), loc="outside lower center", ncols=4, frameon=False, fontsize="small"
    )
