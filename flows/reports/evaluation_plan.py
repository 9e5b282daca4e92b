"""One placement of an evaluation as a page: the candidate's beside what it has to beat, as they were measured."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from prefect.artifacts import create_link_artifact
from prefect.context import FlowRunContext

from dreamshard.explain import table_shares
from dreamshard.files.text import without_passwords
from dreamshard.measured_on import MeasuredOn
from dreamshard.placement import Placement, TableSharding
from dreamshard.search import DreamShardPlacer
from dreamshard.tables import columns_of
from dreamshard.tasks import PlacementTask
from flows.reports import report_tables
from flows.reports.plan_view.data import PlanView, Side
from flows.reports.plots import rows_of_shown_task
from flows.reports.timeline import costs_of
from storage.mlflow_store import runs
from storage.run_records import checkpoints
from storage.run_records.report_store import IN_USE, EvaluationReport, MeasuredRow
from storage.store import Store

FILE = "placement_page.html"
"""Name of the page on an evaluation's run and on its version's."""


def log_placement(store: Store, run: str, report: EvaluationReport, *, linked: bool = True) -> None:
    """Log the page on a run, if there is one; in a flow run, an artifact links to it, if `linked`, on MLflow's pages."""
    page = placement_html(store, report)
    if page is None:
        return
    runs.log_text(store.settings, run, FILE, page)
    server = without_passwords(store.settings.tracking_uri).rstrip("/")
    if linked and server.startswith("http") and FlowRunContext.get() is not None:
        create_link_artifact(
            f"{server}/{runs.artifact_link(store.settings, run, FILE)}",
            link_text="one placement, device by device and table by table",
            key="dreamshard-placement",
            description="The candidate's placement of a held-out task beside the one that it has to beat, on MLflow's pages.",
        )


def placement_html(store: Store, report: EvaluationReport) -> str | None:
    """The page of the shown task; None where nothing is to be shown, as in `placement_view`, or no step is predicted."""
    tasks = store.lake.read_tasks(report.dataset, "test", report.tasks)
    predictor = checkpoints.placer(store, str(report.training), int(report.iteration or 0), None)
    view = placement_view(report, tasks, predictor) if isinstance(predictor, DreamShardPlacer) else None
    if view is None:
        return None
    from flows.reports.plan_view.page import plan_html

    return plan_html(view)


def placement_view(
    report: EvaluationReport, tasks: Sequence[PlacementTask], predictor: DreamShardPlacer
) -> PlanView | None:
    """What the page shows: devices as measured, shares of tables by the candidate's cost network.

    None where the candidate's placement did not fit, or the report is from before shards were named.

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
    return PlanView(
        title=task.name,
        task=task,
        side=side,
        before=_side(task, rows[rival], rival, predictor),
        costs="measured",
        facts=tuple(_facts(report, shown.task).items()),
        notes=(
            "Devices were measured; the share of each table in a device's phase is estimated by the candidate's cost "
            "network. The bars are of one repeat, so their sums may differ from the mean in the reports.",
        ),
    )


def _facts(report: EvaluationReport, task: str) -> Mapping[str, str]:
    measured = None if report.measured_on is None else MeasuredOn.from_json(report.measured_on)
    gain = report.gain(report.candidate, report.reference)
    return {
        "measured on": report.hardware if measured is None else str(measured),
        "training": f"{report.training}, iteration {report.iteration}",
        **({"held-out task": task} if report.model is None else {}),
        f"gain over {report.reference}, all tasks": report_tables.gain_text(gain),
    }


def _side(task: PlacementTask, row: MeasuredRow, name: str, predictor: DreamShardPlacer) -> Side | None:
    """A measured placement; None where it did not fit, or its shards are not known."""
    placement = placement_of(task, row)
    if placement is None or not row.fits:
        return None
    placement = placement.on_hosts_of(task.devices_per_host)
    shares = table_shares(task, placement, predictor).scaled_to(costs_of(row.devices))
    return Side.of(name, task, placement, shares)


def placement_of(task: PlacementTask, row: MeasuredRow) -> Placement | None:
    """Where a row put the task's tables; None where shards have no names and are not the tables themselves."""
    names = task.tables.names
    if not row.tables or row.tables == names:
        return Placement.whole(row.device, task.num_devices) if len(row.device) == len(names) else None
    dims = task.tables.dim.tolist()
    starts: dict[int, list[tuple[int, int]]] = {}  # first column and place in the row, of each table
    for i, name in enumerate(row.tables):
        t, start = _table_of(name, names, dims)
        starts.setdefault(t, []).append((start, i))
    tables = []
    for t in range(len(names)):
        found = sorted(starts.get(t, []))
        ends = [*(start for start, _ in found), dims[t]]
        tables.append(TableSharding.by_columns(tuple(pairwise(ends)), [row.device[i] for _, i in found]))
    return Placement(tuple(tables), task.num_devices, task.num_devices)


def _table_of(shard: str, names: Sequence[str], dims: Sequence[int]) -> tuple[int, int]:
    """Number of the table that a shard is of, itself perhaps some columns of a table, and the shard's first column in it."""
    if shard in names:
        return names.index(shard), 0
    parent, start = columns_of(shard)
    for t, name in enumerate(names):
        own, first = columns_of(name)
        if own == parent and first <= start < first + dims[t]:
            return t, start - first
    raise ValueError(
        f"the report measured {shard!r}, which is of no table of its task, so the placement cannot be shown; evaluate again"
    )
