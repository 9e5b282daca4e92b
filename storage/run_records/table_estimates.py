"""What each table of a version's dataset costs alone on a device, by the version's cost network.

    <lake>/table_estimates/<training>.<iteration>.parquet

The view `table_costs` shows them for tables that were never measured alone. They are written when a version is registered.
"""

from collections.abc import Mapping

import pyarrow as pa

from dreamshard.search import DreamShardPlacer
from storage.filesystem import AnyPath
from storage.lake import rows, schemas
from storage.lake.parquet_files import write_parquet
from storage.mlflow_store.registry import load_placer
from storage.run_records import lineage
from storage.store import Store


def write_estimates(store: Store, version: str, tags: Mapping[str, str]) -> None:
    """Estimate the tables of a version, unless that is done.

    Args:
        tags: of the version.

    Raises:
        ValueError: its files or its dataset cannot be read.
    """
    path = _path(store, tags)
    if path.exists():
        return
    placer = load_placer(version, store.settings)
    if not isinstance(placer, DreamShardPlacer):  # AutoShard predicts forward and backward compute as one
        return
    measured = placer.cost_network.measured_on or lineage.measured_on(tags)
    if measured is None:
        return
    tables, setting = store.lake.read_dataset(tags["dataset"]), measured.setting
    forward, backward = placer.alone_ms(tables).double().unbind(dim=1)
    columns = {
        "table_name": list(tables.names),
        "lookups_file": [rows.lookups_file(tables.select([t])) for t in range(len(tables))],
        "forward_compute_ms": forward.numpy(),
        "backward_compute_ms": backward.numpy(),
    }
    facts = {
        **{"dataset_version": tags["dataset"], "testbed": measured.testbed, "hardware": measured.hardware},
        **{"precision": setting.precision, "optimizer": setting.optimizer, "batch_size": setting.batch_size},
        **{"training": tags["training"], "iteration": int(tags["iteration"]), "created_at": rows.now()},
    }
    arrays = [
        pa.array(columns[field.name] if field.name in columns else [facts[field.name]] * len(tables), field.type)
        for field in schemas.TABLE_ESTIMATES
    ]
    write_parquet(path, pa.Table.from_arrays(arrays, schema=schemas.TABLE_ESTIMATES))


def _path(store: Store, tags: Mapping[str, str]) -> AnyPath:
    name = f"{tags['training']}.{int(tags['iteration']):04}.parquet"
    return store.settings.lake_root / "table_estimates" / name
