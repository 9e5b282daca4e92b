"""A sweep as a page of Markdown: which placer to trust at which size, and every figure behind it."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from dreamshard.formatting import markdown_table
from dreamshard.sweep.cell import CellResult
from dreamshard.sweep.summary import Figure, Gain, Setting, costs_of, gain_over, summarise

OURS = ("dreamshard", "dreamshard_columns")
_TITLES = {
    "sizes": "By size: trained on tasks of each size",
    "transfer": "Transfer: trained at one size, placed at another",
    "measurements": "By number of measurements",
    "ablations": "Ablations: one part left out",
    "workloads": "Public models: all tables of a list, and drifted variants",
}


def page(results: Sequence[CellResult]) -> str:
    """All figures, by experiment."""
    figures = summarise(results)
    parts = ["### Which placer to trust", "", *_verdicts(figures, results), ""]
    for experiment, title in _TITLES.items():
        own = [figure for figure in figures if figure.setting.experiment == experiment]
        if own:
            parts += [f"### {title}", "", _HEADER, "", *_tables(own)]
    return "\n".join(parts)


_HEADER = (
    "Cost saved over the best rule of thumb of the same tasks (95 % interval over tasks and seeds), and CPU milliseconds to "
    "place. `*`: some placements split tables by columns, which whole-table placers cannot."
)


def _tables(figures: Sequence[Figure]) -> Iterable[str]:
    """One table per source, dims, training size and budget: placers down, sizes across."""
    groups: dict[tuple[str, ...], list[Figure]] = defaultdict(list)
    for figure in figures:
        setting = figure.setting
        across: tuple[str, ...] = (setting.source, setting.dims)
        if setting.experiment in ("transfer", "workloads"):
            across += (setting.trained,)
        if setting.experiment == "measurements":
            across += (str(setting.budget),)
        groups[across].append(figure)
    for group in groups.values():
        settings = list(dict.fromkeys(figure.setting for figure in group))
        known = {(figure.placer, figure.setting): figure for figure in group}
        rows = []
        for placer in dict.fromkeys(figure.placer for figure in group):
            row: dict[str, object] = {"placer": placer}
            for setting in settings:
                found = known.get((placer, setting))
                row[setting.placed] = "" if found is None else _cell(found)
            error = [found.error for s in settings if (found := known.get((placer, s))) and found.error is not None]
            row["own error"] = f"{np.mean(error):.1%}" if error else ""
            learnt = [known[placer, s] for s in settings if (placer, s) in known]
            row["learning"] = _learning(learnt)
            rows.append(row)
        first = settings[0]
        trained = f", trained at {first.trained}" if first.experiment == "transfer" else ""
        budget = f", {first.budget} measurements" if first.experiment == "measurements" else ""
        tasks = ", ".join(f"{s.placed} {_num_tasks(group, s)}" for s in settings)
        rules = ", ".join(sorted({figure.best_rule for figure in group}))
        yield f"**{first.source}, {first.dims}{trained}{budget}** (tasks: {tasks}; best rules: {rules})"
        yield ""
        yield markdown_table(rows)
        yield ""


def _num_tasks(group: Sequence[Figure], setting: Setting) -> str:
    """`30 x 3 seeds`."""
    figure = next(each for each in group if each.setting == setting)
    return f"{figure.num_tasks} x {figure.num_seeds} seeds"


def _cell(figure: Figure) -> str:
    if figure.failures:
        return f"no room in {figure.failures} of {figure.num_tasks * figure.num_seeds}"
    return f"{_gain(figure.gain)}{'*' if figure.shared else ''}, {figure.place_ms:.3g} ms"


def _learning(figures: Sequence[Figure]) -> str:
    seconds = max(figure.learning_s for figure in figures)
    return f"{seconds:.3g} s, {max(figure.measurements for figure in figures)} measured" if seconds else ""


def _gain(gain: Gain) -> str:
    if gain.mean is None or gain.low is None or gain.high is None:
        return "no mean"
    return f"{gain.mean:+.1%} ({gain.low:+.1%} to {gain.high:+.1%})"


def _verdicts(figures: Sequence[Figure], results: Sequence[CellResult]) -> Iterable[str]:
    """For each setting, the cheapest placer of whole tables, and how ours compares with the cheapest other one."""
    costs: dict[tuple[Setting, str], list[CellResult]] = defaultdict(list)
    for each in results:
        setting = Setting(each.experiment, each.source, each.dims, each.trained, each.placed, each.budget)
        costs[setting, each.placer].append(each)
    by_setting: dict[Setting, list[Figure]] = defaultdict(list)
    for figure in figures:
        by_setting[figure.setting].append(figure)
    for setting, own in by_setting.items():
        if setting.experiment == "ablations":  # nobody chooses among these
            continue
        whole = [each for each in own if each.mean_ms is not None and not each.placer.endswith("_columns")]
        ours = next((each for each in whole if each.placer == OURS[0]), None)
        others = sorted((each for each in whole if each.placer != OURS[0]), key=lambda each: each.mean_ms or np.inf)
        if ours is None or not others:
            continue
        rival = others[0]
        saved = gain_over(*(costs_of(costs[setting, each.placer]) for each in (ours, rival)))
        where = f"{setting.experiment}, {setting.source}, {setting.dims}, {setting.placed}"
        where += f", {setting.budget} measurements" if setting.experiment == "measurements" else ""
        if saved.is_beyond_doubt:
            word = f"**dreamshard**: saves {_gain(saved)} over {rival.placer}, the cheapest other placer"
        elif saved.mean is not None and saved.low is not None and saved.high is not None and saved.high < 0:
            word = (
                f"**{rival.placer}**: dreamshard costs {-saved.mean:.1%} more ({-saved.high:.1%} to {-saved.low:.1%})"
            )
        else:
            word = f"dreamshard or {rival.placer}, no clear difference: dreamshard saves {_gain(saved)}"
        yield f"- {where}: {word}."
