"""The cost of a device as a compiled function of its summed loads: by a network, or by the roofline.

Every cost model that searches is one of two laws with arrays of its own, so that one compiled search serves both:

    overall = max over devices (compute(loads) + width_ms x width + before_ms x width of the device before)
              + fixed + total_ms x all widths + pair_ms x width of the widest two neighbours + curves

The curves are milliseconds of collectives that all devices wait for: the all-to-all by its widest device, the exchanges of
row-wise tables, the all-reduce of copies, the exchanges within and between hosts.

Numbers are float64 and functions are libm's, so that results are the same with and without compilation.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dreamshard.hardware import roofline
from dreamshard.hardware.accelerator import AcceleratorSpec
from dreamshard.hardware.roofline import Floats as Floats, copy_into as copy_into, inlined as inlined, jit as jit

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
NETWORK, ROOFLINE, PAPER = 0, 1, 2
ALL_TO_ALL, ROWS, COPIES, HOSTS = range(4)
"""Curves: by width, dims of row-wise tables, bytes of copies' gradients, dims of tables on one host."""
NUM_CURVES, TRAFFIC = 4, (ROWS, COPIES, HOSTS)
"""A load may end with the traffic of these: curve `kind` is by column `kind - NUM_CURVES`."""
_LOGS = np.linspace(-4, 47, 1024)
CURVE_VALUES = np.exp(_LOGS)
"""Values at which curves are given, equally spaced in logarithms: from 0.02 to 3e20."""

# Columns of the structured network's loads: work of each phase by resource, and these
PLAIN, SQUARES, WIDE, DISTINCT, DIMS, TABLES = 4, 6, 8, 10, 11, 12
"""Plain work by phase, squared other work by phase, tables wider than each of `WIDE_DIMS`, hundreds of distinct weights per
sample, hundreds of dims, tables."""
SUMS = (TABLES, DISTINCT)
"""Whose logarithms count besides those of work."""
WIDE_DIMS = (32.5, 64.5)  # dims above which the fused operator gives a row 16 and 32 threads
LEAST = 1e-3  # added to a sum before its logarithm, or its square to a sum of squares

_UNUSED = np.zeros((1, 1))


class NetworkLaw(NamedTuple):
    """Compute of a device by the structured network; `X` inputs as in `network_ms`.

    Attributes:
        scale_ms: `[2]` per unit of work, forward and backward.
        launch: `[2]` work of a device with tables.
        power: `[2]` of the norm over a phase's resources.
        centre: `[4, X]` mean inputs of each resource.
        exponent: `[4, X, 2]` of each input below and above its mean.
    """

    scale_ms: Floats = _UNUSED[0]
    launch: Floats = _UNUSED[0]
    power: Floats = _UNUSED[0]
    centre: Floats = _UNUSED
    exponent: Floats = _UNUSED[None]


class PaperLaw(NamedTuple):
    """Heads of the paper's network, `P` of them, of hidden size `H`, on latents of size `X`.

    Attributes:
        hidden_weight: `[X, P H]`.
        hidden_bias: `[P H]`.
        output_weight: `[P H, P]`.
        output_bias: `[P]`.
        empty: `[X]` latent of an empty device.
    """

    hidden_weight: Floats = _UNUSED
    hidden_bias: Floats = _UNUSED[0]
    output_weight: Floats = _UNUSED
    output_bias: Floats = _UNUSED[0]
    empty: Floats = _UNUSED[0]


class DeviceLaw(NamedTuple):
    """Everything that the cost of a task's devices depends on.

    Attributes:
        kind: `NETWORK`, `ROOFLINE`, or `PAPER`, which tells the phases of a device only (`policy_costs_ms`).
        width: column of a load that the all-to-all carries.
        tables: column of a load that counts tables.
        curves: `[4, G]` milliseconds at `CURVE_VALUES`; unused by a `PAPER`.
        width_ms: per unit of the width of a device itself.
        before_ms: per unit of the width of the device before it, in a ring.
        pair_ms: per unit of the width of the two neighbours that are widest together.
        total_ms: per unit of all devices' width together.
        fixed_ms: whatever is placed.
        network: of a `NETWORK`, as `figures` of an accelerator are of a `ROOFLINE`, and `paper` of a `PAPER`.
    """

    kind: int
    width: int
    tables: int
    curves: Floats = _UNUSED
    width_ms: float = 0.0
    before_ms: float = 0.0
    pair_ms: float = 0.0
    total_ms: float = 0.0
    fixed_ms: float = 0.0
    network: NetworkLaw = NetworkLaw()
    figures: Floats = _UNUSED[0]
    paper: PaperLaw = PaperLaw()


def roofline_law(spec: AcceleratorSpec, batch_size: int, curves: Floats, total_ms: float) -> DeviceLaw:
    """The roofline of an accelerator."""
    figures = roofline.figures_of(spec, batch_size)
    return DeviceLaw(ROOFLINE, roofline.DIM, roofline.COUNT, curves, total_ms=total_ms, figures=figures)


@jit
def curve_ms(curves: Floats, kind: int, value: float) -> float:
    """Milliseconds of a collective: linear between points, 0 for nothing."""
    if value <= 0:
        return 0.0
    at = (math.log(value) - _LOGS[0]) / (_LOGS[1] - _LOGS[0])
    if at <= 0:
        return curves[kind, 0]
    low = min(int(at), len(_LOGS) - 2)
    part = (value - CURVE_VALUES[low]) / (CURVE_VALUES[low + 1] - CURVE_VALUES[low])
    return curves[kind, low] + part * (curves[kind, low + 1] - curves[kind, low])


@inlined
def compute_phases_ms(law: DeviceLaw, load: Floats) -> tuple[float, float]:
    """Forward and backward compute of a device; 0 if it is empty."""
    if load[law.tables] < 0.5:
        return 0.0, 0.0
    if law.kind == NETWORK:
        return network_ms(law.network, load)
    return 1e3 * roofline.forward_s(law.figures, load), 1e3 * roofline.backward_s(law.figures, load)


@jit
def computes_ms(law: DeviceLaw, loads: Floats) -> Floats:
    """`[N, 2]` `compute_phases_ms` of loads `[N, L]`."""
    times_ms = np.empty((len(loads), 2))
    for n in range(len(loads)):
        times_ms[n, 0], times_ms[n, 1] = compute_phases_ms(law, loads[n])
    return times_ms


@inlined
def device_ms(law: DeviceLaw, load: Floats) -> float:
    """The device's own part, without what it waits for its neighbour: compute, and its own share of the all-to-all."""
    exchange_ms = law.width_ms * load[law.width]
    forward, backward = compute_phases_ms(law, load)
    return forward + backward + exchange_ms


@jit
def linear(inputs: Floats, weight: Floats, bias: Floats) -> Floats:
    """`[Y]` a linear layer of `[X]`, by `weight` `[X, Y]`; most inputs are 0 after ReLU."""
    outputs = bias.copy()
    for x in range(len(inputs)):
        if inputs[x] != 0:
            for y in range(len(outputs)):
                outputs[y] += inputs[x] * weight[x, y]
    return outputs


@jit
def policy_costs_ms(law: DeviceLaw, load: Floats, result: Floats) -> None:
    """Write forward compute, backward compute and one all-to-all of a device, as if it were the widest, to `result` `[3]`."""
    if law.kind == PAPER:
        heads, latent = law.paper, load[: law.tables] if load[law.tables] >= 0.5 else law.paper.empty
        hidden = np.maximum(linear(latent, heads.hidden_weight, heads.hidden_bias), 0.0)
        result[:] = 0.0
        copy_into(result, linear(hidden, heads.output_weight, heads.output_bias))
        return
    result[0], result[1] = compute_phases_ms(law, load)
    width = load[law.width]
    result[2] = 0.5 * (law.fixed_ms + (law.width_ms + law.pair_ms) * width + curve_ms(law.curves, ALL_TO_ALL, width))


@jit
def first_ms(law: DeviceLaw, loads: Floats) -> Floats:
    """`[T]` cost of each table on the first of empty devices: all phases, or the three heads of the paper's network."""
    phases, costs = np.empty(3), np.empty(len(loads))
    for t in range(len(loads)):
        policy_costs_ms(law, loads[t], phases)
        exchanges = 1.0 if law.kind == PAPER else 2.0
        costs[t] = phases[0] + phases[1] + exchanges * phases[2] + law.total_ms * loads[t, law.width]
    return costs


@inlined
def _factor(network: NetworkLaw, resource: int, x: int, value: float) -> float:
    """Logarithm of the factor by which input `x` changes what a resource takes."""
    away = value - network.centre[resource, x]
    return away * (network.exponent[resource, x, 1] if away > 0 else network.exponent[resource, x, 0])


@inlined
def _resource(
    network: NetworkLaw, load: Floats, resource: int, inputs: tuple[float, float, float, float, float]
) -> float:
    """Logarithm of what a resource takes, by the inputs besides its own work."""
    work = math.log(max(load[resource], 0.0) + LEAST)
    norm, tables, distinct, wide, wider = inputs
    crowding = _factor(network, resource, 2, tables) + _factor(network, resource, 3, distinct)
    width = _factor(network, resource, 4, wide) + _factor(network, resource, 5, wider)
    own = _factor(network, resource, 0, work) + _factor(network, resource, 1, norm)
    return network.centre[resource, 0] + own + crowding + width


@inlined
def network_ms(network: NetworkLaw, load: Floats) -> tuple[float, float]:
    """Forward and backward compute of a device with tables: plain work, and products of powers of its sums."""
    tables, distinct = math.log(max(load[TABLES], 0.0) + LEAST), math.log(max(load[DISTINCT], 0.0) + LEAST)
    wide, wider = min(max(load[WIDE], 0.0), 1.0), min(max(load[WIDE + 1], 0.0), 1.0)
    forward = backward = 0.0
    for phase in range(2):
        norm = 0.5 * math.log(max(load[SQUARES + phase], 0.0) + LEAST**2)
        inputs = norm, tables, distinct, wide, wider
        one, other = _resource(network, load, 2 * phase, inputs), _resource(network, load, 2 * phase + 1, inputs)
        most, least, power = max(one, other), min(one, other), network.power[phase]
        crowded = math.exp(most + math.log(1 + math.exp(power * (least - most))) / power)
        work = network.launch[phase] + max(load[PLAIN + phase], 0.0) + crowded
        forward, backward = backward, network.scale_ms[phase] * work
    return forward, backward
