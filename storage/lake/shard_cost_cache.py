"""Costs of single shards in the lake, which are read instead of measured again.

    shard_costs/hardware=<hardware>/<key>.<repeats>.parquet

The key is the hash of everything that the costs depend on, so a look-up opens at most one file and writing the same costs
again changes nothing. Measurements of one shard with different numbers of repeats are kept side by side.
"""

import json
from dataclasses import asdict, dataclass, fields

from dreamshard.testbeds.base import ShardKey, ShardTiming
from storage.filesystem import AnyPath, list_files
from storage.lake import schemas
from storage.lake.parquet_files import hive_folder, read_parquet, write_rows
from storage.lake.rows import now


@dataclass(frozen=True)
class LakeShardCache:
    """A `ShardCache` in the lake; picklable, so that ranks in other processes can use it.

    Attributes:
        root: root of the lake.
    """

    root: AnyPath

    def get(self, key: ShardKey) -> ShardTiming | None:
        """The costs with the most repeats under `key`; None if there are none.

        Raises:
            ValueError: a file cannot be read.
        """
        paths = list_files(self._folder(key), f"{key.content}.*.parquet")
        if not paths:
            return None
        row = read_parquet(max(paths, key=lambda path: int(path.name.split(".")[1]))).to_pylist()[0]
        return ShardTiming(**{field.name: row[field.name] for field in fields(ShardTiming)})

    def put(self, key: ShardKey, costs: ShardTiming) -> None:
        """Write the costs, unless some with as many repeats exist."""
        path = self._folder(key) / f"{key.content}.{costs.repeats:06}.parquet"
        if not path.exists():
            versions = json.dumps(dict(key.versions), sort_keys=True)
            row = asdict(key) | asdict(costs) | {"key": key.content, "versions": versions, "created_at": now()}
            write_rows(path, [row], schemas.SHARD_COSTS)

    def _folder(self, key: ShardKey) -> AnyPath:
        return hive_folder(self.root / "shard_costs", hardware=key.hardware)
