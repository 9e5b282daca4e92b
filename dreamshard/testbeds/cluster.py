"""The testbed of real ranks: one process per device, exchanging by torch.distributed, on one host or many."""

import atexit
import pickle
import threading
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from dreamshard.costs import PHASES, CostSample, DeviceCosts, Exchange, ExchangeSample, Infeasible
from dreamshard.hardware.accelerator import preset_of
from dreamshard.placement import Placement
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds.base import Capacity, DeviceType, MeasurementError, Testbed, TestbedSetup, check_placement
from dreamshard.testbeds.device import CLOCKS, library_versions, machine_memory_bytes, medians, slowest_spread
from dreamshard.testbeds.layout import Layout
from dreamshard.testbeds.operators import require_fbgemm, require_operators
from dreamshard.testbeds.ranks import Job, Launcher, RankFailure, Ranks, describe_rank


class ClusterTestbed(Testbed):
    """Measures placements and exchanges on ranks that start with the first measurement and stay up until `close`.

    After an error all ranks are ended; open the testbed again for new ones.

    Args:
        device_type: of the ranks; None for GPUs unless there is none at all.
        ranks: of a launcher of many hosts, which stay up; None for this host's own.

    Raises:
        ValueError: fbgemm is not installed, or there are too few GPUs or ranks.
    """

    name = "cluster"

    def __init__(self, setup: TestbedSetup, device_type: DeviceType | None = None, ranks: Ranks | None = None) -> None:
        require_fbgemm()
        num_gpus = (
            torch.cuda.device_count() if ranks is None else sum(rank.gpu is not None for rank in ranks.layout.ranks)
        )
        device_type = device_type or ("cuda" if num_gpus else "cpu")
        most, on_gpus = setup.most_devices, device_type == "cuda"
        if on_gpus and ranks is None and num_gpus < most:
            raise ValueError(
                f"this machine has {num_gpus} GPUs for {most} devices; start ranks on more hosts with torchrun or Ray "
                "(docs/many-hosts.md), plan with `emulated` or `simulated`, or ask for the CPU with `cluster:cpu`"
            )
        try:
            self._pickled_setup = pickle.dumps(replace(setup, shard_cache=None))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ValueError(
                f"the lookups {setup.lookups!r} cannot be sent to the ranks of a cluster ({error}); give a function or "
                "an object of a class at the top level of a module"
            ) from error
        self.setup = setup
        self.device_type: DeviceType = device_type
        self.ranks = ranks
        self._lock = threading.Lock()
        self._is_local = ranks is None
        here = (describe_rank(number, number if on_gpus else None) for number in range(most))
        self.layout = Layout.of(here) if ranks is None else ranks.layout
        own = self.layout.part(setup.num_devices)
        self.hardware = own.hardware(device_type)
        self.links = own.model(device_type)
        atexit.register(self.close)

    def measure(self, task: PlacementTask, placement: Placement) -> CostSample:
        """See `Testbed`; the sample's task has the devices per host that were measured."""
        shards = check_placement(task, placement)
        part = self.layout.part(task.num_devices, task.devices_per_host)
        shards.require_hosts_of(part.devices_per_host)
        require_operators(task, shards, self.device_type)
        answers = self._answers(task.name, part, (task, placement))
        infeasible = next((answer for answer in answers if isinstance(answer, Infeasible)), None)
        timed = torch.zeros(1, task.num_devices, len(PHASES)) if infeasible else _stacked(answers)  # [R, D, 4]
        return CostSample(
            task=replace(task, devices_per_host=part.devices_per_host),
            placement=placement,
            costs=DeviceCosts.from_phases(medians(timed).to(torch.float32)),
            spread_ms=slowest_spread(timed),
            repeats=len(timed) if infeasible is None else 0,
            clock=CLOCKS[self.device_type].name,
            testbed=self.name,
            hardware=self.hardware,
            batch_size=self.setup.batch_size,
            versions=library_versions(),
            infeasible=infeasible,
        )

    def measure_exchange(self, exchange: Exchange) -> ExchangeSample:
        """See `Testbed`, on as many devices as there are, also more than a task's."""
        part = self.layout.part(exchange.num_devices, exchange.devices_per_host)
        timed = _stacked(self._answers(f"an all-to-all of {exchange.num_devices} devices", part, exchange))  # [R, D, 2]
        median_ms = medians(timed).to(torch.float32)  # [D, 2]
        return ExchangeSample(
            exchange=replace(exchange, devices_per_host=part.devices_per_host),
            forward_ms=median_ms[:, 0],
            backward_ms=median_ms[:, 1],
            spread_ms=slowest_spread(timed),
            repeats=len(timed),
            clock="cuda_event" if self.device_type == "cuda" else "wall",
            testbed=self.name,
            hardware=self.hardware,
            host_devices=None if self._is_local else self.layout.devices_per_host,
            versions=library_versions(),
        )

    def capacity(self, num_devices: int) -> Capacity:
        """See `Testbed`."""
        first = self.layout.ranks[0]
        if self.device_type == "cuda":  # this host may have none
            return Capacity(kind="gpu", memory_bytes=first.gpu_bytes, spec=preset_of(str(first.gpu)))
        per_host = min(num_devices, self.layout.devices_per_host)
        return Capacity(kind="cpu", memory_bytes=machine_memory_bytes() // per_host)

    def close(self) -> None:
        """End all ranks of this host; those of a launcher stay for the next testbed."""
        atexit.unregister(self.close)
        if self._is_local and self.ranks is not None:
            self.ranks.end()

    def _answers(self, name: str, part: Layout, measured: Exchange | tuple[PlacementTask, Placement]) -> list[object]:
        """What each rank measured; ends all ranks on any error."""
        with self._lock:
            if self.ranks is None:
                self.ranks = Ranks(Launcher(self.setup.most_devices, on_gpu=self.device_type == "cuda"))
            job = Job(
                device_type=self.device_type,
                setup=self._pickled_setup,
                members=part.numbers,
                timeout_s=self.setup.timeout_s,
                measured=measured,
            )
            try:
                return self.ranks.do(job)
            except RankFailure as failure:
                raise self._error(failure, self.ranks, name, len(part.numbers)) from failure

    def _error(self, failure: RankFailure, ranks: Ranks, name: str, num_ranks: int) -> MeasurementError:
        """One sentence about a rank's failure; its traceback is in the error's notes."""
        host = next(rank.host for rank in self.layout.ranks if rank.number == failure.rank)
        on_host = f" on host {host}" if len(self.layout.pattern) > 1 else ""
        error = MeasurementError(
            f"measuring {name} failed on rank {failure.rank} of {num_ranks}{on_host}: {failure.what}. All ranks were ended; "
            f"earlier samples are kept; {ranks.launcher.advice}"
        )
        if failure.trace:
            error.add_note(f"rank {failure.rank}:\n{failure.trace}")
        return error


def _stacked(answers: Sequence[object]) -> Float[Tensor, "R D P"]:
    """Milliseconds of each timed pass, rank and phase."""
    return torch.from_numpy(np.stack([answer for answer in answers if isinstance(answer, np.ndarray)], axis=1))
