"""A placer for one model from few profiles of its job, with a preset of the hardware as prior.

The prior is what the preset says of placements of the same tables, scaled by phase to what was observed: the preset knows how
costs change with a table's figures, the profiles how much there is of them here. All its placements together count as
`PRIOR_DEVICES` observed devices, so the more is observed, the less it matters.
"""

from collections.abc import Iterator, Mapping, Sequence
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
from dreamshard.placement import Placement
from dreamshard.policy.mdp import PolicyNetwork
from dreamshard.search import DreamShardPlacer
from dreamshard.shards import Shards, violation
from dreamshard.tasks import PlacementTask

PRIOR_DEVICES = 40.0
"""Devices that the prior counts as."""
PRESET_ERROR = 0.15
"""Relative standard error of what a preset says of a device, next to which observed devices count more."""

_PRIOR_PLACEMENTS, _ITERATIONS = 24, 40  # the latter of a refit, which starts from the fit
_HELD_OUT = 3  # profiles or devices that are left out in turn
_CALIBRATED = 4.5  # deviations of the refits in an interval, so that it holds 90 % of the savings on a real GPU's law
_LEAST_ERROR = 0.005  # of a saving
_UNEVEN, _TRIES = 0.7, 20  # deviation of the logarithm of a device's share of the tables moved; draws until one fits
_ERROR = 0.3  # deviation of the logarithms of a preset's errors, by which refits differ: of a table, of all constants
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
    samples: Sequence[CostSample],
    spec: AcceleratorSpec,
    seed: int = 0,
    prior_devices: float = PRIOR_DEVICES,
    refits: int = 8,
) -> Learned:
    """Fit a cost network to samples of one job and to a preset.

    Args:
        samples: of profiles, on as many devices each, the newest last.
        spec: the preset of the job's hardware.
        seed: of all draws.
        prior_devices: devices that the prior counts as.
        refits: for `Learned.saving`, which needs at least 2.
    """
    generator, normaliser = np.random.default_rng(seed), Normaliser.fit(samples[-1].task.tables)
    network = StructuredCostNetwork(normaliser)
    prior = [_varied(samples[number % len(samples)], number, generator) for number in range(_PRIOR_PLACEMENTS)]
    prior = prior_samples(prior, samples, spec)
    data, is_prior = CostData.of([*prior, *samples], normaliser), slice(len(prior))
    data.weight[is_prior] = prior_devices / data.weight[is_prior].numel()
    data.error[is_prior] = PRESET_ERROR
    network.fit(data, None)
    network.measured_on = data.measured_on
    others, names = [], {name for sample in samples for name in sample.task.tables.names}
    for _ in range(refits):
        errors = {name: float(np.exp(_ERROR * generator.normal())) for name in sorted(names)}
        power = float(np.exp(_ERROR * generator.normal()))
        costs = [each.costs.phases_ms for each in prior_samples(prior, samples, spec, errors, power)]
        drawn, refit = torch.from_numpy(generator.exponential(size=data.weight.shape)).float(), deepcopy(network)
        phases_ms = torch.cat([torch.stack(costs), data.phases_ms[len(prior) :]])
        refit.fit(replace(data, phases_ms=phases_ms, weight=data.weight * drawn), None, iterations=_ITERATIONS)
        others.append(refit)
    return Learned(DreamShardPlacer(network, PolicyNetwork(), normaliser), tuple(others))


def heldout_error(samples: Sequence[CostSample], spec: AcceleratorSpec) -> float:
    """Mean error of costs of devices that were not fitted to, over that of the slowest; NaN if there is one device.

    The newest profiles are left out in turn, or of a sole one some devices.
    """
    errors = []
    for kept, held in _divided(samples):
        predicted = learn(kept, spec, refits=0).placer.predict(held.task, held.placement)
        error_ms = (predicted.device_ms() - held.costs.device_ms()).abs()[held.costs.seen]
        errors += (error_ms / max(sample.overall_ms for sample in (*kept, held))).tolist()
    return float(np.mean(errors)) if errors else float("nan")


def _divided(samples: Sequence[CostSample]) -> Iterator[tuple[list[CostSample], CostSample]]:
    """Samples to fit, and one to predict."""
    if len(samples) > 1:
        for number in range(len(samples))[-_HELD_OUT:]:
            yield [*samples[:number], *samples[number + 1 :]], samples[number]
        return
    (sample,) = samples
    seen = sample.costs.seen  # [D]
    for device in seen.nonzero().flatten()[:_HELD_OUT].tolist() if seen.sum() > 1 else ():
        is_held = torch.arange(len(seen))[:, None] == device
        kept, held = (torch.where(each, torch.nan, sample.costs.phases_ms) for each in (is_held, ~is_held))
        yield [replace(sample, costs=DeviceCosts(kept))], replace(sample, costs=DeviceCosts(held))


def prior_samples(
    placed: Sequence[CostSample],
    observed: Sequence[CostSample],
    spec: AcceleratorSpec,
    errors: Mapping[str, float] | None = None,
    power: float = 1.0,
) -> list[CostSample]:
    """What the preset says of placements, in proportion to what it says of the observed ones, by phase.

    Args:
        placed: samples of the placements, whose costs do not matter.
        observed: on as many devices.
        spec: the preset.
        errors: factors by which it misjudges lookups of a table, by its name; None for 1.
        power: of costs around the mean device: below 1 if more is constant per device than it says.
    """

    def preset_ms(sample: CostSample) -> Float[Tensor, "D 4"]:
        task = sample.task
        if errors is not None:
            tables, factor = task.tables, torch.tensor([errors[name] for name in task.tables.names])
            counts = {name: (getattr(tables, name) * factor).long() for name in ("lookups", "unique_rows")}
            task = replace(task, tables=replace(tables, pooling_factor=tables.pooling_factor * factor, **counts))
        return sharding_costs(Shards.of(task, sample.placement), sample.batch_size, spec).phases_ms.float()

    traced = torch.cat([sample.costs.phases_ms[sample.costs.seen] for sample in observed])  # [N, 4]
    stated = torch.cat([preset_ms(sample)[sample.costs.seen] for sample in observed])  # [N, 4]
    mean = stated.mean(0).clamp(min=1e-9)  # [4]
    scale = traced.mean(0) / (stated / mean).pow(power).mean(0).clamp(min=1e-9)
    return [replace(each, costs=DeviceCosts((preset_ms(each) / mean).pow(power) * scale)) for each in placed]


def _varied(sample: CostSample, number: int, generator: Generator) -> CostSample:
    """The sample with tables elsewhere, devices more or less full; of those placements that fit, if any does."""
    task, placement = sample.task, sample.placement
    favour = np.exp(generator.normal(0, _UNEVEN, task.num_devices))
    for _ in range(_TRIES):
        shardings = list(placement.tables)
        for t in np.flatnonzero(generator.random(len(shardings)) < _MOVED[number % len(_MOVED)]):
            own = shardings[t]
            if own.is_by_columns:
                where = generator.choice(task.num_devices, len(own.where), p=favour / favour.sum())
                shardings[t] = replace(own, where=tuple(where.tolist()))
        varied = replace(placement, tables=tuple(shardings))
        if not violation(task, varied):
            return replace(sample, placement=varied)
    return sample
