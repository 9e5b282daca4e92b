"""Costs of single shards in the lake: what was measured before is read instead of measured again.

    shard_costs/hardware=<h>/<key>.<repeats>.parquet

The name of a file is the content of everything its costs depend on, so looking a shard up opens at most one file, and
writing the same again changes nothing. Two measurements of one shard are kept if they differ in repeats.
"""

import json
from dataclasses import asdict, dataclass, fields

import pyarrow as pa

from dreamshard.testbeds.shard_cache import ShardKey, ShardTiming
from storage.filesystem import Place, files
from storage.lake import schemas
from storage.lake.parquet_files import partition, read, write
from storage.lake.rows import now


@dataclass(frozen=True)
class LakeShardCache:
    """A `ShardCache` over the lake; picklable, so that a rank in another process can use it.

    Attributes:
        root: of the lake.
    """

    root: Place

    def get(self, key: ShardKey) -> ShardTiming | None:
        """The costs of most repeats that were kept under `key`; None where there are none.

        Raises:
            ValueError: a file cannot be read.
        """
        found = files(self._folder(key), f"{key.content}.*.parquet")
        if not found:
            return None
        row = read(max(found, key=_repeats)).to_pylist()[0]
        return ShardTiming(**{field.name: row[field.name] for field in fields(ShardTiming)})

    def put(self, key: ShardKey, costs: ShardTiming) -> None:
        """Keep the costs, unless those of as many repeats are there."""
        path = self._folder(key) / f"{key.content}.{costs.repeats:06}.parquet"
        if path.exists():
            return
        row = asdict(key) | asdict(costs) | {"key": key.content, "created_at": now()}
        row["versions"] = json.dumps(dict(key.versions), sort_keys=True)
        write(path, pa.Table.from_pylist([row], schema=schemas.SHARD_COSTS))

    def _folder(self, key: ShardKey) -> Place:
        return partition(self.root / "shard_costs", hardware=key.hardware)


def _repeats(path: Place) -> int:
    return int(path.name.split(".")[1])
