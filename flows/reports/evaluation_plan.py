"""One placement of an evaluation as a page: the candidate's beside the one that it has to beat, as they were measured."""

from collections.abc import Sequence
from itertools import pairwise

import torch

from dreamshard.costs import PHASES, DeviceCosts, MeasuredOn
from dreamshard.explain import table_shares
from dreamshard.placement import Placement, TableSharding
from dreamshard.search import DreamShardPlacer
from dreamshard.tables import columns_of
from dreamshard.tasks import PlacementTask
from flows.reports import report_tables
from flows.reports.plan_view.page import plan_html
from flows.reports.plan_view.view import PlanView, Side
from flows.reports.plots import rows_of_shown_task
from storage.mlflow_store import runs
from storage.run_records import checkpoints
from storage.run_records.report_store import IN_USE, EvaluationReport, MeasuredRow
from storage.store import Store

FILE = "placement_page.html"
"""Name of the page on an evaluation's run and on its version's."""


def log_placement(store: Store, run: str, report: EvaluationReport) -> None:
    """Log the page of the shown task on a run, unless the candidate's placement did not fit or no step is predicted."""
    tasks = store.lake.read_tasks(report.dataset, "test", report.tasks)
    predictor = checkpoints.placer(store, str(report.training), int(report.iteration or 0), None)
    view = placement_view(report, tasks, predictor) if isinstance(predictor, DreamShardPlacer) else None
    if view is not None:
        runs.log_text(store.settings, run, FILE, plan_html(view))


def placement_view(
    report: EvaluationReport, tasks: Sequence[PlacementTask], predictor: DreamShardPlacer
) -> PlanView | None:
    """The figures of the page: devices as measured, shares of tables by the candidate's cost network.

    None if the candidate's placement did not fit.

    Args:
        report: of an evaluation of a training.
        tasks: held out.
        predictor: the candidate.
    """
    shown = rows_of_shown_task(report)[-1]
    rows = {row.placer: row for row in report.rows if row.task == shown.task}
    task = next(each for each in tasks if each.name == shown.task)
    side = _side(task, rows[report.candidate], f"{report.candidate} (candidate)", predictor)
    if side is None:
        return None
    rival = next(
        name for name in (IN_USE, *report.versions, report.reference) if name in rows and name != report.candidate
    )
    measured = report.hardware if report.measured_on is None else str(MeasuredOn.from_json(report.measured_on))
    gain = report_tables.gain_text(report.gain(report.candidate, report.reference))
    return PlanView(
        title=task.name,
        task=task,
        side=side,
        before=_side(task, rows[rival], rival, predictor),
        costs="measured",
        facts=(
            ("measured on", measured),
            ("training", f"{report.training}, iteration {report.iteration}"),
            (f"gain over {report.reference}, all tasks", gain),
        ),
        notes=(
            "Devices were measured; the share of each table in a device's phase is estimated by the candidate's cost "
            "network. The bars are of one repeat, so their sums may differ from the mean in the reports.",
        ),
    )


def _side(task: PlacementTask, row: MeasuredRow, name: str, predictor: DreamShardPlacer) -> Side | None:
    """A measured placement; None if it did not fit."""
    if not row.fits:
        return None
    placement = placement_of(task, row).on_hosts_of(task.devices_per_host)
    costs = DeviceCosts.from_phases(torch.tensor([[device[phase] for phase in PHASES] for device in row.devices]))
    return Side.of(name, task, placement, table_shares(task, placement, predictor).scaled_to(costs))


def placement_of(task: PlacementTask, row: MeasuredRow) -> Placement:
    """The placement of the task's tables, some of which the row may place as column shards."""
    names, dims = task.tables.names, task.tables.dim.tolist()
    shards: dict[str, list[tuple[int, int]]] = {name: [] for name in names}  # first column and device
    for shard, device in zip(row.tables, row.device, strict=True):
        table, start = _table_of(shard, names, dims)
        shards[table].append((start, device))
    tables = []
    for name, dim in zip(names, dims, strict=True):
        found = sorted(shards[name])
        ends = (*(start for start, _ in found), dim)
        tables.append(TableSharding.by_columns(tuple(pairwise(ends)), [device for _, device in found]))
    return Placement(tuple(tables), task.num_devices, task.num_devices)


def _table_of(shard: str, names: Sequence[str], dims: Sequence[int]) -> tuple[str, int]:
    """The table that a shard is of, itself perhaps some columns of a table, and the shard's first column in it."""
    if shard in names:
        return shard, 0
    parent, start = columns_of(shard)
    for name, dim in zip(names, dims, strict=True):
        own, first = columns_of(name)
        if own == parent and first <= start < first + dim:
            return name, start - first
    raise ValueError(f"the report measured {shard!r}, which is of no table of its task; evaluate again")
