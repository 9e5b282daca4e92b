"""What each ablation costs: the variant against the system that it leaves a part out of, on the same tasks and seeds."""

from collections.abc import Iterable, Sequence

from dreamshard.formatting import markdown_table
from dreamshard.sweep.ablations import ABLATIONS, reference_of
from dreamshard.sweep.cell import CellResult
from dreamshard.sweep.summary import Gain, costs_of, gain_over


def ablation_table(results: Sequence[CellResult]) -> Iterable[str]:
    """Lines of Markdown, one table per dims, from the results of the experiment `ablations`."""
    for dims in dict.fromkeys(each.dims for each in results):
        by_placer: dict[str, list[CellResult]] = {}
        for each in results:
            if each.dims == dims:
                by_placer.setdefault(each.placer, []).append(each)
        pairs = [(name, reference_of(name)) for name in ABLATIONS]
        known = [(name, whole) for name, whole in pairs if name in by_placer and whole in by_placer]
        yield f"**{dims}, against the system that has the part**"
        yield ""
        yield markdown_table([_row(by_placer[name], by_placer[whole]) for name, whole in known])
        yield ""


def _row(variant: Sequence[CellResult], whole: Sequence[CellResult]) -> dict[str, object]:
    return {
        "variant": variant[0].placer,
        "against": whole[0].placer,
        "costs more, %": _more(gain_over(costs_of(variant), costs_of(whole))),
        "measured": f"{_mean(each.measurements for each in variant):,.0f}",
        "learning, s": f"{_mean(each.learning_s for each in variant):.2g}",
        "learning of the other, s": f"{_mean(each.learning_s for each in whole):.2g}",
    }


def _more(gain: Gain) -> str:
    if gain.mean is None or gain.low is None or gain.high is None:
        return "no mean"
    return f"{-100 * gain.mean:+.1f} ({-100 * gain.high:.1f} to {-100 * gain.low:.1f})"


def _mean(values: Iterable[float]) -> float:
    known = list(values)
    return sum(known) / len(known)
