"""Figures of accelerators and their links for `roofline.py`, each with its public source."""

from dataclasses import dataclass, fields, replace


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

    def __post_init__(self) -> None:
        bad = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "name" and getattr(self, f.name) <= 0}
        if bad:
            raise ValueError(
                f"the accelerator {self.name!r} has figures that are not above zero: {bad}; each divides or bounds a "
                "cost, so give the datasheet's value in the unit of the field's name"
            )

    @property
    def resident_warps(self) -> int:
        """Resident warps of the whole device."""
        return self.num_sms * self.warps_per_sm


# Launch: 3-6 us between dependent kernels of one stream from a framework (Zhang et al., "A Study of Single and
# Multi-device Synchronization Methods in Nvidia GPUs", IPDPS 2020, arXiv 2004.05371; older hosts are slower).
# All-to-all latencies: NCCL's tuning table (nccl/src/graph/tuning.cc) puts a hop at 5-7 us over NVLink, about
# 10-14 us over PCIe or the network; a grouped send/receive over a node or several adds its launch and set-up.
# Above a spec is the page where its datasheet figures were checked in November 2026. Estimates without a source: every
# launch_s, link_latency_s and network_latency_s, the 2080 Ti's l2_bytes_per_s, links and network, and H200's
# l2_bytes_per_s (H100's).
#
# 616 GB/s over 352 bits, PCIe 3.0 x16: gpu.spicedreamphone.com/ru/gpu/nvidia/geforce-rtx-2080-ti. 68 SMs, 1545 MHz:
# wccftech.com/nvidia-turing-gpu-geforce-rtx-2080-ti-ipc-block-diagram-detailed. 512 KB of L2 for each of its 11 32-bit
# controllers: en.gamegpu.com on TU102.
RTX2080TI = AcceleratorSpec(
    name="rtx2080ti",
    memory_bytes=11 * 2**30,  # NVIDIA Turing architecture whitepaper (WP-09183), appendix A: 11 GB GDDR6
    memory_bytes_per_s=616e9,  # same table: 616 GB/s
    l2_bytes=5632 * 2**10,  # same table: 5632 KB
    # Jia et al. 2019 (arXiv 1903.07486) measure 1270 GB/s on T4, of the same family: times 5.5/4 MB and 1.545/1.59 GHz.
    l2_bytes_per_s=1.70e12,
    num_sms=68,  # same whitepaper
    warps_per_sm=32,  # CUDA programming guide, compute capability 7.5
    clock_hz=1.545e9,  # same whitepaper: reference boost
    launch_s=6e-6,
    link_bytes_per_s=6e9,  # PCIe 3.0 x16 is 15.75 GB/s; GeForce Turing has no peer access over it, so bytes pass twice
    link_latency_s=30e-6,
    devices_per_node=8,
    network_bytes_per_s=1.25e9,  # one 100 Gb/s adapter shared by eight, less protocol
    network_latency_s=60e-6,
)
# 80 SMs, 6144 KB: xenon.com.au/nvidia-tesla-volta-worlds-advanced-data-center-gpu (which has the clock announced first,
# 1455 MHz). 32 GB, six NVLinks of 25 GB/s each way: docslib.org/doc/1446904. Four 100 Gb/s adapters for eight devices:
# NVIDIA DGX-1 System Architecture, WP-08437.
V100 = AcceleratorSpec(
    name="v100",
    memory_bytes=32 * 2**30,  # V100 datasheet, SXM2: 32 GB HBM2
    memory_bytes_per_s=900e9,  # same: 900 GB/s
    l2_bytes=6 * 2**20,  # Volta architecture whitepaper (WP-08608): 6144 KB
    l2_bytes_per_s=2.155e12,  # Jia et al. 2018 (arXiv 1804.06826), table 3.1: 2155 GB/s measured
    num_sms=80,  # Volta whitepaper
    warps_per_sm=64,  # CUDA programming guide, compute capability 7.0
    clock_hz=1.53e9,  # Volta whitepaper: boost
    launch_s=5e-6,
    link_bytes_per_s=150e9,  # V100 datasheet: NVLink 300 GB/s, both directions together
    link_latency_s=20e-6,
    devices_per_node=8,  # DGX-1
    network_bytes_per_s=6.25e9,  # DGX-1 datasheet: four 100 Gb/s EDR adapters for eight devices
    network_latency_s=50e-6,
)
# 2039 GB/s, NVLink 300 + 300 GB/s: glennklockwood.com/garden/processors/A100, from NVIDIA's datasheet 1758950. 108 SMs,
# 1410 MHz, 41943040 bytes of L2 as the driver reports them: PC2's "NVIDIA A100 40GB with NVLINK" at upb-pc2.atlassian.net.
A100 = AcceleratorSpec(
    name="a100",
    memory_bytes=80 * 2**30,  # A100 80GB datasheet, SXM: 80 GB HBM2e
    memory_bytes_per_s=2039e9,  # same: 2039 GB/s
    l2_bytes=40 * 2**20,  # Ampere GA100 whitepaper: 40 MB
    l2_bytes_per_s=7.2e12,  # same: 5120 B per clock at 1.41 GHz
    num_sms=108,  # same
    warps_per_sm=64,  # CUDA programming guide, compute capability 8.0
    clock_hz=1.41e9,  # same whitepaper: boost
    launch_s=4e-6,
    link_bytes_per_s=300e9,  # datasheet: NVLink 600 GB/s, both directions together
    link_latency_s=18e-6,
    devices_per_node=8,  # DGX A100
    network_bytes_per_s=25e9,  # DGX A100 datasheet: eight 200 Gb/s HDR adapters
    network_latency_s=40e-6,
)
H100 = AcceleratorSpec(
    name="h100",
    memory_bytes=80 * 2**30,  # H100 datasheet, SXM: 80 GB HBM3
    memory_bytes_per_s=3350e9,  # same: 3.35 TB/s
    l2_bytes=50 * 2**20,  # Hopper GH100 whitepaper: 50 MB
    l2_bytes_per_s=5.6e12,  # Chips and Cheese, "Nvidia's H100: Funny L2, and Tons of Bandwidth" (2023): 5.5-5.7 TB/s
    num_sms=132,  # same whitepaper, SXM5
    warps_per_sm=64,  # CUDA programming guide, compute capability 9.0
    clock_hz=1.83e9,  # same whitepaper: boost under load
    launch_s=3.5e-6,
    link_bytes_per_s=450e9,  # datasheet: NVLink 900 GB/s, both directions together
    link_latency_s=16e-6,
    devices_per_node=8,  # DGX H100
    network_bytes_per_s=50e9,  # DGX H100 datasheet: eight 400 Gb/s adapters
    network_latency_s=35e-6,
)
# 141 GB HBM3e, 18 NVLinks of 900 GB/s in all, eight per node, 400 Gb/s adapters: NVIDIA's own entry in
# github.com/mlcommons/inference_results_v4.1, closed/NVIDIA/systems/H200-SXM-141GBx8_TRT_MaxQ.json. 4.8 TB/s, the GH100 die:
# www.aiminingco.com/gpu/h200/specs.
H200 = replace(  # the same GH100 chip, links and node (DGX H200)
    H100,
    name="h200",
    memory_bytes=141 * 10**9,  # H200 datasheet, SXM: 141 GB HBM3e
    memory_bytes_per_s=4800e9,  # same: 4.8 TB/s
)

SPECS: dict[str, AcceleratorSpec] = {spec.name: spec for spec in (RTX2080TI, V100, A100, H100, H200)}
"""Presets by name."""

DEFAULT_SPEC = RTX2080TI.name
"""The paper's device."""


def accelerator(name: str) -> AcceleratorSpec:
    """The preset called `name`.

    Raises:
        ValueError: there is none; the message lists all names.
    """
    if name not in SPECS:
        raise ValueError(f"there is no accelerator {name!r} to simulate; choose one of {sorted(SPECS)}")
    return SPECS[name]


def spec_of(device: str) -> AcceleratorSpec:
    """The preset that matches the model reported by a device's driver, else the default one."""
    words = device.lower().replace("-", " ").split()
    return next((spec for name, spec in SPECS.items() if name in words), SPECS[DEFAULT_SPEC])
