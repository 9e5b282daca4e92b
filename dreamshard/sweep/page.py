"""A sweep as a page of Markdown: which placer to trust at which size, then one compact table per experiment and dims."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from dreamshard.formatting import markdown_table
from dreamshard.sweep.ablation_table import ablation_table
from dreamshard.sweep.cell import CellResult
from dreamshard.sweep.design import PAPER_SIZE
from dreamshard.sweep.rosters import LEARNED, WITHOUT_POLICY
from dreamshard.sweep.summary import Figure, Gain, Setting, summarise
from dreamshard.sweep.verdicts import compare, label, sentences

_TITLES = {
    "sizes": "By size: trained on tasks of each size",
    "transfer": "Transfer: trained at one size (rows), placed at another (columns)",
    "measurements": "By number of measurements: 50 tables on 4 devices",
    "ablations": "Ablations: one part left out",
    "workloads": "Public models: all tables of a list, and drifted variants",
    "real_ranks": "Real ranks: learnt from and judged by measurements",
}
_NOTES = {
    "real_ranks": "Each placement was measured twice, in random order; `again` is the mean difference of the two: the noise.",
}
_HEADER = (
    "A cell is the cost saved over the best rule of thumb of the same tasks, in percent, with its 95 % interval over tasks "
    "and seeds. `*`: some placements split tables by columns, which whole-table placers cannot. `predicted/true`: what "
    "dreamshard's network predicts of these placements over their true cost; that of a search that exploits its errors is "
    "below the others'. `own error`: of the placer's own predictions of its placements. `cost_greedy`, `dreamshard_policy` "
    "and `neuroshard_predicted` place by dreamshard's networks. Every task is a row of the view `sweep_results`."
)
_COMPUTE = (
    "The largest compute of a device alone, which AutoShard minimises: saved over the rule of thumb with the least."
)


def page(results: Sequence[CellResult], pictures: Mapping[str, str] | None = None) -> str:
    """All figures, by experiment.

    Args:
        pictures: addresses of plots to show, by the experiment that they belong to, or `times`.
    """
    figures, pictures = summarise(results), pictures or {}
    parts = ["### Which placer to trust", "", *sentences(compare(results)), _HEADER, ""]
    experiments = dict.fromkeys([*_TITLES, *(figure.setting.experiment for figure in figures)])
    for experiment in experiments:
        own = [figure for figure in figures if figure.setting.experiment == experiment]
        if not own:
            continue
        parts += [f"### {_TITLES.get(experiment, experiment.capitalize())}", ""]
        parts += [_NOTES[experiment], ""] if _NOTES.get(experiment) else []
        parts += [f"![{experiment}]({pictures[experiment]})", ""] if experiment in pictures else []
        parts += _transfer(own) if experiment == "transfer" else _tables(_with_reference(experiment, own, figures))
        if experiment == "ablations":
            parts += ablation_table([each for each in results if each.experiment == experiment])
        if experiment == "sizes":
            parts += _computes(own)
            parts += [f"![times]({pictures['times']})", ""] if "times" in pictures else []
            parts += _times(own, figures)
    return "\n".join(parts).rstrip()


def with_all_budgets(figures: Sequence[Figure]) -> list[Figure]:
    """The figures by number of measurements, with those of the same tasks that learnt from the usual number.

    These are of `sizes`; the ablation `WITHOUT_POLICY`, which is not there, is of `ablations`.
    """
    own = [figure for figure in figures if figure.setting.experiment == "measurements"]
    tasks = {_tasks_of(figure) for figure in own}
    ablated = {_tasks_of(figure) for figure in own if figure.placer == WITHOUT_POLICY}
    sizes = [each for each in figures if each.setting.experiment == "sizes" and _tasks_of(each) in tasks]
    ablations = [each for each in figures if each.setting.experiment == "ablations" and each.placer == WITHOUT_POLICY]
    usual = [*sizes, *(each for each in ablations if _tasks_of(each) in ablated)]
    return sorted([*own, *usual], key=lambda figure: figure.setting.budget)


def _tasks_of(figure: Figure) -> tuple[str, str, str]:
    return figure.setting.dims, figure.setting.trained, figure.setting.placed


def _with_reference(experiment: str, own: list[Figure], figures: Sequence[Figure]) -> list[Figure]:
    return with_all_budgets(figures) if experiment == "measurements" else own


def _tables(figures: Sequence[Figure]) -> Iterable[str]:
    """One table per dims: placers down, settings across."""
    by_budget = len({figure.setting.budget for figure in figures}) > 1

    def column(setting: Setting) -> str:
        return f"from {setting.budget}" if by_budget else label(setting)

    for dims in dict.fromkeys(figure.setting.dims for figure in figures):
        group = [figure for figure in figures if figure.setting.dims == dims]
        yield f"**{dims}** ({_tasks(group, column)})"
        yield ""
        rows = _rows(group, column, _gain_cell)
        for row in [] if by_budget else rows:
            own = [figure for figure in group if figure.placer == row["placer"]]
            row["predicted/true"] = _mean([figure.predicted_over_true for figure in own], "{:.3f}")
            row["own error"] = _mean([_percent(figure.error) for figure in own], "{:.1f} %")
            if any(figure.noise is not None for figure in group):
                row["again"] = _mean([_percent(figure.noise) for figure in own], "{:.1f} %")
        yield markdown_table(rows)
        yield ""
        if by_budget:
            yield f"**{dims}, predictions**: predicted/true, and the own error of placers that predict."
            yield ""
            yield markdown_table(_rows(group, column, _prediction_cell))
            yield ""


def _transfer(figures: Sequence[Figure]) -> Iterable[str]:
    """A matrix per dims: a row for each placer and size of its training, or one for a placer that learns nothing.

    For AutoShard also of the compute that it minimises.
    """
    for dims in dict.fromkeys(figure.setting.dims for figure in figures):
        group = [figure for figure in figures if figure.setting.dims == dims]
        yield f"**{dims}** ({_tasks(group, lambda setting: setting.placed)})"
        yield ""
        rows: list[dict[str, object]] = []
        for placer in dict.fromkeys(figure.placer for figure in group):
            own = [figure for figure in group if figure.placer == placer]
            rows += _matrix(own, placer, _gain_cell)
            if placer == "autoshard":
                rows += _matrix(own, f"{placer}, compute", lambda figure: _interval(figure.compute_gain))
        yield markdown_table(rows)
        yield ""


def _matrix(figures: Sequence[Figure], name: str, cell: Callable[[Figure], str]) -> list[dict[str, object]]:
    columns = dict.fromkeys(figure.setting.placed for figure in figures)
    rows: list[dict[str, object]] = []
    for trained in dict.fromkeys(figure.setting.trained for figure in figures):
        known = {figure.setting.placed: figure for figure in figures if figure.setting.trained == trained}
        cells = {placed: cell(known[placed]) if placed in known else "" for placed in columns}
        learns = any(figure.measurements for figure in known.values())
        rows.append({"placer": name, "trained at": trained if learns else "-", **cells})
        if not learns:  # so it places the same tasks alike for every size of training
            break
    return rows


def _computes(figures: Sequence[Figure]) -> Iterable[str]:
    """The largest compute of a device, which AutoShard minimises, beside the overall cost."""
    if not any(figure.placer == "autoshard" for figure in figures):
        return
    yield _COMPUTE
    yield ""
    for dims in dict.fromkeys(figure.setting.dims for figure in figures):
        group = [figure for figure in figures if figure.setting.dims == dims and figure.placer in LEARNED]
        yield f"**{dims}, compute**"
        yield ""
        yield markdown_table(_rows(group, label, lambda figure: _interval(figure.compute_gain)))
        yield ""


def _times(sizes: Sequence[Figure], figures: Sequence[Figure]) -> Iterable[str]:
    """CPU seconds to learn and milliseconds to place, per dims; of sizes that none is trained at, those of transfer."""
    known = {figure.setting.placed for figure in sizes}
    moved = [
        figure
        for figure in figures
        if figure.setting.experiment == "transfer"
        and figure.setting.trained == str(PAPER_SIZE)
        and figure.setting.placed not in known
    ]
    for dims in dict.fromkeys(figure.setting.dims for figure in sizes):
        group = [figure for figure in (*sizes, *moved) if figure.setting.dims == dims]
        yield f"**CPU time, {dims}**: seconds to learn, without measuring, and milliseconds to place a task, with one thread."
        yield ""
        yield markdown_table(_rows(group, label, _time_cell))
        yield ""


def _rows(
    figures: Sequence[Figure], column: Callable[[Setting], str], cell: Callable[[Figure], str]
) -> list[dict[str, object]]:
    """Placers down, settings across."""
    known = {(figure.placer, column(figure.setting)): figure for figure in figures}
    columns = dict.fromkeys(column(figure.setting) for figure in figures)
    rows: list[dict[str, object]] = []
    for placer in dict.fromkeys(figure.placer for figure in figures):
        cells = {name: cell(known[placer, name]) if (placer, name) in known else "" for name in columns}
        rows.append({"placer": placer, **cells})
    return rows


def _tasks(figures: Sequence[Figure], column: Callable[[Setting], str]) -> str:
    """How many tasks and seeds, and which rule of thumb is best where."""
    by_tasks: dict[str, list[str]] = {}
    by_rule: dict[str, list[str]] = {}
    for setting in dict.fromkeys(figure.setting for figure in figures):
        figure = next(each for each in figures if each.setting == setting)
        name = column(setting)
        for group, key in (
            (by_tasks, f"{figure.num_tasks} tasks x {figure.num_seeds} seeds"),
            (by_rule, figure.best_rule),
        ):
            if name not in group.setdefault(key, []):
                group[key].append(name)
    tasks = next(iter(by_tasks)) if len(by_tasks) == 1 else _listed(by_tasks)
    rules = next(iter(by_rule)) if len(by_rule) == 1 else _listed(by_rule)
    return f"{tasks}; best rule: {rules}"


def _listed(groups: Mapping[str, Sequence[str]]) -> str:
    return ", ".join(f"{key} at {' '.join(names)}" for key, names in groups.items())


def _gain_cell(figure: Figure) -> str:
    if figure.failures:
        return f"no room in {figure.failures} of {figure.num_tasks * figure.num_seeds}"
    return f"{_interval(figure.gain)}{'*' if figure.shared else ''}"


def _interval(gain: Gain) -> str:
    if gain.mean is None or gain.low is None or gain.high is None:
        return "no mean"
    return f"{100 * gain.mean:+.1f} ({100 * gain.low:.1f} to {100 * gain.high:.1f})"


def _prediction_cell(figure: Figure) -> str:
    parts = [(figure.predicted_over_true, "{:.3f}"), (_percent(figure.error), "{:.1f} %")]
    return ", ".join(form.format(value) for value, form in parts if value is not None)


def _time_cell(figure: Figure) -> str:
    place = f"{_digits(figure.place_ms)} ms"
    return f"{_digits(figure.learning_s)} s, {place}" if figure.learning_s else place


def _digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _mean(values: Iterable[float | None], form: str) -> str:
    """The mean of those there are."""
    known = [value for value in values if value is not None]
    return form.format(sum(known) / len(known)) if known else ""
