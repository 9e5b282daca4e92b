"""A placer for one model from few profiles of its job, with a preset of the hardware as prior.

The prior is what the preset says of placements of the same tables, scaled by phase to what was observed: the preset knows how
costs change with a table's figures, the profiles how much there is of them here. All its placements together count as
`PRIOR_DEVICES` observed devices, so the more is observed, the less it matters.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Float
from numpy.random import Generator
from torch import Tensor

from dreamshard.cost_model import CostData, Normaliser, StructuredCostNetwork
from dreamshard.costs import CostSample, DeviceCosts
from dreamshard.hardware.accelerator import AcceleratorSpec
from dreamshard.hardware.roofline import sharding_costs
from dreamshard.placement import Placement, TableSharding
from dreamshard.policy.mdp import PolicyNetwork
from dreamshard.search import DreamShardPlacer
from dreamshard.shards import Shards, violation
from dreamshard.tables import concatenate
from dreamshard.tasks import PlacementTask

PRIOR_DEVICES = 8.0
"""Observed devices that the prior counts as."""

_PRIOR_PLACEMENTS = 40
_MOVED = (0.1, 0.3, 1.0)  # shares of the tables that a placement of the prior puts elsewhere


def learn_placer(
    samples: Sequence[CostSample], spec: AcceleratorSpec, seed: int = 0, prior_devices: float = PRIOR_DEVICES
) -> DreamShardPlacer:
    """A placer whose cost network is fitted to samples of one job, and to the preset; its policy is untrained.

    Args:
        samples: of profiles, on as many devices each, the newest last.
        spec: the preset of the job's hardware.
        seed: of the prior's placements.
        prior_devices: observed devices that the prior counts as.
    """
    normaliser = Normaliser.fit(concatenate([samples[-1].task.tables]))
    prior = prior_samples(samples, spec, seed)
    weight = [prior_devices / sum(sample.task.num_devices for sample in prior)] * len(prior) + [1.0] * len(samples)
    data = CostData.of([*prior, *samples], normaliser, weight)
    network = StructuredCostNetwork(normaliser)
    network.fit(data, None)
    network.measured_on = data.measured_on
    return DreamShardPlacer(network, PolicyNetwork(), normaliser)


def prior_samples(samples: Sequence[CostSample], spec: AcceleratorSpec, seed: int) -> list[CostSample]:
    """What the preset says of placements like those of `samples`, in proportion to these by phase."""
    generator = np.random.default_rng(seed)
    seen = [~sample.costs.phases_ms.isnan().any(-1) for sample in samples]
    observed = sum(sample.costs.phases_ms[own].sum(0) for sample, own in zip(samples, seen, strict=True))
    stated = sum(_preset_ms(sample, spec)[own].sum(0) for sample, own in zip(samples, seen, strict=True))
    scale = observed / stated.clamp(min=1e-9)  # [4]
    found = []
    for number in range(_PRIOR_PLACEMENTS):
        base = samples[number % len(samples)]
        placement = _varied(base.task, base.placement, _MOVED[number % len(_MOVED)], generator)
        sample = replace(base, placement=placement)
        found.append(replace(sample, costs=DeviceCosts(_preset_ms(sample, spec) * scale)))
    return found


def _preset_ms(sample: CostSample, spec: AcceleratorSpec) -> Float[Tensor, "D 4"]:
    shards = Shards.of(sample.task, sample.placement)
    return sharding_costs(shards, sample.batch_size, spec).phases_ms.float()


def _varied(task: PlacementTask, placement: Placement, share: float, generator: Generator) -> Placement:
    """The placement with a share of its tables elsewhere, devices more or less full; of those that fit, if any does."""
    favour = np.exp(generator.normal(0, 0.7, task.num_devices))
    for _ in range(20):
        shardings = list(placement.tables)
        for t in np.flatnonzero(generator.random(len(shardings)) < share):
            own = shardings[t]
            if own.is_by_columns:
                where = generator.choice(task.num_devices, len(own.where), p=favour / favour.sum())
                shardings[t] = TableSharding(own.sharding_type, own.columns, tuple(where.tolist()), own.cached_share)
        varied = Placement(tuple(shardings), placement.num_devices, placement.devices_per_host)
        if not violation(task, varied):
            return varied
    return placement
