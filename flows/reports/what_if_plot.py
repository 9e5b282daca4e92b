"""The picture of `dreamshard what-if`: cost, memory and balance of a step on each cluster."""

import base64
import io
from collections.abc import Sequence

from matplotlib.figure import Figure

from dreamshard.costs import PHASES
from dreamshard.what_if import Estimate
from flows.reports.timeline import PHASE_COLOURS

MEMORY, BALANCE = "#8c8c8c", "#64b5cd"
_BAR = 0.38  # of a row


def plot_clusters(estimates: Sequence[Estimate], names: Sequence[str], title: str) -> Figure:
    """One row per cluster: phases of the slowest device, and shares of memory and balance; the first is on top."""
    figure = Figure(figsize=(10, 1.6 + 0.55 * len(estimates)), layout="constrained")
    steps, shares = figure.subplots(1, 2, sharey=True, width_ratios=[3, 1])
    rows = list(range(len(estimates)))
    left = [0.0 for _ in rows]
    for i, phase in enumerate(PHASES):
        lengths = [one.phases_ms[i] for one in estimates]
        steps.barh(rows, lengths, left=left, color=PHASE_COLOURS[phase], label=phase.replace("_", " "))
        left = [start + length for start, length in zip(left, lengths, strict=True)]
    for row, one in enumerate(estimates):
        text = "does not fit" if one.infeasible else f" {one.overall_ms:.3g} ms"
        steps.text(left[row], row, text, va="center", fontsize="small")
    used = [100 * one.largest_bytes / one.cluster.table_bytes for one in estimates]
    shares.barh([row - _BAR / 2 for row in rows], used, _BAR, color=MEMORY, label="memory of the fullest device")
    balance = [100 * one.balance for one in estimates]
    shares.barh([row + _BAR / 2 for row in rows], balance, _BAR, color=BALANCE, label="balance: mean over slowest")
    steps.set(xlabel="predicted ms of the slowest device", yticks=rows, yticklabels=names)
    steps.set_xlim(0, 1.15 * max([*left, 1e-9]))
    shares.set(xlabel="%", xlim=(0, 100))
    steps.invert_yaxis()
    for axis in (steps, shares):
        axis.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize="small")
    figure.suptitle(title, fontsize=11)
    return figure


def image(figure: Figure, form: str) -> bytes:
    """The picture's file, `png` or `svg`."""
    content = io.BytesIO()
    figure.savefig(content, format=form, dpi=110)
    return content.getvalue()


def image_link(figure: Figure) -> str:
    """The picture inside of Markdown."""
    return f"![clusters](data:image/png;base64,{base64.b64encode(image(figure, 'png')).decode()})"
