"""A placer for one model from few profiles of its job, with a preset of the hardware as prior.

The prior is what the preset says of placements of the same tables, scaled by phase to what was observed: the preset knows how
costs change with a table's figures, the profiles how much there is of them here. All its placements together count as
`PRIOR_DEVICES` observed devices, so the more is observed, the less it matters.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace

import numpy as np
import torch
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
from dreamshard.tasks import PlacementTask

PRIOR_DEVICES = 8.0
"""Observed devices that the prior counts as."""

_PRIOR_PLACEMENTS = 40
_REFITS = 8
_CALIBRATED, _LEAST_ERROR = 1.645, 0.005
_MOVED = (0.1, 0.3, 1.0)  # shares of the tables that a placement of the prior puts elsewhere


@dataclass(frozen=True)
class Interval:
    """A predicted saving, as a share of the cost in use, with 90 % of what it may really be."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{100 * self.mean:+.1f} % ({100 * self.low:+.1f} to {100 * self.high:+.1f})"


@dataclass(frozen=True)
class Learned:
    """What a few samples taught.

    Attributes:
        placer: by the network fitted to all of them; its policy is untrained.
        refits: networks fitted to the same samples and prior, weighted at random.
    """

    placer: DreamShardPlacer
    refits: tuple[StructuredCostNetwork, ...]

    def saving(self, task: PlacementTask, current: Placement, planned: Placement) -> Interval:
        """What `planned` saves over `current`.

        The refits tell both how far few samples leave it open, and how much a search among placements chose the network's
        own errors, since it did not search on them.
        """
        logs = []
        for network in self.refits:
            placer = replace(self.placer, cost_network=network)
            costs_ms = [placer.predict(task, each).overall_ms() for each in (current, planned)]
            logs.append(float(torch.log(costs_ms[0] / costs_ms[1])))
        mean, error = float(np.mean(logs)), float(np.std(logs, ddof=1))
        reach = _CALIBRATED * max(error, _LEAST_ERROR)
        return Interval(*(1 - float(np.exp(-each)) for each in (mean, mean - reach, mean + reach)))


def learn(
    samples: Sequence[CostSample], spec: AcceleratorSpec, seed: int = 0, prior_devices: float = PRIOR_DEVICES
) -> Learned:
    """Fit a cost network to samples of one job and to a preset.

    Args:
        samples: of profiles, on as many devices each, the newest last.
        spec: the preset of the job's hardware.
        seed: of the prior's placements and of the refits.
        prior_devices: observed devices that the prior counts as.
    """
    generator, normaliser = np.random.default_rng(seed), Normaliser.fit(samples[-1].task.tables)
    prior, network = prior_samples(samples, spec, generator), StructuredCostNetwork(normaliser)
    weight = torch.ones(len(prior) + len(samples), samples[-1].task.num_devices)
    weight[: len(prior)] = prior_devices / weight[: len(prior)].numel()
    data = CostData.of([*prior, *samples], normaliser, weight)
    network.fit(data, None)
    network.measured_on = data.measured_on
    refits = []
    for _ in range(_REFITS):
        drawn, refit = torch.from_numpy(generator.exponential(size=weight.shape)), deepcopy(network)
        refit.fit(replace(data, weight=weight * drawn.float()), None)
        refits.append(refit)
    return Learned(DreamShardPlacer(network, PolicyNetwork(), normaliser), tuple(refits))


def prior_samples(samples: Sequence[CostSample], spec: AcceleratorSpec, generator: Generator) -> list[CostSample]:
    """What the preset says of placements like those of `samples`, in proportion to these by phase."""
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
