"""Ranks on a Ray cluster: a placement group with an actor per GPU, or per CPU core, each of which is a rank.

Ray decides which hosts they are on. `RAY_ADDRESS` names the cluster; without it, the one that this machine belongs to is
used, or one is started on this machine.
"""

import os
import socket
from collections.abc import Mapping
from typing import Any

from torch.distributed import Store  # type: ignore[attr-defined] # exported, but not in `__all__`

from dreamshard.testbeds.cluster.jobs import DeviceType
from dreamshard.testbeds.cluster.launched import HostRanks, open_store
from dreamshard.testbeds.cluster.rank import Start, serve

RESERVE_TIMEOUT_S = 60.0
OBJECT_STORE_BYTES = 2**27  # of a Ray cluster on this machine: nothing is stored


class RayLauncher:
    """Starts ranks as actors of a placement group, which stays until `close`."""

    def __init__(self, num_ranks: int, device_type: DeviceType, ray: Any) -> None:
        self.num_ranks = num_ranks
        self._ray = ray
        self._kind = device_type
        self._group = _reserve(ray, num_ranks, device_type)
        self._actors: list[Any] = []
        self._runs: list[Any] = []

    def start(self) -> Store:
        """See `RankLauncher`."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        store, meeting = open_store(self._ray.util.get_node_ip_address())
        actor = self._ray.remote(_RankActor)
        resources = {"num_gpus": 1, "num_cpus": 0} if self._kind == "cuda" else {"num_cpus": 1}
        self._actors, self._runs = [], []
        for number in range(self.num_ranks):
            strategy = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=number)
            self._actors.append(actor.options(scheduling_strategy=strategy, **resources).remote())
            self._runs.append(self._actors[-1].serve.remote(number, self.num_ranks, meeting, self._kind == "cuda"))
        return store

    def exits(self) -> Mapping[int, str]:
        """See `RankLauncher`; with Ray's own words."""
        ended, _ = self._ray.wait(self._runs, num_returns=len(self._runs), timeout=0) if self._runs else ([], [])
        return {number: self._reason(run) for number, run in enumerate(self._runs) if run in ended}

    def end(self) -> None:
        """See `RankLauncher`."""
        for actor in self._actors:
            self._ray.kill(actor)
        self._runs = []

    def close(self) -> None:
        """Give all devices back."""
        self._ray.util.remove_placement_group(self._group)

    def _reason(self, run: Any) -> str:
        try:
            self._ray.get(run)
        except self._ray.exceptions.RayError as error:
            return next(line for line in str(error).splitlines()[::-1] if line.strip())
        return "it ended"


class RayRanks(HostRanks):
    """Ranks that all testbeds of this process share; they end with the last one."""

    def __init__(self, launcher: RayLauncher, device_type: DeviceType) -> None:
        self.users = 0
        self._ray_launcher, self._kind = launcher, device_type
        advice = "the next measurement starts new ranks on what is left of the Ray cluster"
        super().__init__(launcher, advice, restarts=True)

    def close(self) -> None:
        """See `RankSource`."""
        self.users -= 1
        if self.users == 0:
            del _running[self._ray_launcher.num_ranks, self._kind]
            self.end(done=True)
            self._ray_launcher.close()


class _RankActor:
    """A rank as an actor."""

    def serve(self, number: int, num_ranks: int, meeting: str, look_for_gpu: bool) -> None:
        import ray

        node = ray.get_runtime_context().get_node_id()
        host = f"{socket.gethostname()} (Ray node {node[:8]})"
        serve(Start(number, num_ranks, meeting, 0, host, look_for_gpu))  # Ray shows an actor only its own GPU


_running: dict[tuple[int, DeviceType], RayRanks] = {}
"""Those of this process, by number and type of devices: two testbeds cannot reserve the same devices."""


def ray_ranks(num_ranks: int, kind: str) -> RayRanks:
    """Ranks on a Ray cluster.

    Args:
        kind: `cpu` or `cuda`; empty for GPUs, unless the cluster has none at all.

    Raises:
        ConnectionError: the cluster could not be reached, or a rank did not start.
        ValueError: Ray is not installed, or the cluster has too few devices.
    """
    running = [found for (count, its), found in _running.items() if count == num_ranks and kind in ("", its)]
    if running:
        running[0].users += 1
        return running[0]
    ray = _connect()
    total = ray.cluster_resources()
    device_type: DeviceType = "cuda" if kind == "cuda" or (kind == "" and total.get("GPU", 0) > 0) else "cpu"
    name = {"cuda": "GPU", "cpu": "CPU"}[device_type]
    if total.get(name, 0) < num_ranks:
        raise ValueError(
            f"the Ray cluster has {total.get(name, 0):g} {name}s on {len(ray.nodes())} hosts for {num_ranks} devices, so "
            "they cannot be measured there; add hosts, ask for fewer devices, or use emulated or simulated"
        )
    launcher = RayLauncher(num_ranks, device_type, ray)
    try:
        ranks = RayRanks(launcher, device_type)
    except BaseException:
        launcher.close()
        raise
    ranks.users = 1
    _running[num_ranks, device_type] = ranks
    return ranks


def _connect() -> Any:
    """Ray, connected."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no telemetry; read when Ray is first imported
    try:
        import ray
    except ImportError as error:
        raise ValueError(
            "testbed cluster:ray needs Ray, which is not installed, so nothing can be measured there; install the extra: "
            "pip install 'dreamshard[ray]'"
        ) from error
    if ray.is_initialized():
        return ray
    quiet = {"logging_level": "ERROR", "log_to_driver": False}
    address = os.environ.get("RAY_ADDRESS") or "auto"
    try:
        ray.init(address=address, **quiet)
    except ConnectionError as error:
        if address != "auto":
            raise ConnectionError(
                f"no Ray cluster answers at RAY_ADDRESS={address}, so nothing can be measured there; start it with "
                "`ray start --head`, or correct the address"
            ) from error
        ray.init(address="local", include_dashboard=False, object_store_memory=OBJECT_STORE_BYTES, **quiet)
    return ray


def _reserve(ray: Any, num_ranks: int, device_type: DeviceType) -> Any:
    """A placement group of one bundle per rank, on as few hosts as possible.

    Raises:
        ConnectionError: others use the devices.
    """
    bundle = {"GPU": 1} if device_type == "cuda" else {"CPU": 1}
    group = ray.util.placement_group([bundle] * num_ranks, strategy="PACK")
    if not group.wait(RESERVE_TIMEOUT_S):
        free = ray.available_resources()
        ray.util.remove_placement_group(group)
        raise ConnectionError(
            f"the Ray cluster did not reserve {num_ranks} {next(iter(bundle))}s within {RESERVE_TIMEOUT_S:g} s, since only "
            f"{free.get(next(iter(bundle)), 0):g} are free; wait for other jobs to end, or ask for fewer devices"
        )
    return group
