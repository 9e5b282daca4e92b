"""The testbed of real ranks: real fused operators, real all-to-all, one process per device.

On CUDA with NCCL, on CPU with gloo; everything but clocks and backend is the same code (`cluster_pass.py`). Several
hosts need nothing here but the elastic launcher's rendezvous.
"""

import atexit
import os
import pickle
import platform
import threading
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from dreamshard.costs import CostSample, DeviceCosts
from dreamshard.placement import Placement
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds.base import MeasurementError, TestbedSetup, check_placement
from dreamshard.testbeds.cluster_ranks import Ranks, RankTrouble
from dreamshard.testbeds.cluster_worker import Job
from dreamshard.testbeds.fused_op import require_fbgemm

CLOCKS = {"cpu": "thread_cpu", "cuda": "cuda_event"}


class ClusterTestbed:
    """Measures placements on ranks that start with the first measurement and stay up until `close`.

    Attributes:
        name: `cluster`.
        hardware: model and number of the devices.
        max_devices: as many as the setup names.
        device_type: `cpu` or `cuda`.

    Raises:
        ValueError: fbgemm is not installed, or there are fewer GPUs than devices.
    """

    name = "cluster"

    def __init__(self, setup: TestbedSetup, device_type: Literal["cpu", "cuda"]) -> None:
        require_fbgemm()
        num_gpus = torch.cuda.device_count()
        if device_type == "cuda" and num_gpus < setup.num_devices:
            raise ValueError(
                f"testbed cluster:cuda needs a GPU for each of {setup.num_devices} devices, but this machine has "
                f"{num_gpus}; ask for fewer devices, or use cluster:cpu or simulated"
            )
        try:
            self._pickled_setup = pickle.dumps(setup)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ValueError(
                f"the lookups {setup.lookups!r} cannot be sent to the ranks of a cluster ({error}); give a function or "
                "an object of a class at the top level of a module"
            ) from error
        self.setup = setup
        self.device_type = device_type
        self._in_turn = threading.Lock()
        self.max_devices: int | None = setup.num_devices
        self.hardware = _hardware(device_type, setup.num_devices)
        self._ranks: Ranks | None = None
        atexit.register(self.close)

    def measure(self, task: PlacementTask, placement: Placement) -> CostSample:
        """Measure one legal placement; see `Testbed`.

        Raises:
            MeasurementError: a rank raised, died, hung, or ran out of memory. All ranks are ended then, and the next
                measurement starts new ones.
            ValueError: the placement is not legal for the task, or the task has more devices than the testbed.
        """
        check_placement(task, placement, self.max_devices)
        with self._in_turn:
            passes = self._measure(task, placement)
        return self._sample(task, placement, passes)

    def _measure(self, task: PlacementTask, placement: Placement) -> Float[Tensor, "R D 4"]:
        """Timed passes of all ranks; ends the ranks where there is trouble."""
        try:
            ranks = self._ranks_for(task.num_devices)
            ranks.tell(Job(task, placement))
            passes = [answer.phases_ms for answer in ranks.collect(self.setup.timeout_s)]
        except RankTrouble as trouble:
            self._end_ranks()
            raise _measurement_error(trouble, task, placement) from None
        except BaseException:
            self._end_ranks()  # interrupted: half an answer must not become the next one's
            raise
        return torch.stack(passes, dim=1)

    def close(self) -> None:
        """End all ranks; nothing is left running."""
        atexit.unregister(self.close)
        self._end_ranks()

    def rank_pids(self) -> list[int]:
        """Process ids of the ranks that are up, in the order of ranks."""
        return self._ranks.pids() if self._ranks else []

    def _ranks_for(self, num_devices: int) -> Ranks:
        if self._ranks is not None and self._ranks.num_ranks != num_devices:
            self._end_ranks()
        if self._ranks is None:
            self._ranks = Ranks(num_devices, self.device_type, self._pickled_setup)
        return self._ranks

    def _end_ranks(self) -> None:
        if self._ranks is not None:
            ranks, self._ranks = self._ranks, None
            ranks.end()

    def _sample(self, task: PlacementTask, placement: Placement, passes: Float[Tensor, "R D 4"]) -> CostSample:
        """Medians and spread of `[R, D, 4]` timed passes."""
        costs = DeviceCosts.from_phases(passes.median(dim=0).values.to(torch.float32))  # [D, 4]
        slowest = passes.sum(dim=2).max(dim=1).values  # [R]
        quartiles = torch.quantile(slowest, torch.tensor([0.25, 0.75], dtype=slowest.dtype))
        return CostSample(
            task=task,
            placement=placement,
            costs=costs,
            overall_ms=float(costs.overall_ms()),
            spread_ms=float(quartiles[1] - quartiles[0]),
            repeats=len(passes),
            clock=CLOCKS[self.device_type],
            testbed=self.name,
            hardware=self.hardware,
            batch_size=self.setup.batch_size,
            versions=_versions(),
        )


def _measurement_error(trouble: RankTrouble, task: PlacementTask, placement: Placement) -> MeasurementError:
    held = [task.tables.names[t] for t in placement.tables_of(trouble.rank)]
    tables = ", ".join(held[:5]) + (", ..." if len(held) > 5 else "") if held else "no tables"
    error = MeasurementError(
        f"measuring {task.name} failed on rank {trouble.rank} of {task.num_devices} while {trouble.stage}, with "
        f"{len(held)} tables on it ({tables}): {trouble.what}. All ranks were ended; earlier samples are kept, and the "
        "next measurement starts new ranks"
    )
    if trouble.detail:
        error.add_note(f"rank {trouble.rank}:\n{trouble.detail}")
    return error


def _hardware(device_type: str, num_devices: int) -> str:
    if device_type == "cuda":
        return f"{torch.cuda.get_device_name(0)} x{num_devices}"
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{models[0] if models else platform.machine()} x{os.cpu_count()}, {num_devices} ranks"


def _versions() -> dict[str, str]:
    found = {"torch": str(torch.__version__)}
    for package in ("fbgemm-gpu", "fbgemm-gpu-cpu"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
