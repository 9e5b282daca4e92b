"""The testbed of real ranks: one process per device, exchanging by torch.distributed, on one host or many."""

from dataclasses import replace

import numpy as np
import torch

from dreamshard.costs import CostSample, Exchange, ExchangeSample, Infeasible
from dreamshard.hardware.accelerator import preset_of
from dreamshard.placement import Placement
from dreamshard.shards import Shards
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds.base import Capacity, DeviceType, MeasurementError, TestbedSetup, check_placement
from dreamshard.testbeds.device import DeviceTestbed, Floats, machine_memory_bytes
from dreamshard.testbeds.ranks import Job, Launcher, Layout, RankFailure, Ranks, describe_rank
from dreamshard.testbeds.step import require_fbgemm, require_operators


class ClusterTestbed(DeviceTestbed):
    """Measures placements and exchanges on ranks that start with the first measurement and stay up until `close`.

    After an error all ranks are ended; open the testbed again for new ones.

    Args:
        setup: its lookups are pickled for the ranks.
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
        self.device_type: DeviceType = device_type or ("cuda" if num_gpus else "cpu")
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
        assert not isinstance(timed, Infeasible)  # [R, D, 2]; out of memory is an error here
        ways_ms, origin = self.summarised(timed, "cuda_event" if self._on_gpu else "wall")
        return ExchangeSample(
            exchange=replace(exchange, devices_per_host=part.devices_per_host),
            forward_ms=ways_ms[:, 0],
            backward_ms=ways_ms[:, 1],
            host_devices=None if self._is_local else self.layout.devices_per_host,
            **origin,
        )

    def capacity(self, num_devices: int) -> Capacity:
        """See `Testbed`."""
        first = self.layout.ranks[0]
        if self._on_gpu:  # this host may have none
            return Capacity(kind="gpu", memory_bytes=first.gpu_bytes, spec=preset_of(str(first.gpu)))
        per_host = min(num_devices, self.layout.devices_per_host)
        return Capacity(kind="cpu", memory_bytes=machine_memory_bytes() // per_host)

    def close(self) -> None:
        """End all ranks of this host; those of a launcher stay for the next testbed."""
        if self._is_local and self.ranks is not None:
            self.ranks.end()

    def _timed(self, name: str, part: Layout, measured: Exchange | Shards) -> Floats | Infeasible:
        """`[R, D, P]` milliseconds of each timed pass, rank and phase; ends all ranks on any error, which is one sentence."""
        self.ranks = self.ranks or Ranks(Launcher(self.setup.most_devices, on_gpu=self._on_gpu))
        job = Job(device_type=self.device_type, setup=self.setup, members=part.numbers, measured=measured)
        try:
            answers = self.ranks.do(job)
        except RankFailure as failure:
            host = next(rank.host for rank in self.layout.ranks if rank.number == failure.rank)
            on_host = f" on host {host}" if len(self.layout.pattern) > 1 else ""
            error = MeasurementError(
                f"measuring {name} failed on rank {failure.rank} of {len(part.numbers)}{on_host}: {failure.what}; start again"
            )
            if failure.trace:
                error.add_note(f"rank {failure.rank}:\n{failure.trace}")
            raise error from failure
        infeasible = next((answer for answer in answers if isinstance(answer, Infeasible)), None)
        return infeasible or np.stack(answers, axis=1)
