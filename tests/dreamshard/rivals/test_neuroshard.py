import pytest
import torch

from dreamshard.cost_model import Normaliser, StructuredCostNetwork
from dreamshard.placer import NoPlacementError
from dreamshard.rivals.neuroshard import NeuroShardPlacer
from dreamshard.shards import violation
from dreamshard.tasks import PlacementTask
from tests.helpers.tables import tables_of, task_of
from tests.helpers.trained import learnt

PLENTY = 2**30


def plain(tables, ms_per_widest_hundred_dims=0.0):
    """Each compute phase costs `pooling x dim / 100` ms per table, each all-to-all so much per 100 dims of the widest
    device, times the share that leaves it."""
    normaliser = Normaliser.fit(tables)
    network = StructuredCostNetwork(normaliser)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
        network.price[0::2, -4:] = 0.01  # of lookups times dim
        network.power.fill_(1.0)
        network.exponent[:, 0] = 1.0
        network.exchanges.fitted_ms = torch.tensor([[0.0, 0.0, ms_per_widest_hundred_dims, 0.0]] * 2)
        network.exchanges.batch_size += 1
    return network, normaliser


def learnt_rival():
    return NeuroShardPlacer(learnt().cost_network, learnt().normaliser)


def test_a_limit_on_dims_separates_wide_tables_on_slow_links():
    task = PlacementTask(tables_of([100, 100, 100], [4, 64, 64], [32.0, 1.0, 1.0]), 2, PLENTY)
    placed = NeuroShardPlacer(*plain(task.tables, 20.0), columns=False).place(task)
    _, wide, other = placed.device.tolist()
    assert wide != other  # 128 + 64 | 64 at dims 68 | 64, within 1.5 times the mean of 66


def test_a_table_with_all_the_work_is_split_by_columns():
    task = PlacementTask(tables_of([100, 100], [64, 4], [50.0, 0.1]), 4, PLENTY)
    placed = NeuroShardPlacer(*plain(task.tables)).place(task)
    wide = placed.tables[0]
    assert [end - start for start, end in wide.columns] == [16, 16, 16, 16]
    assert sorted(wide.where) == [0, 1, 2, 3]
    assert not violation(task, placed)
    assert NeuroShardPlacer(*plain(task.tables), columns=False).place(task).is_whole


def test_memory_too_tight_for_greedy_falls_back_to_packing():
    packs = task_of([3, 3, 2, 2, 2], 2, 6)  # 3 + 3 | 2 + 2 + 2 alone
    assert not violation(packs, learnt_rival().place(packs))
    with pytest.raises(NoPlacementError):
        learnt_rival().place(task_of([3, 3, 3], 2, 5))
