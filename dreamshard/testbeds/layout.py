"""Which rank is which device, on which host; pure."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from dreamshard.testbeds.base import DeviceType


@dataclass(frozen=True)
class Rank:
    """A process that measures.

    Attributes:
        number: among all ranks, from 0.
        host: name of the machine, or of its stand-in.
        processor: model of the CPU, with the number of its cores.
        gpu: model of the GPU that this rank would use; None if it has none.
        gpu_bytes: memory of the GPU.
    """

    number: int
    host: str
    processor: str
    gpu: str | None = None
    gpu_bytes: int = 0


@dataclass(frozen=True)
class Layout:
    """Ranks in the order of devices: hosts one after another, the fullest first.

    Raises:
        ValueError: a host other than the last one has fewer ranks than the first.
    """

    ranks: tuple[Rank, ...]

    def __post_init__(self) -> None:
        if any(count != self.devices_per_host for count in self.pattern[:-1]):
            raise ValueError(
                f"hosts have different numbers of ranks {self.pattern}; start as many on each (only the last may have fewer)"
            )

    @classmethod
    def of(cls, ranks: Sequence[Rank]) -> "Layout":
        """Order the ranks so that those of a host are consecutive."""
        fullest_first = Counter(rank.host for rank in ranks).most_common()
        return cls(tuple(rank for host, _ in fullest_first for rank in ranks if rank.host == host))

    @property
    def pattern(self) -> list[int]:
        """Ranks of each host, and so which devices share one."""
        return list(Counter(rank.host for rank in self.ranks).values())

    @property
    def devices_per_host(self) -> int:
        """Of the first host."""
        return self.pattern[0]

    @property
    def numbers(self) -> tuple[int, ...]:
        """Number of the rank of each device."""
        return tuple(rank.number for rank in self.ranks)

    def part(self, num_devices: int, devices_per_host: int | None = None) -> "Layout":
        """The ranks that measure a task of so many devices, of any number per host without `devices_per_host`.

        Raises:
            ValueError: there are too few ranks or hosts for the task.
        """
        chosen, own = self.ranks, self.devices_per_host
        if devices_per_host is not None:
            per_host = min(devices_per_host, num_devices)
            chosen = tuple(rank for d, rank in enumerate(self.ranks) if d % own < per_host <= own)
        if len(chosen) < num_devices:
            wanted = "" if devices_per_host is None else f" at {devices_per_host} per host"
            raise ValueError(
                f"{num_devices} devices{wanted} are requested, but there are {len(self.ranks)} ranks at {own} per host; "
                "request fewer, or start more (docs/many-hosts.md)"
            )
        return Layout(chosen[:num_devices])

    def hardware(self, device_type: DeviceType) -> str:
        """Names the devices for people and for comparing samples, e.g. `NVIDIA H100 x64, 8 hosts`; raises as `model`."""
        count = f", {len(self.ranks)} ranks" if device_type == "cpu" else f" x{len(self.ranks)}"
        hosts = f", {len(self.pattern)} hosts" if len(self.pattern) > 1 else ""
        return f"{self.model(device_type)}{count}{hosts}"

    def model(self, device_type: DeviceType) -> str:
        """Names the devices without their number, e.g. `NVIDIA H100`.

        Raises:
            ValueError: a rank has no GPU: it must not be replaced by a CPU.
        """
        for rank in self.ranks:
            if device_type == "cuda" and rank.gpu is None:
                raise ValueError(
                    f"rank {rank.number} on host {rank.host} has no GPU that torch can use; start one rank per GPU, check "
                    "`nvidia-smi` there, or use cluster:cpu"
                )
        names = {str(rank.gpu) if device_type == "cuda" else rank.processor for rank in self.ranks}
        return " and ".join(sorted(names))
