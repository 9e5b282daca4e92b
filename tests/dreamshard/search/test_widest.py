"""Tables wider than fbgemm's kernels take."""

import pytest

from dreamshard.constraints import ANY_SHARDING, Constraints
from dreamshard.hardware.accelerator import hardware
from dreamshard.placer import NoPlacementError
from dreamshard.search import RooflinePlacer
from dreamshard.shards import Shards
from dreamshard.tasks import PlacementTask
from tests.helpers.tables import tables_of_dims


@pytest.mark.parametrize("constraints", [Constraints(), ANY_SHARDING])
def test_wide_tables_are_split_into_shards_that_kernels_take(constraints):
    task = PlacementTask(tables_of_dims([2048, 64, 64], rows=1000), 2, 2**30, constraints=constraints)
    shards = Shards.of(task, RooflinePlacer(hardware("a100")).place(task, 1.0))
    assert int(shards.num_columns.max()) <= 1024


def test_wide_tables_that_may_not_be_split_are_refused():
    task = PlacementTask(tables_of_dims([2048, 64]), 2, 2**40, constraints=Constraints(sharding_types=("table_wise",)))
    with pytest.raises(NoPlacementError):
        RooflinePlacer(hardware("a100")).place(task)
