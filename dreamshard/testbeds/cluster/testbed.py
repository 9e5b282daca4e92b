"""The testbed of real ranks: real fused operators, real all-to-all, one process per device.

NCCL on CUDA, gloo on CPU; the rest is the same code (`passes.py`).
"""

import atexit
import math
import os
import pickle
import threading
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from dreamshard.costs import CostSample, DeviceCosts, Infeasible
from dreamshard.placement import Placement
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds.base import MeasurementError, TestbedSetup, check_placement
from dreamshard.testbeds.clocks import CLOCKS, interquartile_range
from dreamshard.testbeds.cluster.launch import Ranks, RankTrouble
from dreamshard.testbeds.cluster.rank import Job
from dreamshard.testbeds.fused_op import require_fbgemm
from dreamshard.testbeds.machine import device_model, library_versions


class ClusterTestbed:
    """Measures placements on ranks that start with the first measurement and stay up until `close`.

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
        self._lock = threading.Lock()
        self.max_devices: int | None = setup.num_devices
        count = f"{os.cpu_count()}, {setup.num_devices} ranks" if device_type == "cpu" else f"{setup.num_devices}"
        self.hardware = f"{device_model(device_type)} x{count}"
        self._ranks: Ranks | None = None
        atexit.register(self.close)

    def measure(self, task: PlacementTask, placement: Placement) -> CostSample:
        """See `Testbed`; after an error all ranks are ended, and the next measurement starts new ones."""
        task, placement = check_placement(task, placement, self.max_devices)
        with self._lock:
            answers = self._measure(task, placement)
        infeasible = next((answer for answer in answers if isinstance(answer, Infeasible)), None)
        passes = [answer for answer in answers if isinstance(answer, Tensor)]
        timed = torch.stack(passes, dim=1) if infeasible is None else torch.zeros(1, task.num_devices, 4)  # [R, D, 4]
        costs = DeviceCosts.from_phases(timed.median(dim=0).values.to(torch.float32))  # [D, 4]
        return CostSample(
            task=task,
            placement=placement,
            costs=costs,
            overall_ms=float(costs.overall_ms()) if infeasible is None else math.inf,
            spread_ms=interquartile_range(timed.sum(dim=2).max(dim=1).values),
            repeats=len(timed) if infeasible is None else 0,
            clock=CLOCKS[self.device_type].name,
            testbed=self.name,
            hardware=self.hardware,
            batch_size=self.setup.batch_size,
            versions=library_versions(),
            infeasible=infeasible,
        )

    def _measure(self, task: PlacementTask, placement: Placement) -> list[Float[Tensor, "R 4"] | Infeasible]:
        """Timed passes of each rank; ends all ranks on any error."""
        try:
            ranks = self._ranks_for(task.num_devices)
            ranks.send(Job(task, placement))
            return [answer.phases_ms for answer in ranks.collect(self.setup.timeout_s)]
        except RankTrouble as trouble:
            self._end_ranks()
            raise _measurement_error(trouble, task, placement) from None
        except BaseException:
            self._end_ranks()  # interrupted: the rest of this answer must not be read as the next one
            raise

    def close(self) -> None:
        """End all ranks."""
        atexit.unregister(self.close)
        self._end_ranks()

    def rank_pids(self) -> list[int]:
        """Process ids of the running ranks, in order."""
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


def _measurement_error(trouble: RankTrouble, task: PlacementTask, placement: Placement) -> MeasurementError:
    names = [task.tables.names[t] for t in placement.tables_of(trouble.rank)]
    tables = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "") if names else "no tables"
    error = MeasurementError(
        f"measuring {task.name} failed on rank {trouble.rank} of {task.num_devices} while {trouble.stage}, with "
        f"{len(names)} tables on it ({tables}): {trouble.what}. All ranks were ended; earlier samples are kept, and the "
        "next measurement starts new ranks"
    )
    if trouble.detail:
        error.add_note(f"rank {trouble.rank}:\n{trouble.detail}")
    return error
