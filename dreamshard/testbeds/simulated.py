"""The testbed without a device: a roofline of a named accelerator, for tests, planning and large scale."""

import hashlib

import torch
from jaxtyping import Int
from torch import Tensor

from dreamshard.costs import CostSample, DeviceCosts
from dreamshard.placement import Placement
from dreamshard.tables import Optimizer, Precision, Tables
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds.base import TestbedSetup, check_placement
from dreamshard.testbeds.roofline import phase_costs, shard_loads, table_loads
from dreamshard.testbeds.specs import AcceleratorSpec

DEFAULT_NOISE = 0.01


class SimulatedTestbed:
    """Costs from the model in `roofline.py`; needs statistics of tables, but no lookups.

    The same seed, task and placement give the same costs, in any order of measurements.

    Args:
        setup: its batch size and seed count.
        spec: of the accelerator.
        noise: relative standard deviation of each measured phase; 0 for the model's exact costs.
    """

    name = "simulated"
    max_devices: int | None = None

    def __init__(self, setup: TestbedSetup, spec: AcceleratorSpec, noise: float = DEFAULT_NOISE) -> None:
        if not 0 <= noise < 1:
            raise ValueError(f"measurement noise is a relative standard deviation in [0, 1), got {noise}")
        self.setup = setup
        self.spec = spec
        self.noise = noise
        self.hardware = f"simulated {spec.name}"

    def measure(self, task: PlacementTask, placement: Placement) -> CostSample:
        """See `Testbed`: the model's costs times noise, drawn from the seed and the content of task and placement."""
        task, placement = check_placement(task, placement, self.max_devices)
        costs = self.device_costs(
            task.tables,
            placement.device[None],
            task.num_devices,
            task.precision,
            task.optimizer,
            task.devices_per_host,
        ).phases_ms()[0]  # [D, 4]
        generator = torch.Generator().manual_seed(self._seed_of(task, placement))
        factors = 1 + self.noise * torch.randn(costs.shape, generator=generator, dtype=costs.dtype)
        measured = DeviceCosts.from_phases((costs * factors.clamp(min=0)).to(torch.float32))
        return CostSample(
            task=task,
            placement=placement,
            costs=measured,
            overall_ms=float(measured.overall_ms()),
            spread_ms=0.0,
            repeats=1,
            clock="model",
            testbed=self.name,
            hardware=self.hardware,
            batch_size=self.setup.batch_size,
        )

    def device_costs(
        self,
        tables: Tables,
        device: Int[Tensor, "B T"],
        num_devices: int,
        precision: Precision = "fp32",
        optimizer: Optimizer = "sgd",
        devices_per_host: int | None = None,
    ) -> DeviceCosts:
        """`[B, D]` costs of `B` placements of the same tables, without noise, in float64."""
        loads = table_loads(tables, self.setup.batch_size, precision, optimizer)
        return phase_costs(shard_loads(loads, device, num_devices), self.setup.batch_size, self.spec, devices_per_host)

    def close(self) -> None:
        """See `Testbed`."""

    def _seed_of(self, task: PlacementTask, placement: Placement) -> int:
        tables = task.tables
        words = [self.setup.seed, self.setup.batch_size, self.spec.name, task.precision, task.optimizer]
        words += [tables.names, tables.rows.tolist(), tables.dim.tolist()]
        words += [placement.num_devices, placement.device.tolist()]
        words += [] if task.devices_per_host is None else [task.devices_per_host]
        return int.from_bytes(hashlib.sha256(repr(words).encode()).digest()[:7])
