"""The testbed for people with one device who plan for many: the operators of every device run on it, one after another.

Compute is real: operators on real lookups, with cold caches. Communication follows from the links of a named accelerator.
"""

from dataclasses import replace

import numpy as np
import torch

from dreamshard.costs import CostSample, Exchange, ExchangeSample, Infeasible
from dreamshard.hardware.accelerator import AcceleratorSpec, preset_of
from dreamshard.hardware.links import collectives_s
from dreamshard.hardware.roofline import link_devices_per_host
from dreamshard.placement import Placement
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds.base import Capacity, DeviceType, TestbedSetup, check_placement
from dreamshard.testbeds.device import Device, DeviceTestbed, device_model, machine_memory_bytes
from dreamshard.testbeds.operators import require_fbgemm, require_operators
from dreamshard.testbeds.simulated import SimulatedTestbed
from dreamshard.testbeds.step import measure_step


class EmulatedTestbed(DeviceTestbed):
    """Measures placements of any number of devices on one; starts no process.

    Args:
        device_type: of the one device; `cuda` is the current GPU.
        target: accelerator whose links connect the devices.

    Raises:
        ValueError: fbgemm is not installed.
    """

    name = "emulated"

    def __init__(self, setup: TestbedSetup, device_type: DeviceType, target: AcceleratorSpec) -> None:
        require_fbgemm()
        self.setup, self.target = setup, target
        self.device_type: DeviceType = device_type
        self.hardware = self.links = f"{device_model(device_type)} for each device, links of {target.name}"
        self._device: Device | None = None

    def measure(self, task: PlacementTask, placement: Placement) -> CostSample:
        """See `Testbed`: operators are measured, and collectives follow from the links of the target."""
        shards = check_placement(task, placement)
        per_host = link_devices_per_host(shards, self.target)
        require_operators(shards, self.device_type)
        timed = np.zeros((self.setup.repeats, task.num_devices, 4))
        batch_size, group = self.setup.batch_size, shards.devices_per_host
        most, mean = shards.most_traffic(), shards.traffic[:, 0].sum() / task.num_devices
        comm_s = collectives_s(most, batch_size, task.num_devices, self.target, per_host, group, mean)
        timed[..., 1:3] = 1e3 * comm_s.numpy()
        self._device = self._device or Device(self.setup, torch.device(self.device_type))
        num_threads = torch.get_num_threads()
        torch.set_num_threads(1)  # the CPU's clock counts one thread
        try:
            for d in shards.device.unique().tolist():
                found = measure_step(shards, self._device, d)
                if isinstance(found, Infeasible):
                    return self.sample(task, placement, found)
                timed[:, d, [0, 3]] = found[:, [0, 3]]
        finally:
            torch.set_num_threads(num_threads)
        return self.sample(task, placement, timed)

    def measure_exchange(self, exchange: Exchange) -> ExchangeSample:
        """See `Testbed`: from the links of the target, so nothing is measured."""
        exact = SimulatedTestbed(self.setup, self.target, noise=0.0).measure_exchange(exchange)
        return replace(exact, testbed=self.name, hardware=self.hardware)

    def capacity(self, num_devices: int) -> Capacity:
        """See `Testbed`."""
        if self.device_type == "cpu":
            return Capacity(kind="cpu", memory_bytes=machine_memory_bytes())
        properties = torch.cuda.get_device_properties(0)
        return Capacity(kind="gpu", memory_bytes=int(properties.total_memory), spec=preset_of(properties.name))

    def close(self) -> None:
        """Free the device's memory."""
        self._device = None
        if self.device_type == "cuda":
            torch.cuda.empty_cache()
