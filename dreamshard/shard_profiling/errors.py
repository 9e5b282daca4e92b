"""Errors of predicted compute times on held-out shards, for the cost network in use and for other estimators.

The others are DreamShard's own network, fitted to the same shards, and TorchRec's estimator, which is not fitted. The
estimator's second error allows one fitted factor, so that its constants do not decide.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from dreamshard.costs import CostSample
from dreamshard.prediction_metrics import mean_relative_error
from dreamshard.shard_profiling.dataset import distinct_tables

BUCKETS = ((1, 1), (2, 4), (5, 9), (10, 19), (20, 39), (40, 1_000_000))


@dataclass(frozen=True, kw_only=True)
class HeldOutError:
    """Mean relative error of the compute time of held-out shards.

    Attributes:
        tables: range of the number of tables.
        num_shards: number of shards in that range.
        mape: of the cost network in use.
        paper_mape: of DreamShard's own network, fitted to the same shards for as many steps.
        torchrec_mape: of TorchRec's estimator with the device's bandwidth; None if torchrec is not installed.
        torchrec_scaled_mape: of that estimate times the factor that is best on the fitted shards.
    """

    tables: str
    num_shards: int
    mape: float
    paper_mape: float
    torchrec_mape: float | None = None
    torchrec_scaled_mape: float | None = None

    def row(self) -> dict[str, str | int]:
        """A row of a table for people."""
        errors = {
            "error": self.mape,
            "of the paper's network": self.paper_mape,
            "of TorchRec's estimator": self.torchrec_mape,
            "of TorchRec's, scaled": self.torchrec_scaled_mape,
        }
        shown = {
            name: "torchrec is not installed" if error is None else f"{error:.1%}" for name, error in errors.items()
        }
        return {"tables": self.tables, "held-out shards": self.num_shards, **shown}


def measured_ms(samples: Sequence[CostSample]) -> Float[Tensor, " S"]:
    """Forward plus backward compute of each shard."""
    return torch.tensor([sample.overall_ms for sample in samples], dtype=torch.float64)


def torchrec_ms(samples: Sequence[CostSample], memory_bytes_per_s: float) -> Float[Tensor, " S"] | None:
    """TorchRec's estimate of each shard, the sum over its tables; None if torchrec is not installed.

    The samples share batch size and precision.
    """
    try:
        from dreamshard.torchrec import planner
    except ImportError:
        return None
    tables, first = distinct_tables(samples), samples[0]
    table_ms = planner.estimated_compute_ms(tables, first.batch_size, first.task.precision, memory_bytes_per_s)
    by_name = dict(zip(tables.names, table_ms.tolist(), strict=True))
    return torch.tensor([sum(by_name[name] for name in sample.task.tables.names) for sample in samples]).double()


def best_factor(predicted: Float[Tensor, " S"], measured: Float[Tensor, " S"]) -> float:
    """The factor on `predicted` with the least mean relative error: a weighted median of the ratios."""
    order = (measured / predicted).argsort()
    weight = (predicted / measured)[order].cumsum(0)
    middle = order[int((weight < weight[-1] / 2).sum())]
    return float(measured[middle] / predicted[middle])


def errors_by_tables(
    predicted: Mapping[str, Float[Tensor, " S"]], samples: Sequence[CostSample]
) -> tuple[HeldOutError, ...]:
    """Errors by number of tables; the last is of all samples. `predicted` is milliseconds by field of `HeldOutError`."""
    measured = measured_ms(samples)
    counts = torch.tensor([len(sample.task.tables) for sample in samples])
    most = int(counts.max())
    errors = []
    for low, high in (*BUCKETS, (1, most)):
        inside = (counts >= low) & (counts <= high)
        if bool(inside.any()):
            name = str(low) if low == high else f"{low}-{min(high, most)}"
            mapes = {field: mean_relative_error(value[inside], measured[inside]) for field, value in predicted.items()}
            errors.append(HeldOutError(tables=name, num_shards=int(inside.sum()), **mapes))
    return (*errors[:-1], replace(errors[-1], tables="all"))
