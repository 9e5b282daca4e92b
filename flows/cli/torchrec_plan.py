"""What `dreamshard place --format torchrec` needs to know beside the plan, and the file that it writes."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from dreamshard.hardware.accelerator import AcceleratorSpec
    from dreamshard.placement import Placement
    from dreamshard.tasks import PlacementTask
    from dreamshard.workloads.table_list import ModelTable
from dreamshard.workloads.model_tables import ModelTables

DeviceType = Literal["cuda", "cpu"]

ModulePathOption = Annotated[
    str | None,
    typer.Option(
        "--module-path",
        help="Of the collection within the model that is given to DistributedModelParallel, for --format torchrec; '' where "
        "it is the model itself.",
    ),
]
DeviceTypeOption = Annotated[
    DeviceType, typer.Option("--device-type", help="Of the ranks, for --format torchrec; cuda or cpu.")
]


@dataclass(frozen=True, kw_only=True)
class TorchRecTarget:
    """What a plan for TorchRec is for.

    Attributes:
        tables: as the model has them, in the task's order.
        ranks_per_host: None on CPU ranks where that is not said, which need no number of their device.
    """

    tables: "tuple[ModelTable, ...]"
    device_type: DeviceType
    ranks_per_host: int | None


def check_ranks_per_host(device_type: DeviceType, devices_per_host: int | None, hardware: str | None) -> None:
    """Check, before anything is imported, that a plan for TorchRec can name the GPU of each rank.

    Raises:
        BadParameter: it cannot.
    """
    if device_type == "cuda" and devices_per_host is None and hardware is None:
        raise typer.BadParameter(
            "a plan for TorchRec names the GPU of each rank on its host; give the ranks per host, or --hardware",
            param_hint="--devices-per-host",
        )


def torchrec_target(
    task: "PlacementTask",
    *,
    model: "ModelTables | None",
    module_path: str | None,
    device_type: DeviceType,
    spec: "AcceleratorSpec | None",
) -> TorchRecTarget:
    """What the plan is for, before anything is placed.

    Args:
        task: whose tables are to be placed.
        model: that the tables are of; None if a list does not say where they are.
        module_path: given although the model says it.
        device_type: of the ranks.
        spec: hardware that the plan is for, if named.

    Raises:
        ValueError: torchrec is not installed, or does not shard the model's modules.
        BadParameter: the tables' module is not known.
    """
    try:
        from dreamshard.torchrec import refuse_plain
    except ImportError as error:
        raise ValueError(
            f"torchrec cannot be imported ({error}), so there is no ShardingPlan to write; install it with "
            "`pip install --no-deps torchrec==1.8.0`, or use --format json"
        ) from error
    if module_path is not None:
        raise typer.BadParameter("the model says where its tables are; leave it out", param_hint="--module-path")
    if model is None:
        raise typer.BadParameter(
            "a list of tables does not say where the model has them, so its plan would not load; give the path of their "
            "collection within the model, e.g. --module-path sparse_arch.ebc ('' where it is the model itself), or place "
            "model.py:make_model",
            param_hint="--module-path",
        )
    refuse_plain(model.details)
    tables = tuple(  # a list's types of weights are those of the task
        table if table.collection else replace(table, precision=task.precision_of.get(name, task.precision))
        for name, table in model.by_name.items()
    )
    per_host = task.devices_per_host or (spec.devices_per_node if spec else None)
    return TorchRecTarget(
        tables=tables, device_type=device_type, ranks_per_host=per_host and min(per_host, task.num_devices)
    )


def torchrec_text(placement: "Placement", target: TorchRecTarget) -> str:
    """The plan file that `dreamshard.torchrec.load_plan` reads."""
    from dreamshard.torchrec import sharding_plan, to_json

    per_host = target.ranks_per_host or placement.devices_per_host
    return to_json(
        sharding_plan(placement, target.tables, device_type=target.device_type, ranks_per_host=per_host),
        target.tables,
        world_size=placement.num_devices,
        ranks_per_host=per_host,
        device_type=target.device_type,
    )
