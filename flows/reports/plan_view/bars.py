"""What a device's row in a chart consists of: a bar of parts stacked by table, its sum, and a strip of its phases."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from bokeh.models import ColumnDataSource, FactorRange, GlyphRenderer
from bokeh.plotting import figure
from bokeh.transform import dodge

from dreamshard.costs import PHASES
from flows.reports.plan_view.data import PlanView, Side
from flows.reports.plan_view.segments import OTHERS, REST, Segments
from flows.reports.timeline import PHASE_COLOURS

PALETTE = ("#77aadd", "#ee8866", "#eedd88", "#ffaabb", "#99ddff", "#44bb99", "#bbcc33", "#aaaa00")
"""Of tables: Paul Tol's light scheme, on which dark text is readable and which colour-blind people tell apart."""

OTHER_COLOUR, REST_COLOUR, MOVED_COLOUR = "#c9cacf", "#9a9ca5", "#d6006c"
INK = "#16181d"  # of names in bars, on light and dark pages
_PALE = 0.55  # of white in the bars of the plan in use
_MARK = 0.07  # of a row, above a part that moves


@dataclass(frozen=True)
class Lane:
    """Where a side's bar is in a device's row, whose middle is 0 and whose height is 1."""

    middle: float
    height: float
    strip: float  # the middle of the bar of its phases
    strip_height: float
    pale: bool


_ALONE = Lane(0.09, 0.66, -0.34, 0.12, pale=False)
_NEW, _BEFORE = Lane(0.25, 0.36, 0.015, 0.07, pale=False), Lane(-0.2, 0.28, -0.39, 0.07, pale=True)


def lanes(view: PlanView) -> list[Lane]:
    """Those of the plan and, where there is one, of the plan in use."""
    return [_ALONE] if view.before is None else [_NEW, _BEFORE]


def table_colours(side: Side, place: Sequence[int]) -> list[str]:
    """A colour of each table, so that tables of one device differ as far as there are colours; `place` is their order."""
    devices_of: list[list[int]] = [[] for _ in place]
    for t, d in zip(side.shares.table.tolist(), side.shares.device.tolist(), strict=True):
        devices_of[t].append(d)
    used = np.zeros((side.shares.num_devices, len(PALETTE)))
    colours = [""] * len(place)
    for rank, t in enumerate(sorted(range(len(place)), key=lambda t: place[t])):
        turn = (np.arange(len(PALETTE)) - rank) % len(PALETTE)  # of two that are used alike, the next one
        chosen = int(np.argmin(used[devices_of[t]].sum(axis=0) * len(PALETTE) + turn))
        used[devices_of[t], chosen] += 1
        colours[t] = PALETTE[chosen]
    return colours


def paler(colour: str) -> str:
    """Mixed with white."""
    parts = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(part + (255 - part) * _PALE):02x}" for part in parts)


def source_columns(made: Segments, colours: Sequence[str], *, by_cost: bool, side: Side, pale: bool) -> dict[str, Any]:
    """A source's columns; a script fills in `left`, `right` and `label`."""
    count = len(made.table)
    size = made.phases.sum(axis=1) if by_cost else made.memory_bytes / 2**30
    filled = [{OTHERS: OTHER_COLOUR, REST: REST_COLOUR}.get(t) or colours[t] for t in made.table.tolist()]
    columns: dict[str, Any] = {
        "table": made.table.astype(np.int32),
        "device": [str(d) for d in made.device.tolist()],
        "count": made.count.astype(np.int32),
        "size": size.astype(np.float32),
        "gib": (made.memory_bytes / 2**30).astype(np.float32),
        "left": np.zeros(count, np.float32),
        "right": np.zeros(count, np.float32),
        "label": [""] * count,
        "colour": [paler(colour) for colour in filled] if pale else filled,
        "mark": made.moved.astype(np.float32),
        "side": [side.name] * count,
    }
    columns |= {f"phase{p + 1}": made.phases[:, p].astype(np.float32) for p in range(len(PHASES))} if by_cost else {}
    return columns


def draw_bars(plot: figure, rows: FactorRange, source: ColumnDataSource, lane: Lane) -> GlyphRenderer:
    """The parts of a side, their names, and a mark above those that move."""
    y = dodge("device", lane.middle, range=rows)
    drawn = plot.hbar(
        y=y,
        left="left",
        right="right",
        height=lane.height,
        source=source,
        fill_color="colour",
        line_color="white",
        line_width=0.5,
    )
    drawn.nonselection_glyph.update(fill_alpha=0.15, line_alpha=0.2)
    top = dodge("device", lane.middle + (lane.height - _MARK) / 2, range=rows)
    plot.hbar(
        y=top,
        left="left",
        right="right",
        height=_MARK,
        source=source,
        fill_color=MOVED_COLOUR,
        fill_alpha="mark",
        line_color=None,
    )
    names = plot.text(
        x="left",
        y=y,
        text="label",
        source=source,
        text_baseline="middle",
        x_offset=4,
        text_font_size="11px",
        text_color=INK,
    )
    names.nonselection_glyph = names.glyph
    return drawn


def draw_totals(
    plot: figure, rows: FactorRange, side: Side, lane: Lane, *, by_cost: bool
) -> tuple[ColumnDataSource, Any]:
    """What is beside each bar: its sum, and which device is the slowest."""
    devices = side.shares.num_devices
    slowest = side.slowest if by_cost and devices > 1 else None
    source = ColumnDataSource(
        {
            "device": [str(d) for d in range(devices)],
            "end": np.zeros(devices, np.float32),
            "text": [""] * devices,
            "slowest": [int(d == slowest) for d in range(devices)],
        }
    )
    text = plot.text(
        x="end",
        y=dodge("device", lane.middle, range=rows),
        text="text",
        source=source,
        text_baseline="middle",
        x_offset=6,
        text_font_size="11px",
    )
    return source, text.glyph


def draw_strips(plot: figure, rows: FactorRange, side: Side, lane: Lane) -> GlyphRenderer | None:
    """A thin bar of the four phases below each device's bar."""
    phases_ms = side.shares.device_phases_ms
    if phases_ms is None:
        return None
    ends = phases_ms.double().cumsum(dim=1).numpy()
    starts = ends - phases_ms.double().numpy()
    devices = [str(d) for d in range(len(ends))]
    source = ColumnDataSource(
        {
            "device": [d for d in devices for _ in PHASES],
            "left": starts.reshape(-1).astype(np.float32),
            "right": ends.reshape(-1).astype(np.float32),
            "colour": list(PHASE_COLOURS.values()) * len(devices),
        }
    )
    strip: GlyphRenderer = plot.hbar(
        y=dodge("device", lane.strip, range=rows),
        left="left",
        right="right",
        height=lane.strip_height,
        source=source,
        color="colour",
    )
    return strip
