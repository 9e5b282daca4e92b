"""The cost of a device as a compiled function of its summed loads: by a network, or by the roofline.

Every cost model that searches is one of two laws with arrays of its own, so that one compiled search serves both:

    overall = max over devices (compute(loads) + own_ms x width) + fixed + total_ms x all widths + curves

The curves are milliseconds of collectives that all devices wait for: the all-to-all by its widest device, the exchanges of
row-wise tables, the all-reduce of copies, the exchanges within and between hosts.

Numbers are float64 and functions are those of libm, so that results are the same with and without compilation.
"""

import inspect
import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numba
import numpy as np
from numpy.typing import NDArray

from dreamshard.cost_model import structured_formula as formula
from dreamshard.hardware import kernels, loads
from dreamshard.hardware.accelerator import AcceleratorSpec

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Compiled = TypeVar("Compiled", bound=Callable[..., Any])


def jit(function: Compiled) -> Compiled:
    """Compile a function, whatever checks its shapes in tests; the machine code is cached on disk."""
    compiled: Compiled = numba.njit(cache=True, error_model="numpy")(inspect.unwrap(function))
    return compiled


NETWORK, ROOFLINE, PAPER = 0, 1, 2
ALL_TO_ALL, ROWS, COPIES, HOSTS = range(4)
"""Curves: by width, dims of row-wise tables, bytes of copies' gradients, dims on the busiest host."""
CURVE_POINTS = 1024
_LOG_FIRST, _LOG_STEP = -4.0, 0.05  # natural logarithms of the points of a curve: from 0.02 to 3e20
_CURVE_VALUES = np.exp(_LOG_FIRST + _LOG_STEP * np.arange(CURVE_POINTS))
_FIGURES = (
    "memory_bytes_per_s",
    "l2_bytes",
    "l2_bytes_per_s",
    "cycles_per_s",
    "resident_warps",
    "launch_s",
    "host_bytes_per_s",
)
_MEMORY, _L2, _L2_RATE, _CYCLES, _WARPS, _LAUNCH, _HOST_RATE, _BATCH = range(8)


class DeviceLaw(NamedTuple):
    """Everything that the cost of a task's devices depends on.

    Attributes:
        law: `NETWORK`, `ROOFLINE`, or `PAPER`, which tells the phases of a device only (`phases_ms`).
        width: column of a load that the all-to-all carries.
        tables: column of a load that counts tables.
        own_ms: per unit of a device's own width.
        total_ms: per unit of all devices' width together.
        fixed_ms: whatever is placed.
        curves: `[4, G]` milliseconds at points that are equally spaced in logarithms.
        hidden_weight: `[X, P H]` of the network, as the arrays below; unused by the roofline.
        hidden_bias: `[P H]`.
        output_weight: `[P, H]`.
        scale_ms: `[P]`; of the paper's network, biases of its outputs.
        launch_ms: `[2]` of a device with tables, forward and backward.
        figures: of the accelerator; of the paper's network, the latent of an empty device.
    """

    law: int
    width: int
    tables: int
    own_ms: float
    total_ms: float
    fixed_ms: float
    curves: Floats
    hidden_weight: Floats
    hidden_bias: Floats
    output_weight: Floats
    scale_ms: Floats
    launch_ms: Floats
    figures: Floats


def curve_points() -> Floats:
    """Values at which curves are given."""
    return _CURVE_VALUES.copy()


def network_law(weights: formula.StructuredWeights, num_devices: int, curves: Floats) -> DeviceLaw:
    """The mean of a structured network's members; `curves` lacks the all-to-all, which its weights have."""
    layout = weights.layout

    def array(value: Any) -> Floats:
        return np.ascontiguousarray(value.detach().double().numpy())

    scale = np.tile(array(weights.scale_ms), layout.members) / layout.members  # [P]
    launch = np.log1p(np.exp(array(weights.launch)))
    latency, own, largest, received = array(weights.comm_ms).sum(axis=0)
    share = (num_devices - 1) / num_devices
    curves = curves.copy()
    curves[ALL_TO_ALL] = largest * share * curve_points()
    return DeviceLaw(
        law=NETWORK,
        width=layout.size + layout.dims,
        tables=layout.size + layout.count,
        own_ms=float(own * share - received / num_devices),
        total_ms=float(received / num_devices),
        fixed_ms=float(latency),
        curves=curves,
        hidden_weight=np.ascontiguousarray(array(weights.hidden_weight).transpose(1, 0, 2)).reshape(
            formula.CORRECTION_INPUTS, -1
        ),
        hidden_bias=array(weights.hidden_bias).reshape(-1),
        output_weight=array(weights.output_weight) / formula.BOUND,
        scale_ms=scale,
        launch_ms=(launch * scale).reshape(-1, 2).sum(axis=0),
        figures=np.zeros(0),
    )


def roofline_law(spec: AcceleratorSpec, batch_size: int, curves: Floats) -> DeviceLaw:
    """The roofline of an accelerator."""
    figures = [
        spec.memory_bytes_per_s,
        spec.l2_bytes,
        spec.l2_bytes_per_s,
        spec.num_sms * spec.clock_hz,
        spec.resident_warps,
        spec.launch_s,
        kernels.HOST_LINK_SHARE * spec.host_bytes_per_s if spec.host_bytes_per_s else math.nan,
        batch_size,
    ]
    none = np.zeros((1, 1))
    return DeviceLaw(
        ROOFLINE,
        loads.DIM,
        loads.COUNT,
        0.0,
        0.0,
        0.0,
        curves,
        none,
        none[0],
        none,
        none[0],
        np.zeros(2),
        np.array(figures, np.float64),
    )


@jit
def curve_ms(curves: Floats, kind: int, value: float) -> float:
    """Milliseconds of a collective: linear between points, 0 for nothing."""
    if value <= 0:
        return 0.0
    at = (math.log(value) - _LOG_FIRST) / _LOG_STEP
    if at <= 0:
        return curves[kind, 0]
    low = min(int(at), CURVE_POINTS - 2)
    part = (value - _CURVE_VALUES[low]) / (_CURVE_VALUES[low + 1] - _CURVE_VALUES[low])
    return curves[kind, low] + part * (curves[kind, low + 1] - curves[kind, low])


@jit
def compute_phases_ms(law: DeviceLaw, load: Floats) -> tuple[float, float]:
    """Forward and backward compute of a device; 0 if it is empty."""
    if load[law.tables] < 0.5:
        return 0.0, 0.0
    if law.law == NETWORK:
        return _network_ms(law, load)
    return 1e3 * _forward_s(law.figures, load), 1e3 * _backward_s(law.figures, load)


@jit
def compute_ms(law: DeviceLaw, load: Floats) -> float:
    """Both of `compute_phases_ms`."""
    forward, backward = compute_phases_ms(law, load)
    return forward + backward


@jit
def computes_ms(law: DeviceLaw, loads: Floats) -> Floats:
    """`[N, 2]` `compute_phases_ms` of loads `[N, L]`."""
    found = np.empty((len(loads), 2))
    for n in range(len(loads)):
        found[n, 0], found[n, 1] = compute_phases_ms(law, loads[n])
    return found


@jit
def device_ms(law: DeviceLaw, load: Floats) -> float:
    """What a device adds on its own: compute, and its own share of the all-to-all."""
    return compute_ms(law, load) + law.own_ms * load[law.width]


@jit
def phases_ms(law: DeviceLaw, load: Floats, found: Floats) -> None:
    """Write forward compute, backward compute and one all-to-all of a device, as if it were the widest, to `found` `[3]`."""
    if law.law == PAPER:
        _paper_heads_ms(law, load, found)
        return
    found[0], found[1] = compute_phases_ms(law, load)
    width = load[law.width]
    found[2] = 0.5 * (law.fixed_ms + law.own_ms * width + curve_ms(law.curves, ALL_TO_ALL, width))


@jit
def first_ms(law: DeviceLaw, loads: Floats) -> Floats:
    """`[T]` cost of each table on the first of empty devices: all phases, or the three heads of the paper's network."""
    found, costs = np.empty(3), np.empty(len(loads))
    for t in range(len(loads)):
        phases_ms(law, loads[t], found)
        exchanges = 1.0 if law.law == PAPER else 2.0
        costs[t] = found[0] + found[1] + exchanges * found[2] + law.total_ms * loads[t, law.width]
    return costs


@jit
def _paper_heads_ms(law: DeviceLaw, load: Floats, found: Floats) -> None:
    """The heads of the paper's network; the last column of a load counts its tables."""
    heads, hidden = law.output_weight.shape
    latent = load if load[law.tables] >= 0.5 else law.figures
    units = law.hidden_bias.copy()
    for x in range(len(law.figures)):
        for unit in range(heads * hidden):
            units[unit] += latent[x] * law.hidden_weight[x, unit]
    for head in range(heads):
        found[head] = law.scale_ms[head]
        for h in range(hidden):
            found[head] += max(units[head * hidden + h], 0.0) * law.output_weight[head, h]


@jit
def _network_ms(law: DeviceLaw, load: Floats) -> tuple[float, float]:
    """Forward and backward, means of the members; pairs of a member and a phase are the rows of every weight."""
    pairs, hidden = law.output_weight.shape
    size, units = len(load), law.hidden_bias.copy()
    shared = np.empty(6)
    for i in range(4):
        column = size - 1 if i == 0 else size - 5 + i  # count, distinct, dims, lookups
        shared[i] = 0.5 * math.log(max(load[column], 0.0) + formula.LEAST_SUM)
    shared[0] -= formula.COUNT_SHIFT
    shared[4], shared[5] = min(max(load[size - 6], 0.0), 1.0), min(max(load[size - 5], 0.0), 1.0)
    for x in range(6):  # over all pairs at once, so that the loop becomes vector instructions
        for unit in range(pairs * hidden):
            units[unit] += shared[x] * law.hidden_weight[2 + x, unit]
    forward, backward = law.launch_ms[0], law.launch_ms[1]
    for p in range(pairs):
        work, square = max(load[p], 0.0), max(load[pairs + p], 0.0)
        log_work = 0.5 * math.log(work + formula.LEAST_WORK)
        concentration = 2 * math.sqrt(square + formula.LEAST_SQUARE) / (work + formula.LEAST_WORK)
        output = 0.0
        for h in range(hidden):
            unit = p * hidden + h
            value = units[unit] + log_work * law.hidden_weight[0, unit] + concentration * law.hidden_weight[1, unit]
            output += max(value, 0.0) * law.output_weight[p, h]
        if p % 2:
            backward += work * _correction(output) * law.scale_ms[p]
        else:
            forward += work * _correction(output) * law.scale_ms[p]
    return forward, backward


_REACH, _POINTS = 8.0, 16_384
_CORRECTIONS = np.exp(formula.BOUND * np.tanh(np.linspace(-_REACH, _REACH, _POINTS + 1)))


@jit
def _correction(output: float) -> float:
    """`exp(BOUND * tanh(output))` by a table, linear between points: to 1e-7."""
    at = (min(max(output, -_REACH), _REACH) + _REACH) * (_POINTS / (2 * _REACH))
    low = min(int(at), _POINTS - 1)
    return _CORRECTIONS[low] + (at - low) * (_CORRECTIONS[low + 1] - _CORRECTIONS[low])


@jit
def _forward_s(figures: Floats, load: Floats) -> float:
    """`kernels.forward_call_s`, with the prefetch of cached tables."""
    batch, count = figures[_BATCH], load[loads.COUNT]
    share = _in_flight(figures, count)
    again = served = hotter = 0.0
    for j in range(loads.AGAIN_BYTES - loads.HOT_BYTES):
        hot = load[loads.HOT_BYTES + j] * share
        kept = min(max((figures[_L2] - hotter) / max(hot, 1.0), 0.0), 1.0)
        again += load[loads.AGAIN_BYTES + j]
        served += load[loads.AGAIN_BYTES + j] * kept
        hotter += hot
    memory_bytes = load[loads.STREAM_BYTES] + load[loads.FIRST_BYTES] + again - served
    memory_s = memory_bytes / (kernels.BANDWIDTH_SHARE * figures[_MEMORY])
    warps_s = _warps_s(figures, load, load[loads.STREAM_BYTES] + load[loads.READ_BYTES])
    seconds = max(memory_s, warps_s) / _filled(figures, batch * count) + kernels.FORWARD_KERNELS * figures[_LAUNCH]
    seconds = _beside_host(seconds, kernels.HOST_FORWARD_LAUNCHES * figures[_LAUNCH])
    if len(load) > loads.CACHED_LOOKUPS and load[loads.CACHED_LOOKUPS] > 0:
        moved = max(load[loads.HOST_READ_BYTES], load[loads.HOST_WRITTEN_BYTES]) / figures[_HOST_RATE]
        sorted_bytes = load[loads.CACHED_LOOKUPS] * (kernels.PREPARE_BYTES + kernels.SORT_PAIR_BYTES * _passes(load))
        seconds += (
            moved
            + sorted_bytes / (kernels.BANDWIDTH_SHARE * figures[_MEMORY])
            + kernels.PREFETCH_KERNELS * figures[_LAUNCH]
        )
    return seconds


@jit
def _backward_s(figures: Floats, load: Floats) -> float:
    """`kernels.backward_call_s`, with dense optimizers and state in host memory."""
    passes, lookups = _passes(load), load[loads.LOOKUPS]
    sort_s = (
        lookups
        * (kernels.PREPARE_BYTES + kernels.SORT_PAIR_BYTES * passes)
        / (kernels.BANDWIDTH_SHARE * figures[_MEMORY])
    )
    sort_s /= _filled(figures, lookups / 32)
    in_flight = load[loads.GRAD_BYTES] * _in_flight(figures, load[loads.COUNT])
    kept = min(figures[_L2] / max(in_flight, 1.0), 1.0)
    grads_again = max(load[loads.GRAD_READ_BYTES] - load[loads.GRAD_BYTES], 0.0) * (1 - kept)
    read_s = (load[loads.GRAD_BYTES] + grads_again) / (kernels.BANDWIDTH_SHARE * figures[_MEMORY])
    memory_s = read_s + load[loads.UPDATE_BYTES] / (kernels.UPDATE_SHARE * figures[_MEMORY])
    warps_s = _warps_s(figures, load, load[loads.GRAD_READ_BYTES] + load[loads.UPDATE_BYTES])
    update_s = max(memory_s, warps_s) / _filled(figures, load[loads.UNIQUE] + lookups / kernels.SEGMENT)
    seconds = sort_s + update_s + (kernels.BACKWARD_KERNELS + passes) * figures[_LAUNCH]
    seconds = _beside_host(seconds, kernels.HOST_BACKWARD_LAUNCHES * figures[_LAUNCH])
    if len(load) > loads.DENSE_BYTES:
        if load[loads.DENSE_BYTES] > 0:
            seconds += (
                load[loads.DENSE_BYTES] / (kernels.STREAM_SHARE * figures[_MEMORY])
                + kernels.DENSE_KERNELS * figures[_LAUNCH]
            )
        if load[loads.HOST_STATE_BYTES] > 0:
            seconds += load[loads.HOST_STATE_BYTES] / figures[_HOST_RATE]
    return seconds


@jit
def _passes(load: Floats) -> float:
    return math.ceil(math.log2(max(load[loads.ROWS], 2.0)) / kernels.RADIX_BITS)


@jit
def _in_flight(figures: Floats, count: float) -> float:
    return min((2 + figures[_WARPS] / figures[_BATCH]) / max(count, 1.0), 1.0)


@jit
def _warps_s(figures: Floats, load: Floats, cache_bytes: float) -> float:
    group = 2 if load[loads.ABOVE_64] > 0.5 else (1 if load[loads.ABOVE_32] > 0.5 else 0)
    steps_s = load[loads.STEPS + group] * kernels.STEP_CYCLES / figures[_CYCLES]
    return steps_s + cache_bytes / (kernels.CACHE_SHARE * figures[_L2_RATE])


@jit
def _filled(figures: Floats, warps: float) -> float:
    return 1 - math.exp(-max(warps, 1.0) / (kernels.WAVES_TO_FILL * figures[_WARPS]))


@jit
def _beside_host(kernels_s: float, host_s: float) -> float:
    squared, host_squared = kernels_s * kernels_s, host_s * host_s
    return math.sqrt(math.sqrt(squared * squared + host_squared * host_squared))
