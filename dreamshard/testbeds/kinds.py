"""The testbeds: costs computed by a roofline, measured on one device that stands for all, or on a rank per device."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from dreamshard.costs import SIMULATED, CostSample, DeviceCosts, Exchange, ExchangeSample, Infeasible, library_versions
from dreamshard.files import digest
from dreamshard.hardware.accelerator import AcceleratorSpec, preset_of
from dreamshard.hardware.links import collective_s
from dreamshard.hardware.roofline import Floats, exchanges_s, sharding_costs
from dreamshard.tables import Placement
from dreamshard.tasks import PlacementTask, Shards
from dreamshard.testbeds.base import Capacity, DeviceType, MeasurementError, Testbed, TestbedSetup, check_placement
from dreamshard.testbeds.device import Device, device_model, machine_memory_bytes
from dreamshard.testbeds.ranks import Job, Launcher, Layout, RankFailure, Ranks, describe_rank
from dreamshard.testbeds.step import measure_step, require_fbgemm, require_operators


class SimulatedTestbed(Testbed):
    """Costs from the model in `roofline.py`; needs statistics of tables, but no lookups.

    The same seed, task and placement give the same costs, in any order of measurements. `noise` is the relative standard
    deviation of each measured phase; 0 gives the model's exact costs.
    """

    name = SIMULATED

    def __init__(self, setup: TestbedSetup, spec: AcceleratorSpec, noise: float = 0.01) -> None:
        self.setup, self.spec, self.noise = setup, spec, noise
        self.hardware = self.links = f"{SIMULATED} {spec.name}"
        self._origin: dict[str, Any] = {"testbed": self.name, "hardware": self.hardware, "clock": "model"}

    def measure(self, task: PlacementTask, placement: Placement) -> CostSample:
        """See `Testbed`: the model's costs times noise, drawn from the seed and the content of task and placement."""
        shards = check_placement(task, placement)
        batch_size = self.setup.batch_size
        exact = sharding_costs(shards, batch_size, self.spec).phases_ms  # [D, 4]
        tables = shards.tables
        words: list[Any] = [self.setup.seed, batch_size, self.spec.name, task.precision, task.optimizer]
        words += [tables.names, tables.rows.tolist(), tables.dim.tolist()]
        words += [sorted(task.precision_of.items())] * bool(task.precision_of)
        words += [task.num_devices, shards.device.tolist(), *filter(None, [task.devices_per_host])]
        return CostSample(
            task=task,
            placement=placement,
            costs=DeviceCosts(self._with_noise(exact, words)),
            batch_size=batch_size,
            **self._origin,
        )

    def measure_exchange(self, exchange: Exchange) -> ExchangeSample:
        """See `Testbed`: the model's time with noise, drawn from the seed and the exchange."""
        sent, per_host, count = exchange.sent_bytes.double(), exchange.devices_per_host, exchange.num_devices
        hosts_of = per_host or self.spec.devices_per_host
        exact = 1e3 * collective_s(sent.max(), count, self.spec, hosts_of, mean_bytes=sent.mean())
        words = [self.setup.seed, self.spec.name, exchange.sent_bytes.tolist(), per_host]
        noisy = self._with_noise(exact.expand(count, 2), words)  # [D, 2]
        return ExchangeSample(
            exchange=exchange,
            forward_ms=noisy[:, 0],
            backward_ms=noisy[:, 1],
            host_devices=self.spec.devices_per_host,
            **self._origin,
        )

    def capacity(self) -> Capacity:
        """See `Testbed`."""
        return Capacity(kind="simulated", memory_bytes=self.spec.memory_bytes, spec=self.spec)

    def _with_noise(self, costs_ms: Float[Tensor, "*B"], words: list[Any]) -> Float[Tensor, "*B"]:
        """Each cost times its own noise, drawn from the words, in float32."""
        generator = torch.Generator().manual_seed(int(digest(repr(words))[:14], 16))
        factors = 1 + self.noise * torch.randn(costs_ms.shape, generator=generator, dtype=costs_ms.dtype)
        return (costs_ms * factors.clamp(min=0)).to(torch.float32)


class DeviceTestbed(Testbed):
    """A testbed that times operators on devices of one type."""

    setup: TestbedSetup
    device_type: DeviceType

    def sample(self, task: PlacementTask, placement: Placement, timed: Floats | Infeasible) -> CostSample:
        """The sample of a placement, by the `[D, 4]` milliseconds of a pass."""
        infeasible = None
        if isinstance(timed, Infeasible):
            infeasible, timed = timed, np.zeros((task.num_devices, 4))
        return CostSample(
            task=task,
            placement=placement,
            costs=DeviceCosts(torch.from_numpy(timed).float()),
            batch_size=self.setup.batch_size,
            infeasible=infeasible,
            repeats=int(infeasible is None),
            **self.origin("thread_cpu"),
        )

    def origin(self, cpu_clock: str) -> dict[str, Any]:
        """Fields of a `Measurement` that say where and how."""
        clock = "cuda_event" if self.device_type == "cuda" else cpu_clock
        return {"clock": clock, "testbed": self.name, "hardware": self.hardware, "versions": library_versions()}


class EmulatedTestbed(DeviceTestbed):
    """Measures placements of any number of devices on one, for people with one who plan for many; starts no process.

    Compute is real: the operators of every device run one after another, on real lookups, with cold caches. Communication
    follows from the links of the accelerator `target`.

    Raises:
        ValueError: fbgemm is not installed.
    """

    name = "emulated"

    def __init__(self, setup: TestbedSetup, device_type: DeviceType, target: AcceleratorSpec) -> None:
        require_fbgemm()
        self.setup, self.device_type, self.target = setup, device_type, target
        self.hardware = self.links = f"{device_model(device_type)} for each device, links of {target.name}"
        self._device: Device | None = None

    def measure(self, task: PlacementTask, placement: Placement) -> CostSample:
        """See `Testbed`: operators are measured, and collectives follow from the links of the target."""
        shards = check_placement(task, placement)
        timed = np.zeros((task.num_devices, 4))
        timed[:, 1:3] = 1e3 * exchanges_s(shards, self.setup.batch_size, self.target).numpy()
        require_operators(shards, self.device_type)
        self._device = self._device or Device(self.setup, torch.device(self.device_type))
        num_threads = torch.get_num_threads()
        torch.set_num_threads(1)  # the CPU's clock counts one thread
        try:
            for d in shards.device.unique().tolist():
                step_ms = measure_step(shards, self._device, d)
                if isinstance(step_ms, Infeasible):
                    return self.sample(task, placement, step_ms)
                timed[d, [0, 3]] = step_ms[[0, 3]]
        finally:
            torch.set_num_threads(num_threads)
        return self.sample(task, placement, timed)

    def measure_exchange(self, exchange: Exchange) -> ExchangeSample:
        """See `Testbed`: from the links of the target, so nothing is measured."""
        exact = SimulatedTestbed(self.setup, self.target, noise=0.0).measure_exchange(exchange)
        return replace(exact, testbed=self.name, hardware=self.hardware)

    def capacity(self) -> Capacity:
        """See `Testbed`."""
        if self.device_type == "cpu":
            return Capacity(kind="cpu", memory_bytes=machine_memory_bytes())
        properties = torch.cuda.get_device_properties(0)
        return Capacity(kind="gpu", memory_bytes=properties.total_memory, spec=preset_of(properties.name))

    def close(self) -> None:
        """Free the device's memory."""
        self._device = None
        if self.device_type == "cuda":
            torch.cuda.empty_cache()


class ClusterTestbed(DeviceTestbed):
    """Measures placements and exchanges on ranks that start with the first measurement and stay up until `close`.

    After an error all ranks are ended; open the testbed again for new ones. The setup's lookups are pickled for the ranks.

    Args:
        device_type: of the ranks; None for GPUs unless there is none at all.
        ranks: of a launcher of many hosts, which stay up; None for this host's own.

    Raises:
        ValueError: fbgemm is not installed, or there are too few GPUs or ranks.
    """

    name = "cluster"

    def __init__(self, setup: TestbedSetup, device_type: DeviceType | None = None, ranks: Ranks | None = None) -> None:
        require_fbgemm()
        most, num_gpus = setup.most_devices, torch.cuda.device_count()
        if ranks is not None:
            num_gpus = sum(rank.gpu is not None for rank in ranks.layout.ranks)
        self.setup, self.ranks, self._is_local = setup, ranks, ranks is None
        self.device_type = device_type or ("cuda" if num_gpus else "cpu")
        self._on_gpu = self.device_type == "cuda"
        if self._on_gpu and ranks is None and num_gpus < most:
            raise ValueError(
                f"this machine has {num_gpus} GPUs for {most} devices; start ranks on more hosts (docs/many-hosts.md), or "
                "use `emulated`, `simulated` or `cluster:cpu`"
            )
        gpus = range(most) if self._on_gpu else [None] * most
        self.layout = Layout.of(list(map(describe_rank, range(most), gpus))) if ranks is None else ranks.layout
        ranks_used = self.layout.part(setup.num_devices)
        self.hardware, self.links = ranks_used.hardware(self.device_type), ranks_used.model(self.device_type)

    def measure(self, task: PlacementTask, placement: Placement) -> CostSample:
        """See `Testbed`; the sample's task has the devices per host that were measured."""
        shards = check_placement(task, placement)
        part = self.layout.part(task.num_devices, task.devices_per_host)
        shards.require_hosts_of(part.devices_per_host)
        require_operators(shards, self.device_type)
        timed = self._timed(task.name, part, shards)
        return self.sample(replace(task, devices_per_host=part.devices_per_host), placement, timed)

    def measure_exchange(self, exchange: Exchange) -> ExchangeSample:
        """See `Testbed`, on as many devices as there are, also more than a task's."""
        part = self.layout.part(exchange.num_devices, exchange.devices_per_host)
        timed = self._timed(f"an all-to-all of {exchange.num_devices} devices", part, exchange)
        assert not isinstance(timed, Infeasible)  # out of memory is an error here
        forward_ms, backward_ms = torch.from_numpy(timed.T).float()  # [D]
        return ExchangeSample(
            exchange=replace(exchange, devices_per_host=part.devices_per_host),
            forward_ms=forward_ms,
            backward_ms=backward_ms,
            host_devices=None if self._is_local else self.layout.devices_per_host,
            **self.origin("wall"),
        )

    def capacity(self) -> Capacity:
        """See `Testbed`."""
        first = self.layout.ranks[0]
        if self._on_gpu:  # this host may have none
            return Capacity(kind="gpu", memory_bytes=first.gpu_bytes, spec=preset_of(str(first.gpu)))
        per_host = min(self.setup.num_devices, self.layout.devices_per_host)
        return Capacity(kind="cpu", memory_bytes=machine_memory_bytes() // per_host)

    def close(self) -> None:
        """End all ranks of this host; those of a launcher stay for the next testbed."""
        if self._is_local and self.ranks is not None:
            self.ranks.end()

    def _timed(self, name: str, part: Layout, measured: Exchange | Shards) -> Floats | Infeasible:
        """`[D, P]` milliseconds of each rank and phase; ends all ranks on any error, which is one sentence."""
        self.ranks = self.ranks or Ranks(Launcher(self.setup.most_devices, on_gpu=self._on_gpu))
        members = tuple(rank.number for rank in part.ranks)
        job = Job(device_type=self.device_type, setup=self.setup, members=members, measured=measured)
        try:
            answers = self.ranks.do(job)
        except RankFailure as failure:
            host = next(rank.host for rank in self.layout.ranks if rank.number == failure.rank)
            on_host = f" on host {host}" if len(self.layout.pattern) > 1 else ""
            error = MeasurementError(
                f"measuring {name} failed on rank {failure.rank} of {len(members)}{on_host}: {failure.what}; start again"
            )
            if failure.trace:
                error.add_note(f"rank {failure.rank}:\n{failure.trace}")
            raise error from failure
        infeasible = next((answer for answer in answers if isinstance(answer, Infeasible)), None)
        return infeasible or np.stack(answers)
