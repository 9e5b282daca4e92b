"""A measured placement as a picture: devices as rows, the four phases as bars, waiting between them."""

from collections.abc import Mapping, Sequence

import torch
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from dreamshard.costs import PHASES, DeviceCosts
from dreamshard.trace import WAITING, spans

PHASE_COLOURS = {
    "forward_compute": "#4c72b0",
    "forward_comm": "#9ab3d9",
    "backward_comm": "#f2b48a",
    "backward_compute": "#dd8452",
}
COLOURS = {**PHASE_COLOURS, WAITING: "#e8e8e8"}


def plot_timeline(placements: Mapping[str, DeviceCosts]) -> Figure:
    """Draw one timeline per placement, all on the same scale.

    Args:
        placements: measured costs `[D]` by name of the placement.

    Raises:
        ValueError: there are none.
    """
    if not placements:
        raise ValueError("there is no measured placement to draw; measure one that fits its devices first")
    rows = [costs.forward_compute_ms.shape[-1] for costs in placements.values()]
    figure = Figure(figsize=(10, 1.2 + 0.9 * len(rows) + 0.22 * sum(rows)), layout="constrained")
    axes = figure.subplots(len(rows), 1, sharex=True, squeeze=False, height_ratios=[count + 2 for count in rows])[:, 0]
    for axis, (name, costs) in zip(axes, placements.items(), strict=True):
        for span in spans(costs):
            axis.barh(span.device, span.duration_ms, left=span.start_ms, height=0.8, color=COLOURS[span.name])
        count = costs.forward_compute_ms.shape[-1]
        axis.set(title=f"{name}: {float(costs.overall_ms()):.3f} ms", ylabel="device", ylim=(count - 0.4, -0.6))
        axis.set_yticks(range(0, count, max(1, count // 8)))
    axes[-1].set_xlabel("measured ms since the step began")
    legend = [Patch(color=COLOURS[phase], label=phase.replace("_", " ")) for phase in (*PHASES, WAITING)]
    figure.legend(handles=legend, ncols=len(legend), loc="outside lower center", fontsize="small")
    return figure


def costs_of(devices: Sequence[Mapping[str, float]]) -> DeviceCosts:
    """Costs from an evaluation report: one mapping of phase to milliseconds per device."""
    return DeviceCosts.from_phases(torch.tensor([[device[phase] for phase in PHASES] for device in devices]))
