"""Long simulated annealing on the *true* cost of a law: the reference for placements.

It is no placer, since it queries the true cost millions of times.
"""

import numba
import numpy as np

from dreamshard.cost_model.compiled import Floats
from dreamshard.search.packing import baselines
from dreamshard.tasks import PlacementTask
from tests.helpers.laws import Law, links

CHAINS, HOT, COLD = 6, 4e-2, 1e-4
"""First and last temperature, relative to the cost of the start."""


def annealed_ms(law: Law, task: PlacementTask, moves: int = 300_000) -> float:
    """The lowest true cost of moves and swaps of whole tables from the best heuristic, in several chains.

    Raises:
        NoPlacementError: no placement of whole tables is known.
    """
    starts = [placer.place(task) for placer in baselines().values()]
    start = min(starts, key=lambda placement: law.true_ms(task, placement)).device.numpy()
    sizes, capacity = task.table_bytes.numpy(), task.capacity_bytes.numpy()
    arguments = law.loads(task.tables), links(task.num_devices), sizes, capacity, law.waits, moves
    return min(_anneal(law.compute_ms, law.comm_ms, start.copy(), *arguments, seed) for seed in range(CHAINS))


@numba.njit
def _own_ms(compute_ms, load: Floats) -> float:
    if load[0] < 0.5:
        return 0.0
    forward, backward = compute_ms(load)
    return forward + backward


@numba.njit
def _anneal(compute_ms, comm_ms, device, loads, curves, sizes, capacity, waits, moves: int, seed: int) -> float:
    """One chain; of a law, the device of each table `[T]`, loads `[T, K]`, links, bytes `[T]` and capacities `[D]`."""
    np.random.seed(seed)
    num_tables, num_devices = len(loads), len(capacity)
    sums, used, own_ms = np.zeros((num_devices, loads.shape[1])), np.zeros(num_devices, np.int64), np.zeros(num_devices)
    for t in range(num_tables):
        sums[device[t]] += loads[t]
        used[device[t]] += sizes[t]
    for d in range(num_devices):
        own_ms[d] = _own_ms(compute_ms, sums[d])
    dims, comm_both_ms = sums[:, 1].copy(), np.empty((num_devices, 2))
    comm_ms(curves, dims, own_ms, comm_both_ms)
    current = best = (own_ms + comm_both_ms[:, 0] + comm_both_ms[:, 1]).max()
    hot, kept = HOT * current, np.empty((2, loads.shape[1]))
    for i in range(moves):
        out, back = np.random.randint(num_tables), -1
        if np.random.random() < 0.6:
            wanted = own_ms.argmax() if np.random.random() < 0.3 else dims.argmax()
            for _ in range(4 * num_devices):
                if device[out] == wanted:
                    break
                out = np.random.randint(num_tables)
        source, target = device[out], np.random.randint(num_devices)
        if np.random.random() < 0.6:
            back = np.random.randint(num_tables)
            target = device[back]
        grows = sizes[out] - (sizes[back] if back >= 0 else 0)
        if source == target or used[target] + grows > capacity[target] or used[source] - grows > capacity[source]:
            continue
        kept[0], kept[1], before, after = sums[source], sums[target], own_ms[source], own_ms[target]
        for c in range(loads.shape[1]):
            change = loads[out, c] - (loads[back, c] if back >= 0 else 0.0)
            sums[source, c] -= change
            sums[target, c] += change
        own_ms[source], own_ms[target] = _own_ms(compute_ms, sums[source]), _own_ms(compute_ms, sums[target])
        moved = waits or sums[source, 1] != dims[source]
        if moved:
            dims[source], dims[target] = sums[source, 1], sums[target, 1]
            comm_ms(curves, dims, own_ms, comm_both_ms)
        new = (own_ms + comm_both_ms[:, 0] + comm_both_ms[:, 1]).max()
        if new < current or np.random.random() < np.exp((current - new) / (hot * (COLD / HOT) ** (i / moves))):
            current, best = new, min(best, new)
            device[out] = target
            used[source] -= grows
            used[target] += grows
            if back >= 0:
                device[back] = source
        else:
            sums[source], sums[target], own_ms[source], own_ms[target] = kept[0], kept[1], before, after
            if moved:
                dims[source], dims[target] = sums[source, 1], sums[target, 1]
                comm_ms(curves, dims, own_ms, comm_both_ms)
    return best
