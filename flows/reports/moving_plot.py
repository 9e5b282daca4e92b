"""The picture of `dreamshard place --current`: cost of a step against bytes moved."""

from matplotlib.figure import Figure

from dreamshard.moving import Weighed

CURVE, CHOSEN, ENDS = "#4c72b0", "#dd8452", "#444444"


def plot_curve(weighed: Weighed) -> Figure:
    """The cheapest placement for the bytes that it moves, with the one chosen, the plan in use and the new placement."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axis = figure.subplots()
    moved = [point.moved_bytes / 2**30 for point in weighed.curve]
    axis.step(moved, [point.overall_ms for point in weighed.curve], where="post", color=CURVE, marker="o", markersize=4)
    ends = {"plan in use": weighed.kept, "new placement": weighed.moved_all}
    for name, point in ends.items():
        if point is not None:
            axis.plot(point.moved_bytes / 2**30, point.overall_ms, "s", color=ENDS, markersize=5)
            axis.annotate(
                name,
                (point.moved_bytes / 2**30, point.overall_ms),
                textcoords="offset points",
                xytext=(6, 6),
                fontsize="small",
            )
    chosen = weighed.chosen
    label = f"chosen: {chosen.overall_ms:.3f} ms"
    axis.plot(chosen.moved_bytes / 2**30, chosen.overall_ms, "D", color=CHOSEN, markersize=8, label=label)
    axis.set(xlabel="GiB moved", ylabel="predicted ms of a step", title="What moving gains")
    axis.spines[["top", "right"]].set_visible(False)
    axis.margins(0.12)
    axis.legend(frameon=False, fontsize="small")
    return figure
