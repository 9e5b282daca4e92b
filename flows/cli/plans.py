"""`dreamshard place`, `learn`, `explain` and `what-if`: plans for tables that a person names, and their costs."""

import re
from dataclasses import asdict, dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import torch
from cyclopts import Parameter

from dreamshard.costs import PHASES
from dreamshard.explanation import Alternative, DeviceReason, TableReason, explain as explained
from dreamshard.files import MOST_DEVICES, counted, gib
from dreamshard.hardware.accelerator import AcceleratorSpec, hardware as hardware_of
from dreamshard.hardware.links import collective_s
from dreamshard.tables import DEFAULT_BATCH, ON_ONE_HOST, TableSharding
from dreamshard.tasks import NoPlacementError
from dreamshard.workloads import ModelTables
from flows.cli import terminal
from flows.cli.command import Fields, Json, Positive, command, open_home
from flows.forms.options import LearnOptions, PlaceOptions, PlanOptions, WhatIfOptions
from flows.placing import request
from flows.placing.placers import PRIOR, choose
from flows.placing.request import moving_lines, prediction_sentence, unmeasured_sentence
from flows.runtime.sources import read_model
from storage.store import Store

OTHER_SETTING = 3
"""Exit code of `place` if the plan's costs are of another setting than the plan."""

_TOP = 3  # tables named per device
_CLUSTER = re.compile(r"(.+):(\d+)(?:/(\d+))?")
_COSTS = ("overall_ms", *(f"{phase}_ms" for phase in PHASES), "sync_ms")

torch.set_num_threads(1)  # arrays of a plan are small, so further threads wait for each other


@command
def place(
    options: Annotated[PlaceOptions, Fields],
    *,
    out: Path | None = None,
    html: Path | None = None,
    strict: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Place TABLES: write the plan to a file or stdout, and a summary to stderr.

    Exits with 3 after writing the plan if its costs are of other hardware than --hardware; with --strict also if they are
    of another number of devices or devices per host, precision, optimizer or batch size.

    Args:
        out: File for the plan. By default it goes to stdout, or a terminal shows a table of its devices instead.
        html: File for a web page of the plan: devices, tables and moves.
        strict: Exit with 3 if costs are of another setting than the plan.
    """
    for path in filter(None, (out, html)):
        if path.is_dir() or not path.parent.is_dir():
            raise ValueError(f"{path} is a folder, or its folder does not exist; give another file")
    at_terminal = out is None and options.format == "json" and terminal.OUT.is_terminal
    if html is not None or at_terminal:
        from flows.placing.plan_page import device_rows, html_page  # pandas takes a second to import
    store = open_home(reads_only=True)
    checked = request.check(store, options, terminal.note)
    placed = request.place(store, checked, terminal.note)
    plan = placed.plan
    for line in moving_lines(placed):
        terminal.note(line)
    text = plan.to_csv() if options.format == "csv" else plan.to_json()
    if at_terminal:
        title, rows = device_rows(placed)
        terminal.print_table(rows, title=title)
        terminal.note(
            "the plan itself goes to --out FILE or a pipe; `dreamshard explain` shows what each table would cost elsewhere"
        )
    elif out is None:
        print(text.rstrip("\n"))  # noqa: T201 - the plan itself
    else:
        out.write_text(text, encoding="utf-8")
        terminal.note(f"wrote {out}")
    if html is not None:
        html.write_text(html_page(placed), encoding="utf-8")
        terminal.note(f"wrote {html}; open it in a browser")
    terminal.note(prediction_sentence(plan))
    if said := unmeasured_sentence(plan):
        terminal.note(said)
    if plan.costs_of is not None:
        other = "" if checked.spec else "; for other hardware give --hardware"
        batch = "" if checked.task.batch_size else "; for another number of samples per step give --batch-size"
        terminal.note(f"costs of {plan.costs_of}{batch}{other}")
    if plan.warning:
        terminal.warn(plan.warning)
    if "hardware" in plan.differs_in or (strict and plan.differs_in):
        raise SystemExit(OTHER_SETTING)


@command
def learn(options: Annotated[LearnOptions, Fields], *, out: Path | None = None, as_json: Json = False) -> None:
    """Learn a job's real costs from PROFILES of its steps, and write a better plan.

    Args:
        out: File for the plan, in addition to the home's.
    """
    from flows.cli.stages import run_flow  # optional, as it registers a version
    from flows.learn import learn as learned

    outcome = run_flow(learned, options, as_json=as_json)
    if out is not None:
        out.write_bytes(Path(outcome["plan"]).read_bytes())
    if as_json:
        return
    terminal.say(
        f"The slowest of {outcome['ranks_traced']} ranks took {outcome['traced_ms']:.3f} ms a step; error on held-out ranks "
        f"{outcome['prediction_error']:.1%}."
    )
    terminal.say(f"Plan {out or outcome['plan']}, page {outcome['page']}, version {outcome['version']}")


@command
def explain(
    plan: str,
    /,
    options: Annotated[PlanOptions, Fields],
    *,
    shown: Positive = 16,
    as_json: Json = False,
) -> None:
    """Explain PLAN for TABLES: why devices are slow, and what each table would cost elsewhere.

    Options default to the plan's setting.

    Args:
        plan: Plan to explain: dreamshard's JSON, or TorchRec's own plan as JSON.
        shown: Number of devices and of tables to show, the slowest first.
    """
    store = open_home(reads_only=True)
    asked = PlaceOptions(**request.setting_of(Path(plan)) | options.model_dump(exclude_none=True), current=plan)
    checked = request.check(store, asked, terminal.note)
    task, spec = checked.task, checked.spec
    chosen = choose(store, asked.placer, task, spec, asked.hardware or "", model=checked.model, note=terminal.note)
    if chosen.predictor is None or checked.plan is None:
        raise ValueError("no cost is predicted, so there is nothing to explain; give --hardware, or train a placer")
    if chosen.predicted_by is not None:
        terminal.note(f"{chosen.name} predicts no step cost; {chosen.predicted_by} predicts the costs below")
    if chosen.caveat:
        terminal.warn(chosen.caveat)
    per_host = task.devices_per_host or (spec.devices_per_host if spec else None)
    explanation = explained(task, checked.plan.placement(task.tables).on_hosts_of(per_host), chosen.predictor)
    if as_json:
        terminal.print_json(asdict(explanation))
        return
    devices = sorted(explanation.devices, key=lambda reason: -reason.total_ms)
    tables, now_ms, first = explanation.tables, explanation.overall_ms, devices[0]
    heaviest, ms = next(iter(first.saved_ms.items()), ("no table", 0))
    terminal.say(f"device {first.device} is slowest: {heaviest} takes {ms:.3f} of its {first.total_ms:.3f} ms")
    terminal.print_table(list(map(_device, devices[:shown])), title=f"{counted(len(devices), 'device')}, slowest first")
    title = (
        f"{counted(len(tables), 'table')}: ms of their device, and the step of {now_ms:.3f} ms if they were elsewhere"
        f"{'' if asked.sharding else '; --sharding auto tries all types that constraints allow'}"
    )
    terminal.print_table([_table(reason, now_ms) for reason in tables[:shown]], title=title)
    if (count := max(len(devices), len(tables))) > shown:
        terminal.say(f"The first {shown} are shown; --shown {count} shows all.")


def _device(reason: DeviceReason) -> dict[str, Any]:
    return {
        "device": reason.device,
        "total ms": reason.total_ms,
        **{phase.replace("_", " "): ms for phase, ms in reason.phases_ms.items()},
        "GiB": reason.memory_bytes / 2**30,
        "tables that cost most": [f"{table} {ms:.3f}" for table, ms in islice(reason.saved_ms.items(), _TOP)],
    }


def _table(reason: TableReason, now_ms: float) -> dict[str, Any]:
    now, place, other = reason.sharding, reason.next_place, reason.next_type
    return {
        "table": reason.table,
        "ms": reason.ms,
        "sharded": f"{now.sharding_type}{'' if now.cached_share is None else f', {now.cached_share:.0%} cached'}",
        "where": _where(now),
        "next best place": _alternative(place, now_ms) if place else reason.bound,
        "next best type": f"{other.sharding.sharding_type} on {_alternative(other, now_ms)}" if other else reason.bound,
    }


def _alternative(other: Alternative, now_ms: float) -> str:
    return f"{_where(other.sharding)}: {other.overall_ms:.3f} ({other.overall_ms - now_ms:+.3f})"


def _where(sharding: TableSharding) -> str:
    """For example `devices 0, 1` or `host 2`."""
    kind, where = "host" if sharding.sharding_type in ON_ONE_HOST else "device", sharding.where
    return f"{kind}{'s' * (len(where) > 1)} {terminal.shown(where)}" if where else "all devices"


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Equal devices of one kind.

    Attributes:
        called: how the user calls the hardware, e.g. a preset's name or a file's path.
        spec: its figures.
        num_devices: in all.
        group: neighbouring devices that hold all tables together; other groups hold replicas, as TorchRec's
            `DMPCollection` with `use_inter_host_allreduce` has them.
    """

    called: str
    spec: AcceleratorSpec
    num_devices: int
    group: int

    def sync_ms(self, num_bytes: int) -> float:
        """Milliseconds in which replicas of so many bytes of a device average their weights and states."""
        replicas, near = self.num_devices // self.group, max(1, self.spec.devices_per_host // self.group)
        if replicas == 1:
            return 0.0
        return 1e3 * float(collective_s(torch.tensor(float(num_bytes)), replicas, self.spec, near, "all_reduce"))


@command
def what_if(options: Annotated[WhatIfOptions, Fields], *, as_json: Json = False) -> None:
    """Compare clusters for TABLES by published figures: cost of a step, memory, balance."""
    clusters = []
    for entry in options.hardware.split(","):
        match = _CLUSTER.fullmatch(entry.strip())
        count, group = (int(match[i] or match[2]) for i in (2, 3)) if match else (0, 0)
        if not match or not 1 <= count <= MOST_DEVICES or not group or count % group:
            raise ValueError(
                f"{entry!r} is not a cluster; give hardware, 1 to {MOST_DEVICES} devices and, if you like, equal groups: "
                "a100:8, my_cluster.yaml:64 or a100:64/16"
            )
        clusters.append(Cluster(called=match[1], spec=hardware_of(match[1]), num_devices=count, group=group))
    store, note_once = open_home(reads_only=True), cache(terminal.note)
    model = read_model(store, options.tables, note_once)
    figures = [_figures(store, options, cluster, model, note_once) for cluster in clusters]
    precision, optimizer = options.precision or model.precision, options.optimizer or model.optimizer
    batch = options.batch_size or DEFAULT_BATCH
    if as_json:
        asked = {"precision": precision, "optimizer": optimizer, "batch_size": batch}
        terminal.print_json([row | asked for row in figures])
    else:
        setting = f"{counted(len(model), 'table')}, {precision}, {optimizer}, batch {batch:,}"
        terminal.print_table(list(map(_row, figures)), title=f"Predicted training step, {options.tables}: {setting}")
        for row in figures:
            if row["infeasible"]:
                terminal.say(f"{row['hardware']} x{row['num_devices']} does not fit: {row['infeasible']}")
    if all(row["infeasible"] for row in figures):
        raise SystemExit(1)


def _figures(
    store: Store, options: WhatIfOptions, cluster: Cluster, model: ModelTables, note: request.Note
) -> dict[str, Any]:
    """Place the tables on a cluster by its figures; a group of it places its share of the batch.

    Returns:
        The cluster's figures: the slowest device's milliseconds in all and by phase, with its share of a sync of replicas;
        `balance`, the mean over the largest cost of a device; bytes of the fullest device; number of shards. All are None
        if no placement fits; `infeasible` says why.

    Raises:
        ValueError: the options are wrong.
    """
    spec, group = cluster.spec, cluster.group
    fields = options.model_dump(exclude={"hardware", "sync_every"}) | {
        "batch_size": -(-(options.batch_size or DEFAULT_BATCH) * group // cluster.num_devices)
    }
    asked = PlaceOptions(**fields, hardware=cluster.called, devices=group, placer=PRIOR)
    checked = request.check(store, asked, note, model=model)
    figures = {
        "hardware": cluster.called,
        "name": spec.name,
        "num_devices": cluster.num_devices,
        "group": group,
        "num_hosts": -(-cluster.num_devices // spec.devices_per_host),
        "memory_bytes": checked.task.memory_bytes,
        **dict.fromkeys((*_COSTS, "balance", "largest_memory_bytes", "shards", "infeasible")),
    }
    try:
        plan = request.place(store, checked, note).plan
    except NoPlacementError as error:
        return figures | {"infeasible": str(error)}
    devices = plan.predicted.devices
    phases_ms = torch.tensor([[device[f"{phase}_ms"] for phase in PHASES] for device in devices])  # [D, 4]
    device_ms, largest = phases_ms.sum(dim=1), max(int(device["memory_bytes"]) for device in devices)
    sync_ms = cluster.sync_ms(largest) / options.sync_every
    costs = (plan.predicted.overall_ms or 0) + sync_ms, *phases_ms[int(device_ms.argmax())].tolist(), sync_ms
    return {
        **figures,
        **dict(zip(_COSTS, costs, strict=True)),
        "balance": float(device_ms.mean() / device_ms.max()),
        "largest_memory_bytes": largest,
        "shards": sum(int(device["tables"]) for device in devices),
    }


def _row(figures: dict[str, Any]) -> dict[str, Any]:
    """One cluster for people."""
    largest = figures["largest_memory_bytes"]
    return {
        "cluster": f"{Path(figures['hardware']).stem} x{figures['num_devices']}",
        "group": figures["group"],
        "hosts": figures["num_hosts"],
        "step ms": figures["overall_ms"],
        **{phase.replace("_", " "): figures[f"{phase}_ms"] for phase in PHASES},
        "sync": figures["sync_ms"],
        "balance": figures["balance"],
        "fullest device": f"{'-' if largest is None else gib(largest)} of {gib(figures['memory_bytes'])}",
    }
