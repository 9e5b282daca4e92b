"""A task of five tables on two hosts of two devices, and a placement of it in every way to shard but by columns alone."""

from dreamshard.constraints import Constraints
from dreamshard.placement import SHARDING_TYPES, Placement, TableSharding
from dreamshard.tasks import PlacementTask
from tests.helpers.tables import tables_of

FOUR_DEVICES_ON_TWO_HOSTS = Placement(
    (
        TableSharding("row_wise"),
        TableSharding("data_parallel"),
        TableSharding("grid_shard", columns=((0, 16), (16, 32)), where=(0, 1)),
        TableSharding("table_wise", where=(2,)),
        TableSharding("table_row_wise", where=(1,), cached_share=0.5),
    ),
    4,
    2,
)


def sharded_task(**options) -> PlacementTask:
    """The task, whose tables may be sharded in every way; `options` are other fields of it."""
    rows, unique_rows, pooling = [100, 10, 33, 7, 1000], [50, 10, 30, 7, 300], [2.0, 1.0, 3.0, 1.0, 4.0]
    tables = tables_of(rows, [16, 8, 32, 4, 8], pooling, names="abcde", batch_size=100, unique_rows=unique_rows)
    options = {"constraints": Constraints(sharding_types=SHARDING_TYPES, caching=True), **options}
    return PlacementTask(tables, 4, 100_000, devices_per_host=2, **options)
