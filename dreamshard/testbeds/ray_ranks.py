"""Ranks on a Ray cluster: a placement group with a task per GPU, or per CPU core, each of which is a rank.

Ray decides which hosts they are on. Without `RAY_ADDRESS` it takes the cluster of this machine, or starts one.
"""

import os
import socket
from collections.abc import Mapping
from typing import Any

from dreamshard.testbeds.base import DeviceType
from dreamshard.testbeds.ranks import HOST, Launcher, Ranks, serve

RESERVE_TIMEOUT_S = 60.0


class RayLauncher(Launcher):
    """Starts ranks as tasks in a placement group; a ConnectionError says that others use the devices."""

    def __init__(self, ray: Any, num_ranks: int, *, on_gpu: bool) -> None:
        super().__init__(num_ranks, on_gpu=on_gpu)
        self.address = str(ray.util.get_node_ip_address())
        self._ray = ray
        self._runs: list[Any] = []
        name = "GPU" if on_gpu else "CPU"
        self._group = ray.util.placement_group([{name: 1}] * num_ranks, strategy="PACK")
        if not self._group.wait(RESERVE_TIMEOUT_S):
            self.end()
            raise ConnectionError(
                f"the Ray cluster did not reserve {num_ranks} {name}s within {RESERVE_TIMEOUT_S:g} s; wait for other jobs "
                "to end, or ask for fewer devices"
            )

    def start(self, meeting: str) -> None:
        """See `Launcher`."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        resources = {"num_gpus": 1, "num_cpus": 0} if self.on_gpu else {"num_cpus": 1}
        for number in range(self.num_ranks):
            strategy = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=number)
            task = self._ray.remote(_serve).options(scheduling_strategy=strategy, max_retries=0, **resources)
            local_rank = 0 if self.on_gpu else None  # a task sees only its own GPU
            self._runs.append(task.remote(number, self.num_ranks, meeting, local_rank))

    def exits(self) -> Mapping[int, str]:
        """See `Launcher`; with Ray's own words."""
        ended = self._ray.wait(self._runs, num_returns=len(self._runs), timeout=0)[0] if self._runs else []
        exits = {}
        for run in ended:
            try:
                self._ray.get(run)
                reason = "it ended"
            except self._ray.exceptions.RayError as error:
                reason = next(line.split(". ")[0] for line in str(error).splitlines()[::-1] if line.strip())
            exits[self._runs.index(run)] = reason
        return exits

    def end(self) -> None:
        """See `Launcher`; ends tasks that are left, and gives all devices back."""
        self._ray.util.remove_placement_group(self._group)


def _serve(number: int, num_ranks: int, meeting: str, local_rank: int | None) -> None:
    """A rank, named by its node of Ray."""
    import ray

    node = ray.get_runtime_context().get_node_id()[:8]
    os.environ.setdefault(HOST, f"{socket.gethostname()} (Ray node {node})")
    serve(number, num_ranks, meeting, local_rank)


_running: list[Ranks] = []
"""At most one: the devices of a cluster are reserved once for all testbeds of this process; Ray ends them with it."""


def ray_ranks(num_ranks: int, device_type: DeviceType | None) -> Ranks:
    """Ranks on a Ray cluster, which stay until they fail, this process ends or others are requested.

    Without `device_type` they are on GPUs, unless the cluster has none at all.

    Raises:
        ConnectionError: the cluster could not be reached, or a rank did not start.
        ValueError: Ray is not installed, or the cluster has too few devices.
    """
    for ranks in _running:
        running_on: DeviceType = "cuda" if ranks.launcher.on_gpu else "cpu"
        if ranks.failure is None and ranks.launcher.num_ranks == num_ranks and device_type in (None, running_on):
            return ranks
        ranks.end()
    _running.clear()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no telemetry; read when Ray is first imported
    try:
        import ray
    except ImportError as error:
        raise ValueError("testbed cluster:ray needs Ray; install it: pip install 'dreamshard[ray]'") from error
    ray.init(ignore_reinit_error=True, logging_level="ERROR", log_to_driver=False)
    total = ray.cluster_resources()
    on_gpu = device_type == "cuda" or (device_type is None and total.get("GPU", 0) > 0)
    name = "GPU" if on_gpu else "CPU"
    if total.get(name, 0) < num_ranks:
        raise ValueError(
            f"the Ray cluster has {total.get(name, 0):g} {name}s on {len(ray.nodes())} hosts for {num_ranks} devices; add "
            "hosts, ask for fewer devices, or use emulated or simulated"
        )
    _running.append(Ranks(RayLauncher(ray, num_ranks, on_gpu=on_gpu)))
    return _running[0]
