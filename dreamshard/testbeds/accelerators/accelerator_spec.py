"""What the roofline and the links need to know of an accelerator."""

from dataclasses import dataclass, fields


@dataclass(frozen=True, kw_only=True)
class AcceleratorSpec:
    """One kind of accelerator in its usual node.

    Attributes:
        memory_bytes_per_s: peak bandwidth of the device memory.
        l2_bytes: last-level cache, shared by the whole device.
        l2_bytes_per_s: read bandwidth of that cache, measured by microbenchmarks if there are any.
        num_sms: streaming multiprocessors.
        warps_per_sm: resident warps of one multiprocessor.
        clock_hz: boost clock.
        launch_s: from the end of one kernel to the first instruction of the next.
        link_bytes_per_s: to the other devices of the node, one direction.
        link_latency_s: of one all-to-all within a node.
        devices_per_node: devices that reach each other by that link.
        network_bytes_per_s: each device's share of the node's network, one direction.
        network_latency_s: of one all-to-all across nodes.
        link_curve: how the link is modelled. The name of a GPU in `link_curves.py`: as measured on it, and a link of
            another bandwidth takes as long for proportionally more bytes. `nvlink` or `pcie`: `link_latency_s`, and the
            share of the bandwidth that measured links of this kind reach. None: latency, and the whole bandwidth.
        host_bytes_per_s: to the host's memory, one direction; None where it is unknown, so that tables in host memory have
            no cost.

    Raises:
        ValueError: a figure is not above zero.
    """

    name: str
    memory_bytes: int
    memory_bytes_per_s: float
    l2_bytes: int
    l2_bytes_per_s: float
    num_sms: int
    warps_per_sm: int
    clock_hz: float
    launch_s: float
    link_bytes_per_s: float
    link_latency_s: float
    devices_per_node: int
    network_bytes_per_s: float
    network_latency_s: float
    link_curve: str | None = None
    host_bytes_per_s: float | None = None

    def __post_init__(self) -> None:
        optional = ("host_bytes_per_s",) if self.host_bytes_per_s is None else ()
        numbers = [field.name for field in fields(self) if field.name not in ("name", "link_curve", *optional)]
        bad = {name: getattr(self, name) for name in numbers if getattr(self, name) <= 0}
        if bad:
            raise ValueError(
                f"the accelerator {self.name!r} has figures that are not above zero: {bad}; each divides or bounds a "
                "cost, so give the datasheet's value in the unit of the field's name"
            )

    @property
    def resident_warps(self) -> int:
        """Resident warps of the whole device."""
        return self.num_sms * self.warps_per_sm
