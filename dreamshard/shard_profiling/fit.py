"""Learn a placer from costs of shards measured on one device.

The cost network learns compute from the shards, and communication from measured all-to-alls or the device's published link
figures; the policy learns on the cost network, as always. The errors on held-out shards are part of the result.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from dreamshard.cost_model import CostData, CostNetwork, Normaliser, fit, new_cost_network
from dreamshard.costs import CostSample
from dreamshard.exchange_design import designed_exchanges, device_counts
from dreamshard.exchange_sample import ExchangeSample
from dreamshard.measured_on import MeasuredOn
from dreamshard.shard_profiling.dataset import MeasuredShard, distinct_tables, measurement_conditions, samples_of
from dreamshard.shard_profiling.errors import HeldOutError, best_factor, errors_by_tables, measured_ms, torchrec_ms
from dreamshard.task_sampling import sample_tasks
from dreamshard.testbeds.accelerators.specs import AcceleratorSpec
from dreamshard.testbeds.base import TestbedSetup
from dreamshard.testbeds.simulated import SimulatedTestbed
from dreamshard.training import TrainingConfig, TrainingState, improve_policy, untrained
from dreamshard.workloads import LookupFiles

HOLD_OUT_EVERY = 5
_PAPER_LEARNING_RATE = 3e-3
_LINK_DEVICES, _LINK_BYTES = 128, 2**31  # of the largest all-to-all by published links
_SCALED_ON = 500  # shards used to fit TorchRec's factor; any first shards of the design are spread evenly


@dataclass(frozen=True, kw_only=True)
class ShardTraining:
    """How to learn from shards.

    Attributes:
        stages: stages of the cost network's training; the learning rate falls from one to the next.
        steps: optimizer steps per stage, each on `batch` shards.
        policy_rounds: rounds of policy updates, on tasks of `tables_per_task` tables and `num_devices` devices.
    """

    stages: int = 10
    steps: int = 300
    batch: int = 64
    learning_rate: float = 4e-2
    policy_rounds: int = 10
    tables_per_task: int = 50
    num_devices: int = 8
    seed: int = 0


@dataclass(frozen=True)
class FittedPlacer:
    """A trained placer with its errors and the measurements behind it.

    Attributes:
        state: `training.make_placer` turns it into a placer.
        errors: by number of tables; the last is of all held-out shards.
        measurements: see `measurement_conditions`; with the errors.
    """

    state: TrainingState
    errors: tuple[HeldOutError, ...]
    measurements: dict[str, object]


def split_shards(samples: Sequence[CostSample]) -> tuple[list[CostSample], list[CostSample]]:
    """Samples to fit, and every fifth sample held out."""
    return [sample for i, sample in enumerate(samples) if i % HOLD_OUT_EVERY], list(samples[::HOLD_OUT_EVERY])


def learn_from_shards(
    shards: Sequence[MeasuredShard],
    accelerator: AcceleratorSpec,
    config: ShardTraining,
    exchanges: Sequence[ExchangeSample] = (),
) -> FittedPlacer:
    """Learn cost network and policy from four fifths of the shards; the errors are those on the other fifth.

    Args:
        shards: of one device, batch, precision and optimizer.
        accelerator: gives the devices' memory, and those of their links that `exchanges` do not tell.
        exchanges: all-to-alls measured on the hardware, within a host or also across hosts.

    Raises:
        ValueError: too few shards fit their device, or they were measured under different conditions.
        TrainingDivergedError: the loss is not finite.
    """
    measurements = measurement_conditions(shards)
    samples = samples_of(shards)
    if len(samples) < 2 * HOLD_OUT_EVERY:
        raise ValueError(
            f"{len(samples)} measured shards are too few to fit some and hold out others; collect at least "
            f"{2 * HOLD_OUT_EVERY}, better 3,000 (`python -m dreamshard.shard_profiling.collect`)"
        )
    fitted, held_out = split_shards(samples)
    state = untrained(Normaliser.fit(distinct_tables(fitted)), TrainingConfig(), config.seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        paper_network = new_cost_network("paper", state.normaliser)
    fit_network(state.cost_network, fitted, state.normaliser, config, config.learning_rate)
    fit_network(paper_network, fitted, state.normaliser, config, _PAPER_LEARNING_RATE)
    predicted = {
        "mape": predicted_ms(state.cost_network, held_out, state.normaliser),
        "paper_mape": predicted_ms(paper_network, held_out, state.normaliser),
        **_torchrec(fitted, held_out, accelerator),
    }
    errors = errors_by_tables(predicted, held_out)
    state.cost_network.learn_exchanges([*exchanges, *link_exchanges(accelerator, exchanges)])
    pool, like = distinct_tables(fitted, one_dim_each=True), fitted[0].task
    tasks = sample_tasks(
        pool,
        20,
        min(config.tables_per_task, len(pool)),
        config.num_devices,
        max(accelerator.memory_bytes, int(pool.memory_bytes(like.precision, like.optimizer).sum())),
        torch.Generator().manual_seed(config.seed),
        precision=like.precision,
        optimizer=like.optimizer,
    )
    for _ in range(config.policy_rounds):
        improve_policy(state, tasks)
    return FittedPlacer(state, errors, measurements | {"heldout_error": [asdict(error) for error in errors]})


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
    network.measured_on = MeasuredOn.of(samples[-1])
    data = CostData.of(samples, normaliser)
    network.prepare(data, first=True)
    optimizer = torch.optim.Adam(network.parameters(), lr=learning_rate)
    generator = torch.Generator().manual_seed(config.seed)
    for stage in range(config.stages):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * max(1 - stage / config.stages, 0.05)
        fit(network, optimizer, data, steps=config.steps, batch=config.batch, generator=generator)


@torch.no_grad()
def predicted_ms(network: CostNetwork, samples: Sequence[CostSample], normaliser: Normaliser) -> Float[Tensor, " S"]:
    """Predicted compute time of each shard."""
    data = CostData.of(samples, normaliser)
    return network.phases_ms(data.sums(network.encode)).sum(dim=-1)[:, 0]


def link_exchanges(accelerator: AcceleratorSpec, measured: Sequence[ExchangeSample] = ()) -> list[ExchangeSample]:
    """All-to-alls by the accelerator's published links, of up to `_LINK_DEVICES` devices.

    With measured ones, only those across hosts, and none where that was measured too.
    """
    setup = TestbedSetup(num_devices=_LINK_DEVICES, batch_size=1, lookups=LookupFiles({}))
    testbed = SimulatedTestbed(setup, accelerator, noise=0.0)
    if any(_crosses_hosts(sample) for sample in measured):
        return []
    designed = designed_exchanges(device_counts(_LINK_DEVICES), None, _LINK_BYTES)
    samples = [testbed.measure_exchange(exchange) for exchange in designed]
    return [sample for sample in samples if not measured or _crosses_hosts(sample)]


def _crosses_hosts(sample: ExchangeSample) -> bool:
    per_host = sample.exchange.devices_per_host or sample.host_devices
    return per_host is not None and per_host < sample.exchange.num_devices


def _torchrec(
    fitted: Sequence[CostSample], held_out: Sequence[CostSample], accelerator: AcceleratorSpec
) -> dict[str, Float[Tensor, " S"]]:
    """TorchRec's estimates of the held-out shards, raw and scaled; empty if torchrec is not installed."""
    fitted = fitted[:_SCALED_ON]
    estimated_fitted, estimated = (torchrec_ms(part, accelerator.memory_bytes_per_s) for part in (fitted, held_out))
    if estimated_fitted is None or estimated is None:
        return {}
    factor = best_factor(estimated_fitted, measured_ms(fitted))
    return {"torchrec_mape": estimated, "torchrec_scaled_mape": estimated * factor}
