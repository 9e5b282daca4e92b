"""The testbed of real ranks: real fused operators, real all-to-all, one process per device.

NCCL on CUDA, gloo on CPU; the rest is the same code (`passes.py`), on one host or many.
"""

import atexit
import math
import pickle
import threading
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from dreamshard.costs import PHASES, CostSample, DeviceCosts, Exchange, ExchangeSample, Infeasible
from dreamshard.placement import Placement
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds.base import (
    MeasurementError,
    TestbedSetup,
    check_exchange,
    check_placement,
)
from dreamshard.testbeds.clocks import CLOCKS, medians, slowest_spread
from dreamshard.testbeds.cluster.jobs import DeviceType, ExchangeJob, Job
from dreamshard.testbeds.cluster.launched import LocalRanks, RankSource
from dreamshard.testbeds.cluster.layout import Layout
from dreamshard.testbeds.cluster.rank_group import RankFailure
from dreamshard.testbeds.cluster.sharded.job import ShardingJob, require_shards
from dreamshard.testbeds.fused_op import require_fbgemm
from dreamshard.testbeds.machine import library_versions


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
        self._source: RankSource = source or LocalRanks(setup.most_devices, device_type)
        self.max_devices: int | None = setup.num_devices
        members = self.layout.members(setup.num_devices, None)
        self.hardware = self.layout.hardware(members, device_type)
        self.links = self.layout.model(members, device_type)
        atexit.register(self.close)

    def measure(self, task: PlacementTask, placement: Placement) -> CostSample:
        """See `Testbed`; the sample's task has the devices per host that were measured.

        Each collective begins when all ranks are there, and each of a rank's operators runs by itself: one for all tables
        and columns of one precision. The exchange of indices is measured only if tables are sharded in another way. After
        an error all ranks are ended, and the next measurement starts new ones.
        """
        shards = check_placement(task, placement, self.max_devices)
        members = self.layout.members(task.num_devices, task.devices_per_host)
        measured = replace(task, devices_per_host=self.layout.per_host(members))
        is_fused = placement.is_by_columns and not task.precision_of
        require_shards(measured, shards, self.device_type)
        jobs = list(ShardingJob.each(members, task, shards, with_indices=not is_fused))
        with self._lock:
            answers = self._answers(members, jobs, task.name)
        infeasible = next((answer for answer in answers if isinstance(answer, Infeasible)), None)
        num_phases = len(PHASES)
        timed = torch.zeros(1, task.num_devices, num_phases + 1) if infeasible else _stacked(answers)  # [R, D, 4 or 5]
        median_ms = medians(timed).to(torch.float32)
        costs = DeviceCosts.from_phases(median_ms[:, :num_phases])
        return CostSample(
            task=measured,
            placement=placement,
            costs=costs,
            index_ms=None if is_fused else median_ms[:, num_phases],
            overall_ms=float(costs.overall_ms()) if infeasible is None else math.inf,
            spread_ms=slowest_spread(timed[..., :num_phases]),
            repeats=len(timed) if infeasible is None else 0,
            clock=CLOCKS[self.device_type].name,
            testbed=self.name,
            hardware=self.hardware,
            batch_size=self.setup.batch_size,
            versions=library_versions(),
            infeasible=infeasible,
        )

    def measure_exchange(self, exchange: Exchange) -> ExchangeSample:
        """See `Testbed`, on as many devices as there are, also more than a task's; after an error as `measure`."""
        check_exchange(exchange, len(self.layout.ranks))
        members = self.layout.members(exchange.num_devices, exchange.devices_per_host)
        self.layout.hardware(members, self.device_type)  # refuses GPUs of several models
        name = f"an all-to-all of {exchange.num_devices} devices"
        with self._lock:
            timed = _stacked(self._answers(members, [ExchangeJob(members, exchange)] * len(members), name))  # [R, D, 2]
        median_ms = medians(timed).to(torch.float32)  # [D, 2]
        return ExchangeSample(
            exchange=replace(exchange, devices_per_host=self.layout.per_host(members)),
            forward_ms=median_ms[:, 0],
            backward_ms=median_ms[:, 1],
            spread_ms=slowest_spread(timed),
            repeats=len(timed),
            clock="cuda_event" if self.device_type == "cuda" else "wall",
            testbed=self.name,
            hardware=self.hardware,
            host_devices=None if isinstance(self._source, LocalRanks) else self.layout.devices_per_host,
            versions=library_versions(),
        )

    @property
    def layout(self) -> Layout:
        """Of all ranks that there may be."""
        return self._source.layout

    def close(self) -> None:
        """End all ranks of this host; those of a launcher stay for the next testbed."""
        atexit.unregister(self.close)
        self._source.close()

    def rank_pids(self) -> list[int]:
        """Process ids of the ranks that this testbed started on this host, in order."""
        return self._source.pids() if isinstance(self._source, LocalRanks) else []

    def _answers(self, members: tuple[int, ...], jobs: Sequence[Job], name: str) -> list[object]:
        """What each rank measured, one job each; ends all ranks on any error."""
        jobs_of = dict(zip(members, jobs, strict=True))
        try:
            group = self._source.running(len(members), self.device_type)
            answers = group.do(jobs_of, self._pickled_setup, self.device_type, self.setup.timeout_s)
        except RankFailure as failure:
            raise self._error(failure, name, len(members), jobs_of.get(failure.rank)) from failure
        return [answers[member] for member in members]

    def _error(self, failure: RankFailure, name: str, num_ranks: int, job: Job | None) -> MeasurementError:
        """One sentence about a rank's failure; its traceback is in the error's notes."""
        hosts = len(self.layout.pattern)
        on_host = f" on host {self.layout.host_of(failure.rank)}" if hosts > 1 else ""
        with_tables = ""
        if isinstance(job, ShardingJob):
            first = ", ".join(job.names[:5]) + (", ..." if len(job.names) > 5 else "") if job.names else "no tables"
            with_tables = f", with {len(job.names)} tables on it ({first})"
        error = MeasurementError(
            f"measuring {name} failed on rank {failure.rank} of {num_ranks}{on_host} while {failure.stage}{with_tables}: "
            f"{failure.what}. All ranks were ended; earlier samples are kept; {self._source.advice}"
        )
        if failure.trace:
            error.add_note(f"rank {failure.rank}:\n{failure.trace}")
        return error


def _stacked(answers: Sequence[object]) -> Float[Tensor, "R D P"]:
    """Milliseconds of each timed pass, rank and phase."""
    return torch.from_numpy(np.stack([answer for answer in answers if isinstance(answer, np.ndarray)], axis=1))
