"""The fit of NeuroShard's cost models to measured placements; `neuroshard_models.py` says what differs from the paper."""

import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from dreamshard.cost_model import FEATURES, CostData, Normaliser, TrainingDivergedError
from dreamshard.costs import PHASES, CostSample, feasible
from dreamshard.peers.neuroshard_models import (
    SEEN,
    CommunicationCosts,
    CommunicationModel,
    ComputeModel,
    NeuroShardModels,
    starts_ms,
)
from dreamshard.peers.settings import require_positive

_DIM = FEATURES.index("dim")
_COMPUTE = [PHASES.index("forward_compute"), PHASES.index("backward_compute")]
_FORWARD, _BACKWARD = PHASES.index("forward_comm"), PHASES.index("backward_comm")
_CHECK_EVERY = 20  # steps between two looks at the held-out tenth
_RAW = Normaliser(torch.zeros(len(FEATURES)), torch.ones(len(FEATURES)))


@dataclass(frozen=True, kw_only=True)
class NeuroShardTraining:
    """How each of the three models is fitted.

    Attributes:
        steps: of the optimizer.
        batch: shards, or all-to-alls, per step.
        learning_rate: of Adam, constant.
    """

    steps: int = 1000
    batch: int = 512
    learning_rate: float = 1e-3

    def __post_init__(self) -> None:
        require_positive(self)


def fitted_models(
    samples: Sequence[CostSample], seed: int, training: NeuroShardTraining | None = None
) -> NeuroShardModels:
    """The three models, fitted to measured placements on one number of devices.

    Raises:
        ValueError: there are too few samples to hold a tenth out, or they differ in their devices.
        TrainingDivergedError: a loss is not finite.
    """
    settings, usable = training or NeuroShardTraining(), feasible(samples)
    if len(usable) < 2:
        raise ValueError(
            f"neuroshard's cost models are fitted to measured placements and there are {len(usable)}, so there is nothing to "
            "place by; measure some, for example by training, or use neuroshard_predicted"
        )
    data = CostData.of(usable, _RAW)
    layouts = list(data.by_layout())
    if len(layouts) > 1:
        raise ValueError(
            "neuroshard's communication models have an input per device, but the samples are of the layouts (devices, "
            f"devices per host) {sorted(layouts, key=str)}; pass the samples of one"
        )
    [(num_devices, per_host)] = layouts
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        compute, forward, backward = ComputeModel(), *(CommunicationModel(num_devices, size) for size in (2, 1))
    raw = data.features[:, SEEN]
    mean, std = raw.mean(dim=0), raw.std(dim=0, correction=0)
    std = torch.where(std < 1e-6 * (1 + mean.abs()), 1.0, std)
    phases_ms, assignment = data.phases_ms, data.assignment
    compute_ms = phases_ms[..., _COMPUTE].sum(-1)  # [S, D]
    seen = (raw - mean) / std
    mean_compute_ms = _fit_compute(compute, seen, assignment.flatten(0, 1), compute_ms.flatten(), settings, generator)
    dims = assignment @ data.features[:, _DIM]  # [S, D]
    starts = starts_ms(compute_ms + phases_ms[..., _BACKWARD])
    hosts = per_host or num_devices
    return NeuroShardModels(
        compute,
        _fit_comm(forward, torch.stack([dims, starts], 1), phases_ms[..., _FORWARD], hosts, settings, generator),
        _fit_comm(backward, dims[:, None], phases_ms[..., _BACKWARD], hosts, settings, generator),
        mean,
        std,
        mean_compute_ms,
        num_devices,
        len(usable),
        bool(data.features[:, _DIM].unique().numel() > 1),
    )


def _fit_compute(
    model: ComputeModel,
    seen: Float[Tensor, "P 20"],
    assignment: Float[Tensor, "N P"],
    cost_ms: Float[Tensor, " N"],
    settings: NeuroShardTraining,
    generator: torch.Generator,
) -> float:
    """Fit to `N` shards of `P` tables; returns the unit of its costs."""
    unit = _unit(cost_ms)

    def error(chosen: Int[Tensor, " B"]) -> Float[Tensor, ""]:
        predicted = model.shard(assignment[chosen] @ model.table(seen))[:, 0]
        return _squared(predicted, cost_ms[chosen] / unit)

    _optimise(model, error, error, len(cost_ms), settings, generator)
    return unit


def _fit_comm(
    model: CommunicationModel,
    figures: Float[Tensor, "S G D"],
    cost_ms: Float[Tensor, "S D"],
    per_host: int,
    settings: NeuroShardTraining,
    generator: torch.Generator,
) -> CommunicationCosts:
    """Fit to `S` all-to-alls of `D` devices, `per_host` of them on a host."""
    mean, std = figures.mean(dim=(0, 2))[:, None], figures.std(dim=(0, 2), correction=0)[:, None].clamp(min=1e-6)
    unit, given = _unit(cost_ms), (figures - mean) / std

    def error(chosen: Int[Tensor, " B"]) -> Float[Tensor, ""]:
        return _squared(model(given[chosen]), cost_ms[chosen] / unit)

    def permuted_error(chosen: Int[Tensor, " B"]) -> Float[Tensor, ""]:
        device = _permuted(figures.shape[2], per_host, generator)
        return _squared(model(given[chosen][..., device]), cost_ms[chosen][:, device] / unit)

    _optimise(model, permuted_error, error, len(cost_ms), settings, generator)
    return CommunicationCosts(model, mean, std, unit)


def _permuted(num_devices: int, per_host: int, generator: torch.Generator) -> Int[Tensor, " D"]:
    """The devices in another order, in which those of a host stay together; hosts of unequal size keep their places."""
    hosts = torch.arange(num_devices).split(per_host)
    among = (
        torch.randperm(len(hosts), generator=generator).tolist() if num_devices % per_host == 0 else range(len(hosts))
    )
    return torch.cat([hosts[i][torch.randperm(len(hosts[i]), generator=generator)] for i in among])


def _squared(predicted: Float[Tensor, "*B"], measured: Float[Tensor, "*B"]) -> Float[Tensor, ""]:
    return (predicted - measured).square().mean()


def _unit(cost_ms: Float[Tensor, "*B"]) -> float:
    """The mean cost, or 1 where nothing costs anything."""
    mean = float(cost_ms.mean())
    return mean if mean > 0 else 1.0


def _optimise(
    model: nn.Module,
    error: Callable[[Tensor], Tensor],
    held_out_error: Callable[[Tensor], Tensor],
    count: int,
    settings: NeuroShardTraining,
    generator: torch.Generator,
) -> None:
    """Minimise the error on nine tenths of the samples; `model` ends with the weights that err least on the others."""
    order = torch.randperm(count, generator=generator)
    held_out, fitted = order[: max(1, count // 10)], order[max(1, count // 10) :]
    optimizer = torch.optim.Adam(model.parameters(), lr=settings.learning_rate, fused=True)
    best, best_error = deepcopy(model.state_dict()), math.inf
    for step in range(settings.steps):
        drawn = torch.randperm(len(fitted), generator=generator)[: settings.batch]
        loss = error(fitted[drawn])
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        optimizer.step()
        if step % _CHECK_EVERY == _CHECK_EVERY - 1 or step == settings.steps - 1:
            with torch.no_grad():
                now = float(held_out_error(held_out))
            if now < best_error:
                best, best_error = deepcopy(model.state_dict()), now
    if not math.isfinite(best_error):
        raise TrainingDivergedError(
            f"the error of neuroshard's cost models is not finite after {settings.steps} steps, so their predictions are "
            "worthless; look for extreme cost samples, or lower the learning rate"
        )
    model.load_state_dict(best)
