"""Shards of Meta's tables by the collection's design, costed by the roofline of an accelerator."""

from dataclasses import replace
from datetime import datetime
from functools import cache
from itertools import islice

import numpy as np
import torch

from dreamshard.shard_profiling.dataset import MeasuredShard
from dreamshard.shard_profiling.design import CollectionConfig, collection_pool, planned_shards
from dreamshard.tables import Tables
from dreamshard.testbeds.accelerators.loads import table_loads
from dreamshard.testbeds.accelerators.roofline import phase_costs
from dreamshard.testbeds.accelerators.specs import H200, AcceleratorSpec
from dreamshard.workloads.meta_population import population
from dreamshard.workloads.meta_statistics import count_laws

CONFIG = CollectionConfig(sources=("meta-dlrm-2021",))


@cache
def meta_tables() -> Tables:
    """All 856 published tables, with dim 4."""
    found = population("meta-dlrm-2021")
    unique = found.rows_by_bin.sum(axis=1)
    lookups = (found.rows_by_bin @ np.asarray([law.mean for law in count_laws("meta-dlrm-2021")])).round()
    return Tables(
        tuple(f"meta-dlrm-2021/t{t:04}" for t in range(len(unique))),
        torch.from_numpy(found.rows),
        torch.full((len(unique),), 4),
        torch.from_numpy(lookups / found.batch_size),
        torch.from_numpy(found.rows_by_bin / np.maximum(unique, 1)[:, None]),
        torch.from_numpy(lookups.astype(np.int64)),
        torch.from_numpy(unique),
    )


def simulated_shards(count: int, spec: AcceleratorSpec = H200, noise: float = 0.01) -> list[MeasuredShard]:
    """The first `count` shards of the design."""
    generator = torch.Generator().manual_seed(0)
    pool, tables = collection_pool(CONFIG), meta_tables()
    shards = []
    for planned in islice(planned_shards(pool, CONFIG), count):
        chosen = tables.select([pool[t].position for t in planned.tables])
        held = replace(chosen, dim=torch.tensor(planned.dims))
        loads = table_loads(held, CONFIG.batch_size, CONFIG.precision, CONFIG.optimizer).sum(dim=0)[None]  # [1, K]
        phases = phase_costs(loads, CONFIG.batch_size, spec).phases_ms()[0]
        phases = phases * (1 + noise * torch.randn(4, generator=generator))
        shards.append(
            MeasuredShard(
                design=CONFIG.design,
                index=planned.index,
                alone_of=planned.alone_of,
                tables=held,
                batch_size=CONFIG.batch_size,
                precision=CONFIG.precision,
                optimizer=CONFIG.optimizer,
                forward_ms=float(phases[0]),
                backward_ms=float(phases[3]),
                spread_ms=0.0,
                repeats=1,
                clock="model",
                asked_bytes=None,
                free_bytes=None,
                hardware=f"simulated {spec.name}",
                versions={"torch": "2.13.0"},
                measured_at=datetime(2026, 1, 2),
            )
        )
    return shards
