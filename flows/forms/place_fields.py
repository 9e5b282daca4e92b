"""The fields of the form `place` that no other form has; those that it shares are in `fields.py`."""

from typing import Annotated

from pydantic import Field

PlacedTables = Annotated[
    str,
    Field(
        title="Tables",
        description="What to place: the full path of a list (.csv, .parquet, .json), /path/model.py:make_model, or a bundled "
        "list's name.",
        min_length=1,
        examples=["mlperf-dlrm-dcnv2", "/models/tables.csv", "/models/model.py:make_model"],
    ),
]
PlacedDevices = Annotated[int, Field(title="Devices", description="Devices to place tables on.", ge=1, le=4096)]
PlacedMemoryGb = Annotated[
    float | None,
    Field(
        title="Memory per device, GiB",
        description="Room for tables on each device. Empty: seven eighths of the hardware's.",
        gt=0,
        le=100_000,
    ),
]
HardwareName = Annotated[
    str | None,
    Field(
        title="Hardware",
        description="What the plan is for: a preset, or the full path of a file of your own (.yaml, .json). Empty: what the "
        "placer was trained on.",
        examples=["h100", "a100", "/hardware/ours.yaml"],
    ),
]
PlacerName = Annotated[
    str | None,
    Field(
        title="Placer",
        description="champion, challenger, previous, a version's number, paper or autoshard (as published: their "
        "champions), paper:3, prior, cost_greedy, dreamshard_policy, a rule of thumb (e.g. lookup_greedy), or a published "
        "rival. Empty: the best for the hardware, or the champion.",
        examples=["champion", "paper", "prior", "lookup_greedy"],
    ),
]
Sharding = Annotated[
    str | None,
    Field(
        title="Ways to shard",
        description="auto (every way), columns, whole, or a list such as table_wise,row_wise. Empty: auto; columns for rules "
        "of thumb and rivals.",
        examples=["auto", "columns", "table_wise,row_wise"],
    ),
]
ConstraintsText = Annotated[
    str | None,
    Field(
        title="Constraints",
        description="What the plan must respect, as YAML: pin, exclude, exclude_devices, together, apart, memory_gb, "
        "reserve_gb, sharding_types, narrowest_columns, cache; or the full path of a file of it. Empty: none.",
        examples=["pin: {user_id: 0}\napart: [[user_id, item_id]]", "/plans/constraints.yaml"],
    ),
]
Cache = Annotated[
    bool,
    Field(
        title="Host memory with a cache",
        description="Tables may be in host memory with a cache on the device, where room is short.",
    ),
]
PlanInUse = Annotated[
    str | None,
    Field(
        title="Plan in use",
        description="Full path of the plan that runs now, dreamshard's or TorchRec's: what a new one gains is weighed "
        "against what moves. Empty: none.",
    ),
]
TablesThen = Annotated[
    str | None,
    Field(
        title="Tables of the plan in use",
        description="The list, as under Tables, as it was when the plan in use was made. Empty: as the plan says.",
    ),
]
StepsUntilNext = Annotated[
    float,
    Field(
        title="Steps until the next change",
        description="Training steps over which a gain counts, where there is a plan in use.",
        ge=1,
        le=1e15,
    ),
]
MoveGbPerS = Annotated[
    float,
    Field(
        title="Rate of moving, GB/s",
        description="How fast all devices together move tables, where there is a plan in use.",
        ge=1e-6,
        le=1e6,
    ),
]
BudgetMs = Annotated[
    float | None,
    Field(
        title="Work of the search, ms",
        description="As much work as an idle core does in this time, on any machine. Empty: by the number of tables.",
        ge=0,
        le=1e9,
    ),
]
