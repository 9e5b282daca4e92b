from dreamshard.constraints import Constraints
from dreamshard.hardware.accelerator import PRESETS
from dreamshard.workloads.model_tables import model_tables
from dreamshard.workloads.table_list import ModelTable
from flows.placing.what_if import Cluster, what_if
from tests.helpers.tables import pool_of, tables_of

H100 = PRESETS["h100"]


def model_of(tables):
    sizes = zip(tables.names, tables.rows.tolist(), tables.dim.tolist(), strict=True)
    return model_tables([ModelTable(*each) for each in sizes], defaults=tables)


EIGHT = Cluster(called="h100", spec=H100, num_devices=8)


def test_constraints_count_on_every_cluster():
    pool = pool_of(5)
    model = model_of(pool)
    pinned = Constraints(pinned={pool.names[0]: (7,)}, memory_bytes_of=dict.fromkeys(range(4), 0))
    four = Cluster(called="h100", spec=H100, num_devices=4)
    on_eight, on_four = (what_if(model, cluster, constraints=pinned) for cluster in (EIGHT, four))
    assert on_eight["overall_ms"] > what_if(model, EIGHT)["overall_ms"]
    assert (on_four["overall_ms"], on_four["shards"]) == (None, None)
    assert on_four["infeasible"]


def test_a_table_larger_than_a_device_needs_its_rows_spread():
    huge = model_of(tables_of([5 * 10**9], dim=64))
    without = what_if(huge, EIGHT)
    assert "found no placement" in without["infeasible"]
    columns = Constraints(sharding_types=("row_wise",))
    found = what_if(model_of(tables_of([10**9], dim=64)), EIGHT, constraints=columns)
    assert found["shards"] == 8
