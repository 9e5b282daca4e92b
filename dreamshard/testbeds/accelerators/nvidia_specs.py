"""Figures of NVIDIA's accelerators and their links, each with its public source."""

from dataclasses import replace

from dreamshard.testbeds.accelerators.accelerator_spec import AcceleratorSpec

# Launch: 3-6 us between dependent kernels of one stream from a framework (Zhang et al., "A Study of Single and
# Multi-device Synchronization Methods in Nvidia GPUs", IPDPS 2020, arXiv 2004.05371; older hosts are slower).
# All-to-all latencies: NCCL's tuning table (nccl/src/graph/tuning.cc) puts a hop at 5-7 us over NVLink, about
# 10-14 us over PCIe or the network; a grouped send/receive over a node or several adds its launch and set-up.
# Above a spec is the page where its datasheet figures were checked in November 2026. Estimates without a source: every
# launch_s, link_latency_s and network_latency_s, the 2080 Ti's l2_bytes_per_s, links and network, H200's
# l2_bytes_per_s (H100's), and what is marked as an estimate beside it.
#
# 616 GB/s over 352 bits, PCIe 3.0 x16: gpu.spicedreamphone.com/ru/gpu/nvidia/geforce-rtx-2080-ti. 68 SMs, 1545 MHz:
# wccftech.com/nvidia-turing-gpu-geforce-rtx-2080-ti-ipc-block-diagram-detailed. 512 KB of L2 for each of its 11 32-bit
# controllers: en.gamegpu.com on TU102.
RTX2080TI = AcceleratorSpec(
    name="rtx2080ti",
    link_curve="pcie",  # no public measurement
    memory_bytes=11 * 2**30,  # NVIDIA Turing architecture whitepaper (WP-09183), appendix A: 11 GB GDDR6
    memory_bytes_per_s=616e9,  # same table: 616 GB/s
    l2_bytes=5632 * 2**10,  # same table: 5632 KB
    # Jia et al. 2019 (arXiv 1903.07486) measure 1270 GB/s on T4, of the same family: times 5.5/4 MB and 1.545/1.59 GHz.
    l2_bytes_per_s=1.70e12,
    num_sms=68,  # same whitepaper
    warps_per_sm=32,  # CUDA programming guide, compute capability 7.5
    clock_hz=1.545e9,  # same whitepaper: reference boost
    launch_s=6e-6,
    link_bytes_per_s=15.75e9,  # PCIe 3.0 x16; GeForce Turing has no peer access over it, so bytes pass the host
    link_latency_s=30e-6,
    devices_per_node=8,
    network_bytes_per_s=1.25e9,  # one 100 Gb/s adapter shared by eight, less protocol
    network_latency_s=60e-6,
    host_bytes_per_s=15.75e9,  # PCIe 3.0 x16: 8 GT/s in each of 16 lanes, 128 of 130 bits
)
# 80 SMs, 6144 KB: xenon.com.au/nvidia-tesla-volta-worlds-advanced-data-center-gpu (which has the clock announced first,
# 1455 MHz). 32 GB, six NVLinks of 25 GB/s each way: docslib.org/doc/1446904. Four 100 Gb/s adapters for eight devices:
# NVIDIA DGX-1 System Architecture, WP-08437.
V100 = AcceleratorSpec(
    name="v100",
    link_curve="nvlink",  # no public measurement; its NVLinks are no full mesh, so eight devices may be slower
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
    host_bytes_per_s=15.75e9,  # V100 datasheet, SXM2: the system is connected by PCIe 3.0 x16
)
# 2039 GB/s, NVLink 300 + 300 GB/s: glennklockwood.com/garden/processors/A100, from NVIDIA's datasheet 1758950. 108 SMs,
# 1410 MHz, 41943040 bytes of L2 as the driver reports them: PC2's "NVIDIA A100 40GB with NVLINK" at upb-pc2.atlassian.net.
A100 = AcceleratorSpec(
    name="a100",
    link_curve="a100",
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
    host_bytes_per_s=31.5e9,  # datasheet: PCIe Gen4, 64 GB/s both directions together; less 128 of 130 bits
)
H100 = AcceleratorSpec(
    name="h100",
    link_curve="h100",
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
    host_bytes_per_s=63e9,  # datasheet: PCIe Gen5, 128 GB/s both directions together; less 128 of 130 bits
)
# 141 GB HBM3e, 18 NVLinks of 900 GB/s in all, eight per node, 400 Gb/s adapters: NVIDIA's own entry in
# github.com/mlcommons/inference_results_v4.1, closed/NVIDIA/systems/H200-SXM-141GBx8_TRT_MaxQ.json. 4.8 TB/s, the GH100 die:
# www.aiminingco.com/gpu/h200/specs.
H200 = replace(  # the same GH100 chip, links and node (DGX H200)
    H100,
    name="h200",
    link_curve="h200",
    memory_bytes=141 * 10**9,  # H200 datasheet, SXM: 141 GB HBM3e
    memory_bytes_per_s=4800e9,  # same: 4.8 TB/s
)

# 148 of 160 SMs, 1965 MHz, 126 MB of L2 in two partitions: chipsandcheese.com/p/nvidias-b200-keeping-the-cuda-juggernaut.
# 1440 GB and 64 TB/s for eight devices, 14.4 TB/s of NVLink in both directions, eight 400 Gb/s adapters: DGX B200
# datasheet, as at brent-newsom-nvidia.github.io/AIPS-Boom/wiki/NVIDIA-DGX-B200.
B200 = replace(
    H100,
    name="b200",
    link_curve="b200",
    memory_bytes=180 * 10**9,
    memory_bytes_per_s=8000e9,
    l2_bytes=126 * 2**20,
    l2_bytes_per_s=11e12,  # estimate: twice H100's 5.6 TB/s, since there are two dies of about its size
    num_sms=148,
    clock_hz=1.965e9,
    link_bytes_per_s=900e9,
)
# 270 GB: verda.com/blog/gb300-nvl72-architecture. 8 TB/s, 900 GB/s each way: glennklockwood.com/garden/processors/B300.
# Eight ConnectX-8 of 800 Gb/s, hosts on PCIe 5.0 (Xeon 6776P): DGX B300 datasheet. SMs and clock are B200's (estimate: NVIDIA
# names only the chip's 160).
B300 = replace(B200, name="b300", link_curve="b300", memory_bytes=270 * 10**9, network_bytes_per_s=100e9)
# 72 devices on one NVLink, 13.4 TB, 576 TB/s and 72 adapters of 400 Gb/s: NVIDIA GB200 NVL72. SMs and clock are B200's
# (estimate). Hosts of a rack hold four devices each, but reach the others by NVLink too. NVLink-C2C: 900 GB/s in both
# directions together between a Grace and its two GPUs (same page), so that each has a quarter of it in one direction, which
# Grace's memory of up to 512 GB/s (Grace CPU datasheet) can feed to both.
GB200 = replace(
    B200, name="gb200", link_curve="gb200", memory_bytes=186 * 10**9, devices_per_node=72, host_bytes_per_s=225e9
)
# 20 TB, 576 TB/s, 72 ConnectX-8 of 800 Gb/s: glennklockwood.com/garden/processors/B300; 279 GB: verda.com, as above.
GB300 = replace(GB200, name="gb300", link_curve="gb300", memory_bytes=279 * 10**9, network_bytes_per_s=100e9)
# 48 GB at 864 GB/s, PCIe 4.0 x16: itcreations.com/nvidia-gpu/nvidia-l40s-gpu-accelerator, from the datasheet. 142 SMs,
# 2520 MHz: computizer.com. 96 MiB of L2: hmc-tech.com/gpus/nvidia-b200-vs-nvidia-l40 (L40, the same AD102 chip).
L40S = AcceleratorSpec(
    name="l40s",
    link_curve="l40s",
    memory_bytes=48 * 10**9,
    memory_bytes_per_s=864e9,
    l2_bytes=96 * 2**20,
    l2_bytes_per_s=5.2e12,  # estimate: AD102 in an RTX 4090, chipsandcheese.com/p/microbenchmarking-nvidias-rtx-4090
    num_sms=142,
    warps_per_sm=48,  # CUDA programming guide, compute capability 8.9
    clock_hz=2.52e9,
    launch_s=3.5e-6,
    link_bytes_per_s=32e9,
    link_latency_s=30e-6,
    devices_per_node=8,
    network_bytes_per_s=6.25e9,  # estimate: 400 Gb/s for eight, as cloud hosts of eight have
    network_latency_s=60e-6,
    host_bytes_per_s=31.5e9,  # PCIe 4.0 x16
)
# 96 GB at 1792 GB/s, PCIe 5.0 x16, 24,064 cores (188 SMs): gpu.name, "NVIDIA unveils RTX Pro 6000 Blackwell GPU". 128 MB of
# L2, 8.7 TB/s as measured: chipsandcheese.com/p/blackwell-nvidias-massive-gpu.
RTX_PRO_6000 = AcceleratorSpec(
    name="rtx_pro_6000",
    link_curve="rtx_pro_6000",
    memory_bytes=96 * 10**9,
    memory_bytes_per_s=1792e9,
    l2_bytes=128 * 2**20,
    l2_bytes_per_s=8.7e12,
    num_sms=188,
    warps_per_sm=48,  # CUDA programming guide, compute capability 12.0
    clock_hz=2.6e9,  # estimate from 125 TFLOPS of fp32: 2 x 128 x 188 a clock
    launch_s=3.5e-6,
    link_bytes_per_s=64e9,  # PCIe 5.0 x16
    link_latency_s=30e-6,
    devices_per_node=8,
    network_bytes_per_s=25e9,  # estimate: one 400 Gb/s adapter for two devices
    network_latency_s=60e-6,
    host_bytes_per_s=63e9,  # PCIe 5.0 x16
)

DATASHEET_LINKS = {
    spec.name: spec.link_bytes_per_s for spec in (A100, H100, H200, B200, B300, GB200, GB300, L40S, RTX_PRO_6000)
}
"""Bytes per second of the links whose all-to-alls were measured, as their datasheets have them."""
