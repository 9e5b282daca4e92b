"""The cost of an all-to-all by itself, without any table.

Communication depends on bytes and on how devices are connected, not on tables. A few dozen of these samples, over sizes of
messages and numbers of devices, therefore describe the links of some hardware once for all trainings on it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """An all-to-all to be measured.

    Attributes:
        sent_bytes: `[D]` what each device sends in all; each device, itself too, gets a `D`-th of it.
        devices_per_host: devices that share a host; None for as many as the hardware has.
    """

    sent_bytes: Int[Tensor, " D"]
    devices_per_host: int | None = None

    def __post_init__(self) -> None:
        if len(self.sent_bytes) < 2 or (self.sent_bytes < 0).any() or not (self.sent_bytes > 0).any():
            raise ValueError(
                f"an all-to-all of {self.sent_bytes.tolist()} bytes moves nothing between devices, so there is nothing to "
                "measure; give at least two devices, one of which sends something"
            )
        if self.devices_per_host is not None and self.devices_per_host < 1:
            raise ValueError(f"an all-to-all has {self.devices_per_host} devices per host; a host has at least 1")

    @property
    def num_devices(self) -> int:
        """`D`."""
        return len(self.sent_bytes)


@dataclass(frozen=True, kw_only=True)
class ExchangeSample:
    """The cost of one all-to-all on a testbed.

    Attributes:
        forward_ms: `[D]` until each device had sent its own and received all others' bytes; median over the repeats.
        backward_ms: `[D]` of the way back, in which each device sends what it received.
        spread_ms: interquartile range of the slowest device over the repeats; 0 if the testbed is deterministic.
        repeats: timed passes behind each median.
        clock: as in `CostSample`, as are `testbed`, `hardware` and `versions`.
        host_devices: devices on a host of the hardware, which `devices_per_host=None` stands for; None if all devices of any
            exchange share a host.
    """

    exchange: Exchange
    forward_ms: Float[Tensor, " D"]
    backward_ms: Float[Tensor, " D"]
    spread_ms: float
    repeats: int
    clock: str
    testbed: str
    hardware: str
    host_devices: int | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
