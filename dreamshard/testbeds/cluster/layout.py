"""Which rank is which device, on which host; pure."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dreamshard.testbeds.cluster.jobs import DeviceType, Rank


@dataclass(frozen=True)
class Layout:
    """Running ranks in the order of devices: hosts one after another, the fullest first.

    Raises:
        ValueError: a host other than the last one has fewer ranks than the first.
    """

    ranks: tuple[Rank, ...]

    def __post_init__(self) -> None:
        counts = list(self._counts().values())
        if any(count != counts[0] for count in counts[:-1]):
            listed = ", ".join(f"{count} on {host}" for host, count in self._counts().items())
            raise ValueError(
                f"hosts have different numbers of ranks ({listed}), but tasks know one number of devices per host; start as "
                "many ranks on each host (only the last one may have fewer)"
            )

    @classmethod
    def of(cls, ranks: Iterable[Rank]) -> "Layout":
        """Number the ranks so that those of a host are consecutive."""
        ordered = sorted(ranks, key=lambda rank: rank.number)
        counts = Counter(rank.host for rank in ordered)
        first = {rank.host: rank.number for rank in reversed(ordered)}
        return cls(tuple(sorted(ordered, key=lambda rank: (-counts[rank.host], first[rank.host], rank.number))))

    @property
    def devices_per_host(self) -> int:
        """Of the first host."""
        return next(iter(self._counts().values()))

    @property
    def pattern(self) -> list[int]:
        """Ranks of each host and so which devices share one."""
        return list(self._counts().values())

    @property
    def kinds(self) -> list[str]:
        """Model of each device."""
        return [rank.gpu.model if rank.gpu else rank.processor for rank in self.ranks]

    def members(self, num_devices: int, devices_per_host: int | None) -> tuple[int, ...]:
        """Numbers of the ranks that measure a task of so many devices, by device.

        Args:
            devices_per_host: of the task; None for as many as there are.

        Raises:
            ValueError: there are too few ranks or hosts for the task.
        """
        if devices_per_host is None:
            chosen = list(range(len(self.ranks)))
        else:
            starts = range(0, len(self.ranks), self.devices_per_host)
            per_host = min(devices_per_host, num_devices)
            width = per_host if per_host <= self.devices_per_host else 0
            chosen = [d for start in starts for d in range(start, start + width) if d < len(self.ranks)]
        if len(chosen) < num_devices:
            wanted = "" if devices_per_host is None else f" at {devices_per_host} per host"
            raise ValueError(
                f"{num_devices} devices{wanted} are asked for, but there are {len(self.ranks)} ranks, "
                f"{self.devices_per_host} per host on {describe_count(len(self._counts()), 'host')}, so this cannot be "
                "measured here; ask for what there is, or start more ranks (docs/many-hosts.md)"
            )
        return tuple(self.ranks[place].number for place in chosen[:num_devices])

    def hardware(self, members: Sequence[int], device_type: DeviceType) -> str:
        """Names the devices of `members` for people and for comparing samples, e.g. `NVIDIA H100 x64, 8 hosts`.

        Raises:
            ValueError: they are GPUs of several models, or one of them has no GPU.
        """
        hosts = len({rank.host for rank in self._chosen(members)})
        on_hosts = "" if hosts == 1 else f", {hosts} hosts"
        count = f", {len(members)} ranks" if device_type == "cpu" else f" x{len(members)}"
        return f"{self.model(members, device_type)}{count}{on_hosts}"

    def model(self, members: Sequence[int], device_type: DeviceType) -> str:
        """Names the devices of `members` without their number, e.g. `NVIDIA H100`; raises as `hardware` does."""
        ranks = self._chosen(members)
        if device_type == "cpu":
            return " and ".join(sorted({rank.processor for rank in ranks}))
        self._check_gpus(ranks)
        return ranks[0].gpu.model if ranks[0].gpu else ""

    def host_of(self, number: int) -> str:
        """Host of a rank."""
        return next(rank.host for rank in self.ranks if rank.number == number)

    def per_host(self, members: Sequence[int]) -> int:
        """Members on the host of the first one."""
        hosts = [rank.host for rank in self._chosen(members)]
        return hosts.count(hosts[0])

    def device_type(self) -> DeviceType:
        """GPUs, unless no rank at all has one: a rank that should have one must not be replaced by a CPU."""
        return "cuda" if any(rank.gpu for rank in self.ranks) else "cpu"

    def _check_gpus(self, ranks: Sequence[Rank]) -> None:
        users: dict[tuple[str, str], Rank] = {}
        for rank in ranks:
            if rank.gpu is None:
                raise ValueError(
                    f"rank {rank.number} on host {rank.host} has no GPU that torch can use, so costs on GPUs cannot be "
                    "measured; start one rank per GPU, check `nvidia-smi` on that host, or ask for the CPU with cluster:cpu"
                )
            other = users.setdefault((rank.host, rank.gpu.uuid), rank)
            if other is not rank:
                raise ValueError(
                    f"ranks {other.number} and {rank.number} on host {rank.host} have the same GPU ({rank.gpu.model}, "
                    f"{rank.gpu.uuid}), so each would slow the other; start one rank per GPU"
                )
        models = {rank.gpu.model: rank for rank in ranks if rank.gpu}
        if len(models) > 1:
            listed = ", ".join(f"{model} on host {rank.host}" for model, rank in models.items())
            raise ValueError(
                f"ranks have GPUs of different models ({listed}), so their costs would not be those of any one; start "
                "them on hosts of one kind"
            )

    def _chosen(self, members: Sequence[int]) -> list[Rank]:
        by_number = {rank.number: rank for rank in self.ranks}
        return [by_number[member] for member in members]

    def _counts(self) -> Mapping[str, int]:
        """Ranks of each host, in the order of devices."""
        return Counter(rank.host for rank in self.ranks)


def describe_count(count: int, noun: str) -> str:
    """`1 host`, `2 hosts`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def describe_ranks(ranks: Iterable[int]) -> str:
    """`rank 3`, `ranks 0 and 1`, `ranks 8 to 15`, `ranks 1, 5, 6, ...`."""
    ordered = sorted(ranks)
    if len(ordered) == 1:
        return f"rank {ordered[0]}"
    if len(ordered) == 2:
        return f"ranks {ordered[0]} and {ordered[1]}"
    if ordered[-1] - ordered[0] == len(ordered) - 1:
        return f"ranks {ordered[0]} to {ordered[-1]}"
    return f"ranks {', '.join(map(str, ordered[:8]))}" + (", ..." if len(ordered) > 8 else "")
