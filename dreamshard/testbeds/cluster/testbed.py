"""The testbed of real ranks: real fused operators, real all-to-all, one process per device.

NCCL on CUDA, gloo on CPU; the rest is the same code (`passes.py`), on one host or many.
"""

import atexit
import math
import os
import pickle
import threading
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from dreamshard.costs import PHASES, CostSample, DeviceCosts, Infeasible, ShardingSample
from dreamshard.exchange_sample import Exchange, ExchangeSample
from dreamshard.placement import Placement
from dreamshard.sharding import ShardedPlacement
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds.base import TestbedSetup, check_exchange, check_placement, check_sharding, of_whole_tables
from dreamshard.testbeds.clocks import CLOCKS, medians, slowest_spread
from dreamshard.testbeds.cluster.layout import Layout
from dreamshard.testbeds.cluster.messages import DeviceType, ExchangeJob, PlacementJob
from dreamshard.testbeds.cluster.rank_launcher import RankTrouble
from dreamshard.testbeds.cluster.rank_source import LocalRanks, RankSource, measurement_error
from dreamshard.testbeds.cluster.sharded.job import ShardingJob, require_shards
from dreamshard.testbeds.fused_op import require_fbgemm, require_operator
from dreamshard.testbeds.machine import device_model, library_versions


class ClusterTestbed:
    """Measures placements and exchanges on ranks that start with the first measurement and stay up until `close`.

    Args:
        device_type: of the ranks.
        source: where the ranks come from; None for this host.

    Raises:
        ValueError: fbgemm is not installed, or there are too few GPUs or ranks.
    """

    name = "cluster"

    def __init__(self, setup: TestbedSetup, device_type: DeviceType, source: RankSource | None = None) -> None:
        require_fbgemm()
        num_gpus = torch.cuda.device_count()
        if device_type == "cuda" and source is None and num_gpus < setup.num_devices:
            raise ValueError(
                f"testbed cluster:cuda needs a GPU for each of {setup.num_devices} devices, but this machine has "
                f"{num_gpus}; ask for fewer devices, start ranks on several hosts (docs/many-hosts.md), or use "
                "cluster:cpu or simulated"
            )
        try:
            self._pickled_setup = pickle.dumps(replace(setup, shard_cache=None))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ValueError(
                f"the lookups {setup.lookups!r} cannot be sent to the ranks of a cluster ({error}); give a function or "
                "an object of a class at the top level of a module"
            ) from error
        self.setup = setup
        self.device_type = device_type
        self._lock = threading.Lock()
        self._source: RankSource = source or LocalRanks()
        self.max_devices: int | None = setup.num_devices
        if self.layout is not None:
            members = self.layout.members(setup.num_devices, None)
            self.hardware = self.layout.hardware(members, device_type)
            self.links = self.layout.model(members, device_type)
        elif device_type == "cpu":
            self.links = f"{device_model('cpu')} x{os.cpu_count()}"
            self.hardware = f"{self.links}, {setup.num_devices} ranks"
        else:
            self.links = device_model("cuda")
            self.hardware = f"{self.links} x{setup.num_devices}"
        atexit.register(self.close)

    def measure(self, task: PlacementTask, placement: Placement) -> CostSample:
        """See `Testbed`; the sample's task has the devices per host that were measured.

        After an error all ranks are ended, and the next measurement starts new ones.
        """
        task, placement = check_placement(task, placement, self.max_devices)
        if task.precision_of:
            sharded = ShardedPlacement.of(placement, task.tables, task.devices_per_host)
            return of_whole_tables(self.measure_sharding(task, sharded), placement)
        require_operator(task.precision, task.optimizer, self.device_type)
        members = self._members(task.num_devices, task.devices_per_host)
        measured = replace(task, devices_per_host=self._devices_per_host(members))
        jobs = list(PlacementJob.each(members, measured, placement))
        with self._lock:
            answers = self._answers(members, jobs, task.name)
        infeasible = next((answer for answer in answers if isinstance(answer, Infeasible)), None)
        timed = torch.zeros(1, task.num_devices, 4) if infeasible else _stacked(answers)  # [R, D, 4]
        costs = DeviceCosts.from_phases(medians(timed).to(torch.float32))  # [D, 4]
        return CostSample(
            task=measured,
            placement=placement,
            costs=costs,
            overall_ms=float(costs.overall_ms()) if infeasible is None else math.inf,
            spread_ms=slowest_spread(timed),
            repeats=len(timed) if infeasible is None else 0,
            clock=CLOCKS[self.device_type].name,
            testbed=self.name,
            hardware=self.hardware,
            batch_size=self.setup.batch_size,
            versions=library_versions(),
            infeasible=infeasible,
        )

    def measure_sharding(self, task: PlacementTask, placement: ShardedPlacement) -> ShardingSample:
        """See `ShardingTestbed`; after an error as `measure`.

        Each collective begins when all ranks are there, and each of a rank's operators runs by itself.
        """
        shards = check_sharding(task, placement, self.max_devices)
        members = self._members(task.num_devices, task.devices_per_host)
        measured = replace(task, devices_per_host=self._devices_per_host(members))
        require_shards(measured, shards, self.device_type)
        jobs = list(ShardingJob.each(members, task, shards))
        with self._lock:
            answers = self._answers(members, jobs, task.name)
        infeasible = next((answer for answer in answers if isinstance(answer, Infeasible)), None)
        timed = torch.zeros(1, task.num_devices, len(PHASES) + 1) if infeasible else _stacked(answers)  # [R, D, 5]
        median_ms = medians(timed).to(torch.float32)  # [D, 5]
        costs = DeviceCosts.from_phases(median_ms[:, : len(PHASES)])
        return ShardingSample(
            task=measured,
            placement=placement,
            costs=costs,
            index_ms=median_ms[:, -1],
            overall_ms=float(costs.overall_ms()) if infeasible is None else math.inf,
            spread_ms=slowest_spread(timed[..., : len(PHASES)]),
            repeats=len(timed) if infeasible is None else 0,
            clock=CLOCKS[self.device_type].name,
            testbed=self.name,
            hardware=self.hardware,
            batch_size=self.setup.batch_size,
            versions=library_versions(),
            infeasible=infeasible,
        )

    def measure_exchange(self, exchange: Exchange) -> ExchangeSample:
        """See `ExchangeTestbed`, on as many devices as there are, also more than a task's; after an error as `measure`."""
        check_exchange(exchange, self._most_exchanging())
        members = self._members(exchange.num_devices, exchange.devices_per_host)
        if self.layout is not None:
            self.layout.hardware(members, self.device_type)  # refuses GPUs of several models
        name = f"an all-to-all of {exchange.num_devices} devices"
        with self._lock:
            timed = _stacked(self._answers(members, [ExchangeJob(members, exchange)] * len(members), name))  # [R, D, 2]
        median_ms = medians(timed).to(torch.float32)  # [D, 2]
        return ExchangeSample(
            exchange=replace(exchange, devices_per_host=self._devices_per_host(members)),
            forward_ms=median_ms[:, 0],
            backward_ms=median_ms[:, 1],
            spread_ms=slowest_spread(timed),
            repeats=len(timed),
            clock="cuda_event" if self.device_type == "cuda" else "wall",
            testbed=self.name,
            hardware=self.hardware,
            host_devices=self._source.layout.devices_per_host if self._source.layout else None,
            versions=library_versions(),
        )

    @property
    def layout(self) -> Layout | None:
        """Of a launcher's ranks; None if they start on this host when they are needed."""
        return self._source.layout

    def close(self) -> None:
        """End all ranks of this host; those of a launcher stay for the next testbed."""
        atexit.unregister(self.close)
        self._source.close()

    def rank_pids(self) -> list[int]:
        """Process ids of the ranks that this testbed started on this host, in order."""
        return self._source.pids() if isinstance(self._source, LocalRanks) else []

    def _members(self, num_devices: int, devices_per_host: int | None) -> tuple[int, ...]:
        """The ranks for so many devices.

        Raises:
            ValueError: there are too few on different hosts.
        """
        if self.layout is not None:
            return self.layout.members(num_devices, devices_per_host)
        if devices_per_host is not None and devices_per_host < num_devices:
            raise ValueError(
                f"{num_devices} devices at {devices_per_host} per host are asked for, but the ranks of this testbed are all "
                "on this host; start ranks on several hosts (docs/many-hosts.md), or use emulated or simulated"
            )
        return tuple(range(num_devices))

    def _most_exchanging(self) -> int:
        """Devices that can take part in an exchange: all that there are, but no more CPU ranks than were asked for."""
        if self.layout is not None:
            return len(self.layout.ranks)
        return torch.cuda.device_count() if self.device_type == "cuda" else self.setup.most_devices

    def _devices_per_host(self, members: Sequence[int]) -> int:
        if self.layout is None:
            return len(members)
        hosts = [self.layout.ranks[member].host for member in members]
        return hosts.count(hosts[0])

    def _answers(
        self, members: tuple[int, ...], jobs: Sequence[PlacementJob | ExchangeJob | ShardingJob], name: str
    ) -> list[object]:
        """What each rank measured, one job each; ends all ranks on any error."""
        try:
            ranks = self._source.running(len(members), self.device_type)
            for group in dict.fromkeys(group for job in jobs for group in _groups(job)):
                ranks.join(self.device_type, self._pickled_setup, group)
            for member, job in zip(members, jobs, strict=True):
                ranks.send(job, [member])
            return ranks.collect(members, self.setup.timeout_s)
        except RankTrouble as trouble:
            self._source.end_ranks()
            jobs_of = dict(zip(members, jobs, strict=True))
            job_at_fault = None if trouble.device is None else jobs_of.get(trouble.device)
            raise measurement_error(trouble, name, len(members), self._source, job_at_fault) from None
        except BaseException:
            self._source.end_ranks()  # interrupted: the rest of this answer must not be read as the next one
            raise


def _groups(job: PlacementJob | ExchangeJob | ShardingJob) -> tuple[tuple[int, ...], ...]:
    """The groups of ranks that exchange in a job; a rank alone needs none."""
    others = job.groups[1:] if isinstance(job, ShardingJob) else ()
    return (job.members, *(group for group in others if len(group) > 1))


def _stacked(answers: Sequence[object]) -> Float[Tensor, "R D P"]:
    """Milliseconds of each timed pass, rank and phase."""
    return torch.from_numpy(np.stack([answer for answer in answers if isinstance(answer, np.ndarray)], axis=1))
