"""Measured placements as tensors, ready to be fitted."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from dreamshard.cost_model.features import Normaliser, work_ratios
from dreamshard.costs import PHASES, CostSample
from dreamshard.measured_on import MeasuredOn, StepSetting

Layout = tuple[int, int | None]
"""Devices of a task, and devices per host; None for as many as the hardware has."""


@dataclass(frozen=True)
class CostData:
    """Measured placements; on fewer than `D` devices they end in devices without tables, of cost 0.

    Attributes:
        features: `[P, F]` normalised, of the `P` distinct tables that occur.
        assignment: `[S, D, P]` 1 if sample `s` has table `p` on device `d`.
        phases_ms: `[S, D, 4]` measured.
        task_names: `S` names; placements of one task are compared with each other.
        ratios: `[P, 4]` `work_ratios` of the tables; None if all samples have the network's setting.
        layouts: of the samples' tasks; empty if all have `D` devices on one host.
        batch_size: training samples per pass, of the network's setting.
    """

    features: Float[Tensor, "P F"]
    assignment: Float[Tensor, "S D P"]
    phases_ms: Float[Tensor, "S D 4"]
    task_names: tuple[str, ...]
    ratios: Float[Tensor, "P 4"] | None = None
    layouts: tuple[Layout, ...] = ()
    batch_size: int = 1

    @property
    def overall_ms(self) -> Float[Tensor, " S"]:
        """`[S]` the slowest device's sum."""
        return self.phases_ms.sum(-1).max(-1).values

    @cached_property
    def placed(self) -> Int[Tensor, "N 3"]:
        """Sample, device and table of everything placed."""
        return self.assignment.nonzero()

    def by_layout(self) -> dict[Layout, Int[Tensor, " N"]]:
        """Samples of each layout, the layout with the most samples first."""
        layouts = self.layouts or ((self.assignment.shape[1], None),) * len(self.task_names)
        return {
            layout: torch.tensor([s for s, own in enumerate(layouts) if own == layout])
            for layout, _ in Counter(layouts).most_common()
        }

    @classmethod
    def of(cls, samples: Sequence[CostSample], normaliser: Normaliser, fitted: StepSetting | None = None) -> "CostData":
        """The samples as tensors; a table whose features differ between two samples is two tables.

        Args:
            samples: placements on any devices.
            normaliser: of the features.
            fitted: setting of the network's steps; samples of another one get `work_ratios`. None for the samples' own.

        Raises:
            ValueError: there are none.
        """
        if not samples:
            raise ValueError("there are no cost samples, so there is nothing to fit; pass at least one")
        samples = [sample.of_whole_tables() for sample in samples]
        tables: dict[tuple[str, bytes], tuple[int, NDArray[np.float32]]] = {}
        columns = [
            [
                tables.setdefault((name, row.tobytes()), (len(tables), row))[0]
                for name, row in zip(sample.task.tables.names, _rows(sample, normaliser, fitted), strict=True)
            ]
            for sample in samples
        ]
        most = max(sample.task.num_devices for sample in samples)
        assignment = torch.zeros(len(samples), most, len(tables))
        phases_ms = torch.zeros(len(samples), most, len(PHASES))
        for s, sample in enumerate(samples):
            assignment[s, sample.placement.device, columns[s]] = 1.0
            phases_ms[s, : sample.task.num_devices] = sample.costs.phases_ms()
        rows = torch.from_numpy(np.stack([row for _, row in tables.values()]))
        features, ratios = (part.contiguous() for part in rows.split([len(normaliser.mean), 4], dim=1))
        return cls(
            features,
            assignment,
            phases_ms,
            tuple(sample.task.name for sample in samples),
            None if bool((ratios == 1).all()) else ratios,
            tuple((sample.task.num_devices, sample.task.devices_per_host) for sample in samples),
            fitted.batch_size if fitted else samples[0].batch_size,
        )

    def sums(self, encode: Callable[[Tensor, Tensor | None], Tensor]) -> Float[Tensor, "S D L"]:
        """Latent sums per device, by `CostNetwork.encode`."""
        return self.assignment @ encode(self.features, self.ratios)


def _rows(sample: CostSample, normaliser: Normaliser, fitted: StepSetting | None) -> NDArray[np.float32]:
    """`[T, F+4]` normalised features and `work_ratios` of the sample's tables."""
    tables, setting = sample.task.tables, MeasuredOn.of(sample).setting
    ratios = torch.ones(len(tables), 4) if fitted is None or fitted == setting else work_ratios(tables, fitted, setting)
    return torch.cat([normaliser(tables), ratios], dim=1).numpy()
