"""The picture of a placement's profile."""

import io

import pytest
import torch

from dreamshard.costs import PHASES, DeviceCosts
from dreamshard.trace import spans
from flows.reports.timeline import costs_of, plot_timeline

COSTS = DeviceCosts.from_phases(torch.tensor([[3.0, 1.0, 1.0, 2.0], [2.0, 1.0, 1.0, 4.0], [0.0, 1.0, 1.0, 0.0]]))


def test_every_span_is_one_bar_in_its_devices_row():
    figure = plot_timeline({"ours": COSTS, "theirs": COSTS})
    assert len(figure.axes) == 2
    for axis in figure.axes:
        bars = {(round(bar.get_y() + 0.4), bar.get_x(), bar.get_width()) for bar in axis.patches}
        assert bars == {(span.device, span.start_ms, span.duration_ms) for span in spans(COSTS)}
    assert figure.axes[0].get_title() == "ours: 8.000 ms"
    image = io.BytesIO()
    figure.savefig(image, format="png")
    assert image.getvalue().startswith(b"\x89PNG")


def test_a_report_gives_its_costs_back():
    rows = [dict(zip(PHASES, row, strict=True)) for row in COSTS.phases_ms().tolist()]
    assert torch.equal(costs_of(rows).phases_ms(), COSTS.phases_ms())


def test_nothing_to_draw_is_an_error():
    with pytest.raises(ValueError, match="no measured placement"):
        plot_timeline({})
