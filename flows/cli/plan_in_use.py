"""`dreamshard place --current`: its options, and what it says and writes of moving."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.cli import terminal
from flows.placing.transition import transition_lines

if TYPE_CHECKING:
    from dreamshard.moving import InUse
    from dreamshard.tasks import PlacementTask
    from flows.placing.transition import Transition

CurrentOption = Annotated[
    Path | None,
    typer.Option(
        "--current", help="Plan in use, dreamshard's or TorchRec's: weighs what a new one gains against moving."
    ),
]
CurrentTablesOption = Annotated[
    Path | None, typer.Option("--current-tables", help="List of the tables as they were when --current was made.")
]
StepsOption = Annotated[
    float,
    typer.Option("--steps-until-next", min=1, help="Training steps until the next change, over which a gain counts."),
]
MoveRateOption = Annotated[
    float, typer.Option("--move-gb-per-s", min=1e-6, help="GB/s at which all devices together move tables.")
]
CurveOption = Annotated[
    Path | None, typer.Option("--curve", help="File for gain against GiB moved: .csv, .png or .svg.")
]
CURVES = (".csv", ".png", ".svg")


def show_transition(task: "PlacementTask", current: "InUse", way: "Transition") -> None:
    """Say what the plan in use costs, what the chosen one gains, and what moves."""
    for line in transition_lines(task, current, way, " (--steps-until-next, --move-gb-per-s)"):
        terminal.note(line)


def check_curve(path: Path | None, current: Path | None) -> None:
    """Check, before placing, that there will be a curve, and that it can be written."""
    if path is None:
        return
    if current is None:
        raise ValueError(
            "a curve shows what is gained over a plan in use by what moves, and none was given; add --current"
        )
    if path.suffix not in CURVES:
        raise ValueError(f"{path} is no curve that can be written; end its name in one of {', '.join(CURVES)}")
    from dreamshard.files import atomic

    atomic.check_output(path, "curve", "--curve")


def write_curve(path: Path, way: "Transition") -> None:
    """Gain against bytes moved, as a list or a picture.

    Raises:
        ValueError: no costs are predicted, so there is no curve.
    """
    from dreamshard.files import atomic

    weighed = way.weighed
    if weighed is None:
        raise ValueError("no cost is predicted, so there is no curve of gains; name --hardware, or train a placer")
    if path.suffix == ".csv":
        first = (weighed.kept or weighed.curve[0]).overall_ms
        lines = [f"{p.moved_bytes},{p.overall_ms:.6f},{first - p.overall_ms:.6f}" for p in weighed.curve]
        atomic.write_output(path, "\n".join(["moved_bytes,overall_ms,gain_ms", *lines, ""]))
    else:
        from flows.reports.moving_plot import plot_curve
        from flows.reports.what_if_plot import image

        atomic.write_output(path, image(plot_curve(weighed), path.suffix[1:]))
    terminal.note(f"wrote {path}")
