"""Recipes: named functions that return a complete configuration of the chain.

A recipe is the only place where sizes and counts are chosen; each part's own config says what they mean.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from dreamshard.shard_profiling.design import CollectionConfig
from dreamshard.tables import Optimizer, Precision
from dreamshard.training import TrainingConfig
from dreamshard.workloads import META_WORKLOADS
from dreamshard.workloads.config import WorkloadConfig


@dataclass(frozen=True, kw_only=True)
class TasksConfig:
    """Placement tasks drawn from the pool's training and test halves."""

    tables_per_task: int = 20
    num_devices: int = 2
    memory_bytes: int = 2 * 2**30
    num_train: int = 50
    num_test: int = 10
    precision: Precision = "fp32"
    optimizer: Optimizer = "sgd"


@dataclass(frozen=True, kw_only=True)
class MeasureConfig:
    """How a testbed measures one placement."""

    warmups: int = 3
    repeats: int = 15
    timeout_s: float = 300.0


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """How placers are compared on the test tasks: every placement is measured `repeats` times, interleaved.

    Attributes:
        budget_ms: for the placer's search; None for its default, which grows with the task.
        peers: whether the published rivals take part; two of them are trained first.
    """

    repeats: int = 2
    budget_ms: float | None = None
    peers: bool = False


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything the chain needs to know, except where things are stored.

    Attributes:
        collection: where given, `profile` collects costs of shards and `train` learns from those alone.
    """

    name: str
    workload: WorkloadConfig = field(default_factory=WorkloadConfig)
    tasks: TasksConfig = field(default_factory=TasksConfig)
    testbed: str = "auto"
    measure: MeasureConfig = field(default_factory=MeasureConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    collection: CollectionConfig | None = None


def default() -> Recipe:
    """Meta's 2021 tables that fit a small machine, 20 per task on two devices; minutes on two cores."""
    return Recipe(
        name="default",
        workload=WorkloadConfig(num_tables=160, max_table_bytes=64 * 2**20, batch_size=2048),
        tasks=TasksConfig(tables_per_task=20, num_devices=2, memory_bytes=2**30),
    )


def smoke() -> Recipe:
    """The whole chain in little: proves that every stage works, not that the placement is good."""
    return Recipe(
        name="smoke",
        workload=WorkloadConfig(num_tables=48, max_table_bytes=16 * 2**20, batch_size=512),
        tasks=TasksConfig(tables_per_task=8, num_devices=2, memory_bytes=2**29, num_train=8, num_test=4),
        measure=MeasureConfig(repeats=5),
        training=TrainingConfig(iterations=2, placements_per_iteration=5, cost_steps=100, policy_updates=5),
        evaluation=EvaluationConfig(repeats=1),
    )


def dlrm_50x4() -> Recipe:
    """The paper's setting on the simulated testbed: 50 tables of Meta's 2021 data set on four devices."""
    return Recipe(
        name="dlrm_50x4",
        workload=WorkloadConfig(dim=16, max_table_bytes=2**30, batch_size=65_536),
        tasks=TasksConfig(tables_per_task=50, num_devices=4, memory_bytes=16 * 2**30, num_test=50, precision="fp16"),
        testbed="simulated",
    )


def paper_50x4() -> Recipe:
    """`dlrm_50x4` with the paper's own networks, rates and proposals, for comparison."""
    return replace(
        dlrm_50x4(),
        name="paper_50x4",
        training=TrainingConfig(
            cost_network="paper", policy="paper", exploration=0.0, cost_learning_rate=5e-4, policy_learning_rate=5e-4
        ),
    )


def h200_costs() -> Recipe:
    """Costs of shards on one H200: collected with `profile`, learnt from with `train`; `run` plans for eight of it."""
    return Recipe(
        name="h200_costs",
        workload=WorkloadConfig(dim="mixed", batch_size=65_536),
        tasks=TasksConfig(
            tables_per_task=50,
            num_devices=8,
            memory_bytes=100 * 2**30,
            precision="fp16",
            optimizer="rowwise_adagrad",
        ),
        testbed="emulated:h200",
        measure=MeasureConfig(warmups=2, repeats=9),
        collection=CollectionConfig(),
    )


RECIPES: dict[str, Callable[[], Recipe]] = {
    "default": default,
    "smoke": smoke,
    "dlrm_50x4": dlrm_50x4,
    "paper_50x4": paper_50x4,
    "h200_costs": h200_costs,
}


def recipe(name: str) -> Recipe:
    """The recipe called `name`.

    Raises:
        ValueError: there is none of that name; the message lists those there are.
    """
    if name not in RECIPES:
        raise ValueError(f"there is no recipe {name!r}, so there is nothing to run; choose one of {sorted(RECIPES)}")
    return RECIPES[name]()


def with_overrides(base: Recipe, *, testbed: str | None = None, source: str | None = None) -> Recipe:
    """`base` on another testbed or another source of tables.

    Another source is taken whole and with its own dims: of Meta's as many tables as of the recipe's, and sources that
    know no dims keep the recipe's.
    """
    chosen = replace(base, testbed=testbed) if testbed else base
    if source is None or source == base.workload.source:
        return chosen
    if source in META_WORKLOADS:
        return replace(chosen, workload=replace(base.workload, source=source))
    dim = base.workload.dim
    whole = replace(
        base.workload,
        source=source,
        num_tables=None,
        max_table_bytes=None,
        dim=None,
        unknown_dim=base.workload.unknown_dim if dim is None else dim,
    )
    return replace(chosen, workload=whole)
