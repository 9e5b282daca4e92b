"""Learn a placer from costs of shards alone: one device measured them, and the links are known from its data sheet.

The cost network learns compute from shards; communication follows from the link figures; the policy learns on the cost
network, as always. What is learnt is as good as the measurements, so the errors on held-out shards belong to it.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dreamshard.cost_network import CostNetwork, PaperCostNetwork, StructuredCostNetwork
from dreamshard.costs import PHASES, CostSample
from dreamshard.features import Normaliser
from dreamshard.shard_data import MeasuredShard, samples_of
from dreamshard.tables import Tables, concatenate
from dreamshard.tasks import PlacementTask, sample_tasks
from dreamshard.testbeds.roofline import exchange_s
from dreamshard.testbeds.specs import AcceleratorSpec
from dreamshard.train_cost import CostData, fit
from dreamshard.training import TrainingConfig, TrainingState, improve_policy, untrained

HOLD_OUT_EVERY = 5
BUCKETS = ((1, 1), (2, 4), (5, 9), (10, 19), (20, 39), (40, 1_000_000))
_PAPER_LEARNING_RATE = 3e-3
_LATENT_DIMS = -3  # of the structured network's latents: hundreds of dims


@dataclass(frozen=True, kw_only=True)
class ShardTraining:
    """How to learn from shards.

    Attributes:
        stages: of the cost network's training; the learning rate falls from one to the next.
        steps: of each stage.
        batch: shards per step.
        learning_rate: at the start.
        policy_rounds: of policy updates.
        tables_per_task: of the tasks that the policy learns on.
        num_devices: of these tasks.
        seed: of everything that is drawn.
    """

    stages: int = 10
    steps: int = 300
    batch: int = 64
    learning_rate: float = 4e-2
    policy_rounds: int = 10
    tables_per_task: int = 50
    num_devices: int = 8
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class HeldOutError:
    """Mean relative error of a shard's compute time, on shards that were not fitted.

    Attributes:
        tables: number of tables, as a range.
        num_shards: of them.
        mape: of the cost network that is used.
        paper_mape: of DreamShard's own, fitted to the same shards for as many steps.
    """

    tables: str
    num_shards: int
    mape: float
    paper_mape: float


@dataclass(frozen=True)
class LearntFromShards:
    """A placer's state, and what it was learnt from.

    Attributes:
        state: trained; `training.make_placer` turns it into a placer.
        errors: by number of tables; the last is of all held-out shards.
        measurements: hardware, versions, dates, batch, precision and so on, for people and for JSON.
    """

    state: TrainingState
    errors: tuple[HeldOutError, ...]
    measurements: dict[str, object]


class ShardData(CostData):
    """Shards to be fitted: of thousands of tables a batch holds few, and only those are encoded."""

    def sums(self, network: CostNetwork, chosen: Int[Tensor, " B"] | None = None) -> Float[Tensor, "B D L"]:
        """See `CostData.sums`."""
        assignment = self.assignment if chosen is None else self.assignment[chosen]  # [B, 1, P]
        used = assignment.sum(dim=(0, 1)).nonzero().flatten()
        return assignment[..., used] @ network.encode(self.features[used])


def split_shards(samples: Sequence[CostSample]) -> tuple[list[CostSample], list[CostSample]]:
    """Samples to fit and samples held out: every fifth, as they stand in the design."""
    fitted = [sample for i, sample in enumerate(samples) if i % HOLD_OUT_EVERY]
    return fitted, [sample for i, sample in enumerate(samples) if not i % HOLD_OUT_EVERY]


def learn_from_shards(
    shards: Sequence[MeasuredShard], accelerator: AcceleratorSpec, config: ShardTraining
) -> LearntFromShards:
    """Cost network and policy from measured shards; errors are of a fit without every fifth, the state is of that fit.

    Args:
        shards: of one device, batch, precision and optimizer.
        accelerator: whose links and memory the devices have.
        config: how long and with which seed.

    Raises:
        ValueError: too few shards fit their device, or they were measured in different ways.
        TrainingDivergedError: the loss is not finite.
    """
    measurements = describe(shards)
    samples = samples_of(shards)
    if len(samples) < 2 * HOLD_OUT_EVERY:
        raise ValueError(
            f"{len(samples)} measured shards are too few to learn from and to hold some out; collect at least "
            f"{2 * HOLD_OUT_EVERY}, better 3,000 (`python -m dreamshard.collect`)"
        )
    fitted, held_out = split_shards(samples)
    state = untrained(Normaliser.fit(distinct_tables(fitted)), TrainingConfig(), config.seed)
    if not isinstance(state.cost_network, StructuredCostNetwork):
        raise ValueError("costs of shards are learnt by the structured cost network; make it the default again")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        rival = PaperCostNetwork()
    fit_network(state.cost_network, fitted, state.normaliser, config, config.learning_rate)
    fit_network(rival, fitted, state.normaliser, config, _PAPER_LEARNING_RATE)
    errors = errors_by_tables(state.cost_network, rival, held_out, state.normaliser)
    fit_links(state.cost_network, accelerator, samples[0].batch_size)
    tasks = _policy_tasks(distinct_tables(fitted, one_dim_each=True), fitted[0].task, accelerator, config)
    for _ in range(config.policy_rounds):
        improve_policy(state, tasks)
    return LearntFromShards(state, errors, measurements | {"heldout_error": [asdict(error) for error in errors]})


def fit_network(
    network: CostNetwork,
    samples: Sequence[CostSample],
    normaliser: Normaliser,
    config: ShardTraining,
    learning_rate: float,
) -> None:
    """Fit a network to shards in place.

    Raises:
        TrainingDivergedError: the loss is not finite.
    """
    data = ShardData.of(samples, normaliser)
    if isinstance(network, StructuredCostNetwork):
        network.calibrate(data.sums(network), data.phases_ms)
    optimizer = torch.optim.Adam(network.parameters(), lr=learning_rate)
    generator = torch.Generator().manual_seed(config.seed)
    for stage in range(config.stages):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * max(1 - stage / config.stages, 0.05)
        fit(network, optimizer, data, steps=config.steps, batch=config.batch, generator=generator)


@torch.no_grad()
def errors_by_tables(
    network: CostNetwork, rival: CostNetwork, samples: Sequence[CostSample], normaliser: Normaliser
) -> tuple[HeldOutError, ...]:
    """Errors of two networks by number of tables, and over all."""
    data = ShardData.of(samples, normaliser)
    measured = data.phases_ms.sum(dim=-1)[:, 0]  # [S]
    own, other = (
        (net.phases_ms(data.sums(net)).sum(dim=-1)[:, 0] / measured - 1).abs() for net in (network, rival)
    )  # [S]
    counts = torch.tensor([len(sample.task.tables) for sample in samples])
    found = []
    for low, high in (*BUCKETS, (1, BUCKETS[-1][1])):
        inside = (counts >= low) & (counts <= high)
        if bool(inside.any()):
            name = "all" if (low, high) == (1, BUCKETS[-1][1]) else _range(low, high, int(counts.max()))
            errors = [float(error[inside].mean()) for error in (own, other)]
            found.append(HeldOutError(tables=name, num_shards=int(inside.sum()), mape=errors[0], paper_mape=errors[1]))
    return tuple(found)


def fit_links(network: StructuredCostNetwork, accelerator: AcceleratorSpec, batch_size: int) -> None:
    """Set the network's communication from link figures, as if placements on one node had been measured."""
    num_devices = max(2, accelerator.devices_per_node)
    generator = torch.Generator().manual_seed(0)
    dims = 2000 * torch.rand(64, num_devices, generator=generator, dtype=torch.float64)  # [S, D]
    sums = torch.zeros(64, num_devices, network.latent_size)
    sums[..., _LATENT_DIMS] = (dims / 100).float()
    phases_ms = torch.zeros(64, num_devices, len(PHASES))
    comm_ms = (1e3 * exchange_s(dims, batch_size, accelerator)).float()
    for phase in (PHASES.index("forward_comm"), PHASES.index("backward_comm")):
        phases_ms[..., phase] = comm_ms
    network.fit_comm(sums, phases_ms)


def distinct_tables(samples: Sequence[CostSample], *, one_dim_each: bool = False) -> Tables:
    """Every table of the samples once; with `one_dim_each` also no table in several dims."""
    seen: set[str] = set()
    parts = []
    for sample in samples:
        keys = [name.partition("@")[0] if one_dim_each else name for name in sample.task.tables.names]
        fresh = [t for t, key in enumerate(keys) if key not in seen]
        seen.update(keys)
        if fresh:
            parts.append(sample.task.tables.select(fresh))
    return concatenate(parts)


def describe(shards: Sequence[MeasuredShard]) -> dict[str, object]:
    """What was measured: hardware, versions, dates, batch, precision, optimizer, number of shards.

    Raises:
        ValueError: the shards were not all measured in one way.
    """
    ways = {(shard.hardware, shard.batch_size, shard.precision, shard.optimizer) for shard in shards}
    if len(ways) != 1:
        raise ValueError(
            f"shards measured in {len(ways)} ways ({sorted(map(str, ways))[:3]}) cannot be learnt from together; give "
            "those of one device, batch size, precision and optimizer"
        )
    dates = sorted(shard.measured_at.date().isoformat() for shard in shards)
    return {
        "hardware": shards[0].hardware,
        "versions": shards[0].versions,
        "measured": [dates[0], dates[-1]],
        "batch_size": shards[0].batch_size,
        "precision": shards[0].precision,
        "optimizer": shards[0].optimizer,
        "shards": len(shards),
        "infeasible": sum(shard.forward_ms is None for shard in shards),
    }


def _policy_tasks(
    pool: Tables, like: PlacementTask, accelerator: AcceleratorSpec, config: ShardTraining
) -> list[PlacementTask]:
    return sample_tasks(
        pool,
        20,
        min(config.tables_per_task, len(pool)),
        config.num_devices,
        max(accelerator.memory_bytes, int(pool.memory_bytes(like.precision, like.optimizer).sum())),
        torch.Generator().manual_seed(config.seed),
        precision=like.precision,
        optimizer=like.optimizer,
    )


def _range(low: int, high: int, most: int) -> str:
    return str(low) if low == high else f"{low}-{min(high, max(most, low))}"
