"""Recipes: complete configurations of the chain, by name; the docstring of each part's config explains its fields."""

from dataclasses import dataclass, field, replace
from typing import Literal

import torch

from dreamshard.tables import Optimizer, Precision, Tables
from dreamshard.task_sets.sampling import sample_tasks
from dreamshard.tasks import PlacementTask
from dreamshard.training.config import TrainingConfig, with_algorithm
from dreamshard.workloads import META_WORKLOADS, WorkloadConfig

Mode = Literal["auto", "fixed", "pool"]
"""Training is on one fixed model, or for unseen models whose tables are like a pool's. `sizing` decides `auto`."""

SIZES = ("tables_per_task", "memory_bytes", "batch_size")
"""Sizes that `sizing` derives from the tables and the testbed if a recipe has no value for them."""


@dataclass(frozen=True, kw_only=True)
class TasksConfig:
    """Placement tasks.

    Attributes:
        mode: `pool` draws tasks from the two sides of a table split; `fixed` takes all tables as one model, and variants.
        devices_per_host: None for as many as the hardware has.
        reserve_bytes: of `memory_bytes`, kept free for dense parameters and activations.
        num_train: tasks to train on; with a fixed model, variants of it.
        num_test: held-out tasks; with a fixed model, variants of it.
    """

    mode: Mode = "auto"
    tables_per_task: int = 20
    num_devices: int = 2
    devices_per_host: int | None = None
    memory_bytes: int = 2 * 2**30
    reserve_bytes: int = 0
    num_train: int = 50
    num_test: int = 10
    precision: Precision = "fp32"
    optimizer: Optimizer = "sgd"

    def drawn_from(
        self, pool: Tables, count: int, generator: torch.Generator, name: str = "task"
    ) -> list[PlacementTask]:
        """Tasks of tables of a pool; raises like `sample_tasks`."""
        return sample_tasks(
            pool,
            count,
            self.tables_per_task,
            self.num_devices,
            self.memory_bytes,
            generator,
            precision=self.precision,
            optimizer=self.optimizer,
            name=name,
            devices_per_host=self.devices_per_host,
        )

    def of_all(self, tables: Tables, name: str) -> PlacementTask:
        """The task of all tables as one model; raises like `PlacementTask`."""
        return PlacementTask(
            tables,
            self.num_devices,
            self.memory_bytes,
            precision=self.precision,
            optimizer=self.optimizer,
            name=name,
            devices_per_host=self.devices_per_host,
        )


@dataclass(frozen=True, kw_only=True)
class MeasureConfig:
    """How a testbed measures one placement, or one all-to-all by itself.

    Attributes:
        exchange_devices: further numbers of devices whose all-to-alls are measured by themselves, besides those up to the
            tasks' own, so that the placer serves as many devices.
    """

    warmups: int = 3
    repeats: int = 15
    timeout_s: float = 300.0
    exchange_devices: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """How placers are compared on the test tasks.

    Attributes:
        repeats: measurements of each placement, interleaved with those of the others.
        model_repeats: the same for a fixed model; they are what its interval is over.
        variant_repeats: the same for each variant of it.
        budget_ms: work of the search: as much as an idle core does in this time; None for work that grows with the task.
        rivals: whether to include the published rivals, one of which learns first, by measuring.
    """

    repeats: int = 2
    model_repeats: int = 10
    variant_repeats: int = 1
    budget_ms: float | None = None
    rivals: bool = False


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything the chain needs to know, except where things are stored.

    Attributes:
        sized_by_source: those of `SIZES` that are derived for another source of tables than the recipe's own.
        derived: those of `SIZES` that `sizing` has yet to derive; their values here are starting points.
    """

    name: str
    workload: WorkloadConfig = field(default_factory=WorkloadConfig)
    tasks: TasksConfig = field(default_factory=TasksConfig)
    testbed: str = "auto"
    measure: MeasureConfig = field(default_factory=MeasureConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    sized_by_source: tuple[str, ...] = SIZES
    derived: tuple[str, ...] = ()


_PAPER_TASKS = TasksConfig(
    tables_per_task=50, num_devices=4, memory_bytes=16 * 2**30, num_test=50, precision="fp16"
)  # of Meta's 2021 data set
_PAPER_WORKLOAD = WorkloadConfig(dim=16, max_table_bytes=2**30, batch_size=65_536)

RECIPES: dict[str, Recipe] = {
    # Meta's 2021 tables that fit a small machine; minutes on two cores
    "default": Recipe(
        name="default",
        workload=WorkloadConfig(num_tables=160, max_table_bytes=64 * 2**20, batch_size=2048),
        tasks=TasksConfig(memory_bytes=2**30),
    ),
    # the whole chain on a tiny configuration; the result is too noisy to judge quality
    "smoke": Recipe(
        name="smoke",
        workload=WorkloadConfig(num_tables=48, max_table_bytes=16 * 2**20, batch_size=512),
        tasks=TasksConfig(tables_per_task=8, memory_bytes=2**29, num_train=8, num_test=4),
        measure=MeasureConfig(repeats=5),
        training=TrainingConfig(iterations=2, placements_per_iteration=5, cost_steps=100, policy_updates=5),
        evaluation=EvaluationConfig(repeats=1, model_repeats=4),
        sized_by_source=("tables_per_task", "memory_bytes"),
    ),
    # the paper's setting on the simulated testbed
    "dlrm_50x4": Recipe(name="dlrm_50x4", workload=_PAPER_WORKLOAD, tasks=_PAPER_TASKS, testbed="simulated"),
    # DreamShard as published on the paper's setting: 5 GiB per device, the paper's networks, the policy alone
    "paper_50x4": Recipe(
        name="paper_50x4",
        workload=_PAPER_WORKLOAD,
        tasks=replace(_PAPER_TASKS, memory_bytes=5 * 2**30),
        testbed="simulated",
        training=with_algorithm(TrainingConfig(), "paper"),
    ),
}


def recipe(name: str) -> Recipe:
    """The recipe called `name`.

    Raises:
        ValueError: there is no such recipe; the message lists all recipes.
    """
    if name not in RECIPES:
        raise ValueError(f"there is no recipe {name!r}; choose one of {sorted(RECIPES)}")
    return RECIPES[name]


def with_overrides(base: Recipe, *, testbed: str | None = None, source: str | None = None) -> Recipe:
    """`base` on another testbed or with another source of tables.

    All tables of another source are taken, with the source's own dims, or the recipe's dims if it knows none, and sizes are
    derived from them. Meta's data sets keep the recipe's limits, dims and sizes.
    """
    workload, derived = base.workload, base.derived
    if source in META_WORKLOADS:
        workload = replace(workload, source=source)
    elif source is not None and source != workload.source:
        unknown_dim = workload.unknown_dim if workload.dim is None else workload.dim
        workload = replace(
            workload, source=source, num_tables=None, max_table_bytes=None, dim=None, unknown_dim=unknown_dim
        )
        derived = base.sized_by_source
    return replace(base, testbed=testbed or base.testbed, workload=workload, derived=derived)
