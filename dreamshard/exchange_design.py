"""Which all-to-alls to measure, so that a few dozen of them describe the links of some hardware.

Sizes and numbers of devices are from fixed grids, so that trainings with other tasks ask for mostly the same exchanges.
"""

from collections.abc import Iterable, Sequence

import torch

from dreamshard.costs import Exchange
from dreamshard.hardware.links import VECTOR_BYTES
from dreamshard.tasks import PlacementTask

_LEAST_BYTES = 2**14  # a device sends: below, latency alone counts
_STEP = 4  # from one size to the next
_UNEQUAL = 4  # times as many bytes from one device as from the others
_UNEQUAL_SIZES = 2  # the largest ones
_HEADROOM = 2  # of the largest exchange over a balanced placement's


def device_counts(num_devices: int) -> list[int]:
    """Powers of two below `num_devices`, and `num_devices`; none below 2."""
    smaller = [2**power for power in range(1, num_devices.bit_length()) if 2**power < num_devices]
    return [*smaller, num_devices] if num_devices > 1 else []


def exchanges_for(tasks: Sequence[PlacementTask], batch_size: int, more_devices: Iterable[int] = ()) -> list[Exchange]:
    """Exchanges that describe the links for placements of tasks.

    Of powers of two devices up to the tasks' own, and `more_devices`; up to twice the bytes of balanced placements.
    """
    designed = []
    for hosts in sorted({task.devices_per_host for task in tasks}, key=lambda hosts: hosts or 0):
        own = [task for task in tasks if task.devices_per_host == hosts]
        counts = {*device_counts(max(task.num_devices for task in own)), *more_devices}
        widest = max(int(task.tables.dim.sum()) / task.num_devices for task in own)
        designed += designed_exchanges(counts, hosts, round(_HEADROOM * widest * VECTOR_BYTES * batch_size))
    return designed


def designed_exchanges(counts: Iterable[int], devices_per_host: int | None, most_bytes: int) -> list[Exchange]:
    """Exchanges of each number of devices in equal parts up to `most_bytes` or more, and two in unequal parts.

    Args:
        counts: of devices.
        devices_per_host: None for as many as the hardware has.
        most_bytes: that a device sends in the largest exchange that matters.
    """
    sizes = [_LEAST_BYTES]
    while sizes[-1] < most_bytes:
        sizes.append(_STEP * sizes[-1])
    designed = []
    for count in sorted(set(counts)):
        equal = [torch.full((count,), size, dtype=torch.int64) for size in sizes]
        unequal = [sent // torch.where(torch.arange(count) == 0, 1, _UNEQUAL) for sent in equal[-_UNEQUAL_SIZES:]]
        designed += [Exchange(sent_bytes=sent, devices_per_host=devices_per_host) for sent in equal + unequal]
    return designed
