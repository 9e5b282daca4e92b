"""A plan as it is written, and what is said of it."""

from pathlib import Path
from typing import TYPE_CHECKING

from flows.cli import terminal
from flows.cli.torchrec_plan import TorchRecTarget, torchrec_text
from flows.placing.plan_page import prediction_sentence

if TYPE_CHECKING:
    from dreamshard.placement import Placement
    from dreamshard.plan import Plan
    from dreamshard.tasks import PlacementTask
    from flows.placing.placers import Predictor
    from flows.placing.request import CheckedRequest, Placed


def plan_text(plan: "Plan", placement: "Placement", form: str, target: TorchRecTarget | None) -> str:
    """The plan in the given format; as TorchRec's if there is a target."""
    if target is not None:
        return torchrec_text(placement, target)
    return plan.to_csv() if form == "csv" else plan.to_json()


def show_prediction(
    task: "PlacementTask", placement: "Placement", plan: "Plan", predictor: "Predictor", *, is_for_named: bool
) -> None:
    """Say what the plan costs, and what that is of."""
    terminal.note(prediction_sentence(plan, placement))
    if plan.costs_of is not None:
        other = "" if is_for_named else "; if the plan is for other hardware, name it with --hardware"
        batch = "" if task.batch_size else "; for another number of samples per step give --batch-size"
        terminal.note(f"costs of {plan.costs_of}{batch}{other}")
    if plan.warning:
        terminal.warn(plan.warning)


def check_writable(out: Path | None) -> None:
    """Check, before placing, that the plan can be written."""
    if out is None:
        return
    from dreamshard.files import atomic

    atomic.check_output(out, "plan")


def check_page(html: Path | None) -> None:
    """Check, before placing, that the page can be written."""
    if html is not None:
        from dreamshard.files import atomic

        atomic.check_output(html, "page", "--html")


def write_page(html: Path, checked: "CheckedRequest", placed: "Placed") -> None:
    """The page of a plan."""
    from dreamshard.files import atomic
    from flows.placing.plan_view import plan_html

    atomic.write_output(html, plan_html(checked, placed))
    terminal.note(f"wrote {html}; open it in a browser")
