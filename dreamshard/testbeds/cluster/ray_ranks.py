"""Ranks on a Ray cluster: a placement group with one actor per GPU, or per CPU core, each of which is a keeper.

Ray decides which hosts they are on. `RAY_ADDRESS` names the cluster; without it, the one that this machine belongs to is
used, or one is started on this machine.
"""

import os
import socket
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

from dreamshard.testbeds.cluster.keeper import Keeper, Place
from dreamshard.testbeds.cluster.keeper_pool import KeeperPool
from dreamshard.testbeds.cluster.launched import LaunchedRanks, listen
from dreamshard.testbeds.cluster.messages import DeviceType
from dreamshard.testbeds.cluster.rank_launcher import RankTrouble
from dreamshard.testbeds.cluster.ranks import Ranks
from dreamshard.testbeds.cluster.reception import Reception

RESERVE_TIMEOUT_S = 60.0
JOIN_TIMEOUT_S = 120.0
OBJECT_STORE_BYTES = 2**27  # of a Ray cluster on this machine: nothing is stored


class RayRanks(LaunchedRanks):
    """Launched ranks whose keepers are actors. All testbeds of this process share them; they end with the last one."""

    advice = "the next measurement starts new ranks on what is left of the Ray cluster"

    def __init__(self, num_ranks: int, device_type: DeviceType, ray: Any) -> None:
        self._ray = ray
        self._kind = device_type
        self._group = _reserve(ray, num_ranks, device_type)
        self._address: str = ray.util.get_node_ip_address()
        self._actors: dict[int, Any] = {}
        self._runs: dict[int, Any] = {}
        self.users = 0
        with ExitStack() as undo:
            undo.callback(self._free)
            reception = listen(self._address)
            undo.callback(reception.close)
            self._start_keepers(range(num_ranks), reception)
            super().__init__(KeeperPool(num_ranks, JOIN_TIMEOUT_S, why_gone=self._why_gone), reception)
            undo.pop_all()

    def running(self, num_devices: int, device_type: DeviceType) -> Ranks:
        """See `RankSource`; actors that have ended are replaced first."""
        ended, _ = self._ray.wait(list(self._runs.values()), num_returns=len(self._runs), timeout=0)
        self._start_keepers([rank for rank, run in self._runs.items() if run in ended], self._reception)
        return super().running(num_devices, device_type)

    def close(self) -> None:
        """See `RankSource`."""
        self.users -= 1
        if self.users == 0:
            del _running[len(self._runs), self._kind]
            self.shut_down(done=True)
            self._free()

    def _start_keepers(self, ranks: Iterable[int], reception: Reception) -> None:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        actor = self._ray.remote(_KeeperActor)
        for rank in ranks:
            strategy = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=rank)
            resources = {"num_gpus": 1, "num_cpus": 0} if self._kind == "cuda" else {"num_cpus": 1}
            self._actors[rank] = actor.options(scheduling_strategy=strategy, **resources).remote()
            self._runs[rank] = self._actors[rank].keep.remote(rank, self._address, reception.port, reception.key)

    def _why_gone(self, rank: int) -> str:
        """What Ray says about an actor that has ended."""
        done, _ = self._ray.wait([self._runs[rank]], timeout=5)
        try:
            self._ray.get(done)
        except self._ray.exceptions.RayError as error:
            return next(line for line in str(error).splitlines()[::-1] if line.strip())
        return ""

    def _free(self) -> None:
        """Give all devices back."""
        for actor in self._actors.values():
            self._ray.kill(actor)
        self._ray.util.remove_placement_group(self._group)


class _KeeperActor:
    """A keeper as an actor."""

    def keep(self, rank: int, address: str, port: int, key: bytes) -> bool:
        """Run until the testbed has ended."""
        import ray

        node = ray.get_runtime_context().get_node_id()
        place = Place(rank, 0, f"{socket.gethostname()} (Ray node {node[:8]})")  # Ray shows an actor only its own GPU
        return Keeper(place, address, port, key).run()


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
    try:
        ranks = RayRanks(num_ranks, device_type, ray)
    except RankTrouble as trouble:
        raise ConnectionError(
            f"the ranks could not start on the Ray cluster, since rank {trouble.rank} failed: {trouble.what} {trouble.detail}"
        ) from None
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
