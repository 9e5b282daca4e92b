"""Every reader of files and requests that others write, and of a home's own files, each with valid ones to damage."""

import io
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from dreamshard.model_configs import read_configs
from dreamshard.plan import parse_plan
from dreamshard.tables import Tables
from dreamshard.tasks import PlacementTask
from dreamshard.workloads import WorkloadConfig, open_workload, read_tables
from dreamshard.workloads.lookups import Lookups, read_lookups, write_lookups
from tests.helpers.damaged_reading import Reader, json_bytes
from tests.helpers.foreign_placers import placers_and_requests
from tests.helpers.home_files import files_of_homes
from tests.helpers.tables import tables_of

_CSV = 'name,rows,dim,pooling_factor\nusers,1000,64,1.5\nitems,200,16,\n"a, b",30,4,0\n'
_TSV = "\t".join(["1", *map(str, range(13)), *(f"{c:08x}" for c in range(26))]) + "\n"
_BATCH = 16


def readers() -> dict[str, Reader]:
    """All of them by name."""
    made = [_list_csv(), _list_parquet(), _list_json(), _configs(), _dlrm(), _dlrm_gz(), _criteo(), _lookups()]
    made += [_plan(), _torchrec_plan(), _constraints(), _hardware(), _exchanges()]
    made += placers_and_requests()
    made += files_of_homes()
    return {reader.name: reader for reader in made}


def _ingested(path: Path) -> None:
    """Read a list, its lookups as ingest draws them, and the bytes that its tables take."""
    listed = read_tables(path).tables
    workload = open_workload(WorkloadConfig(source=str(path), dim=None, batch_size=_BATCH))
    for position in range(workload.num_tables):
        workload.fingerprint(position)
        workload.table(position)
    _task(listed)


def _task(tables: Tables) -> PlacementTask:
    return PlacementTask(tables, 4, 2**50)


def _list_csv() -> Reader:
    bins = ",".join(f"bin_{i}" for i in range(17))
    full = f"name,rows,dim,pooling_factor,lookups,unique_rows,{bins}\nt,100,8,2,32,9,1{',0' * 16}\n"
    features = "name,rows,dim,lookups_per_sample_by_feature\nt,100,8,1+30\n"
    return Reader("lists as CSV", ".csv", (_CSV.encode(), full.encode(), features.encode()), _ingested)


def _parquet(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


def _list_parquet() -> Reader:
    table = pa.table(
        {"name": ["a", "b", "c"], "rows": [10, 20, 30], "dim": [4, 8, 16], "pooling_factor": [1.0, None, 2.5]}
    )
    valid = tuple(
        _parquet(table, **options)
        for options in (
            {},
            {"compression": "zstd"},
            {"compression": "gzip", "use_dictionary": False},
            {"version": "1.0"},
        )
    )
    return Reader("lists as Parquet", ".parquet", valid, _ingested)


_CONFIGS = [
    {"name": "users", "num_embeddings": 1000, "embedding_dim": 64, "feature_names": ["u"], "pooling_factor": 2.0},
    {"name": "items", "num_embeddings": 50, "embedding_dim": 10, "feature_names": ["i", "j"], "data_type": "FP16"},
    {
        "name": "words",
        "num_embeddings": 50,
        "embedding_dim": 8,
        "pooling": "MEAN",
        "optimizer": "adam",
        "module_path": "m",
    },
]


def _list_json() -> Reader:
    configs = [{**each, "embedding_dim": 8} for each in _CONFIGS]
    return Reader("lists as JSON", ".json", (json_bytes(configs), json_bytes({"tables": configs})), _ingested)


def _configs() -> Reader:
    def read(path: Path) -> None:
        model = read_configs(path)
        model.task(4, 2**50, precision=None, optimizer=None)

    return Reader("configs of models", ".json", (json_bytes(_CONFIGS),), read)


def _tensors() -> tuple[bytes, ...]:
    indices, lengths = torch.tensor([4, 4, 1, 0, 9]), torch.tensor([[2, 0, 1], [0, 1, 1]])
    offsets = torch.tensor([0, 2, 2, 3, 3, 4, 5])
    saved = []
    for parts in ((indices, offsets, lengths), [indices.int(), offsets.int(), lengths.int()]):
        sink = io.BytesIO()
        torch.save(parts, sink)
        saved.append(sink.getvalue())
    return tuple(saved)


def _read_data(path: Path) -> None:
    for limit in (None, 2**20):
        workload = open_workload(WorkloadConfig(source=str(path), dim=8, batch_size=_BATCH, max_table_bytes=limit))
        for position in range(workload.num_tables):
            workload.fingerprint(position)
            workload.table(position)


def _dlrm() -> Reader:
    return Reader("lookups as .pt", ".pt", _tensors(), _read_data)


def _dlrm_gz() -> Reader:
    import gzip

    return Reader("lookups as .pt.gz", ".pt.gz", tuple(map(gzip.compress, _tensors())), _read_data)


def _criteo() -> Reader:
    import gzip

    return Reader(
        "Criteo logs", ".tsv", ((_TSV * 3).encode(), gzip.decompress(gzip.compress(_TSV.encode()))), _read_data
    )


def _lookups() -> Reader:
    def made(dtype: torch.dtype) -> bytes:
        with tempfile.NamedTemporaryFile(suffix=".parquet") as file:
            write_lookups(file.name, Lookups(torch.tensor([4, 4, 1, 0, 9], dtype=dtype), torch.tensor([0, 2, 2, 5])))
            return Path(file.name).read_bytes()

    plain = _parquet(pa.table({"indices": pa.array([[1, 2], [], [3]], pa.list_(pa.int64()))}))
    return Reader("recorded lookups", ".parquet", (made(torch.int32), made(torch.int64), plain), read_lookups)


@cache
def _two() -> Tables:
    return tables_of([100, 50], [8, 16], names=["users", "items"])


def _plan() -> Reader:
    from dreamshard.moving import in_use

    whole = {
        "num_devices": 4,
        "placer": "size_greedy",
        "predicted": {"overall_ms": 1.5, "devices": [{"tables": 1}] * 4},
    }
    whole |= {"costs_of": None, "differs_in": [], "warning": None, "rows": {"users": 100, "items": 50}}
    shards = [
        {"table": "users", "device": 0, "column_start": 0, "column_end": 8},
        {"table": "items", "device": 1, "column_start": 0, "column_end": 4},
        {"table": "items", "device": 2, "column_start": 4, "column_end": 16},
    ]
    rows = [
        {"table": "users", "device": d, "column_start": 0, "column_end": 8, "row_start": 25 * d, "row_end": 25 * d + 25}
        | {"sharding_type": "row_wise"}
        for d in range(4)
    ]
    measured = {"testbed": "cluster", "hardware": "h100", "num_devices": 4, "devices_per_host": None, "versions": {}}
    measured |= {"precision": "fp32", "optimizer": "sgd", "batch_size": 64}
    cached = {**rows[0], "sharding_type": "row_wise", "cached_share": 0.2}
    other = {"num_devices": 4, "devices_per_host": 2, "costs_of": measured, "shards": [*rows[1:], cached, *shards[1:]]}
    del other["shards"][3]["cached_share"]

    def read(path: Path) -> None:
        plan = parse_plan(path.read_bytes(), str(path))
        in_use(plan, _task(_two()))
        if not plan.shards_otherwise:
            plan.placement(_two())

    return Reader("plans", ".json", (json_bytes({**whole, "shards": shards}), json_bytes(other)), read)


def _torchrec_plan() -> Reader:
    def shard(rows: int, columns: int, column: int, rank: int) -> dict[str, Any]:
        return {"shard_offsets": [0, column], "shard_sizes": [rows, columns], "placement": f"rank:{rank}/cuda:{rank}"}

    bags = {
        "users": {"sharding_type": "table_wise", "compute_kernel": "fused", "ranks": [0]}
        | {"sharding_spec": [shard(100, 8, 0, 0)]},
        "items": {"sharding_type": "column_wise", "compute_kernel": "fused_uvm_caching", "ranks": [0, 1]}
        | {"sharding_spec": [shard(50, 8, 0, 0), shard(50, 8, 8, 1)], "cache_params": {"load_factor": 0.1}}
        | {"bounds_check_mode": "WARNING", "output_dtype": "FP32"},
        "tiny": {"sharding_type": "data_parallel", "compute_kernel": "dense", "ranks": [0, 1], "sharding_spec": None},
    }
    from dreamshard.torchrec.planned_tables import PlannedTable, tables_digest

    tables = [
        PlannedTable(module_path="ebc", name=name, rows=rows, dim=dim, data_type="FP32")
        for name, rows, dim in (("users", 100, 8), ("items", 50, 16), ("tiny", 10, 4))
    ]
    whole = {"world_size": 2, "ranks_per_host": 2, "device_type": "cuda", "tables_sha256": tables_digest(tables)}
    whole |= {"tables": [vars(table) for table in tables], "plan": {"ebc": bags}}

    def read(path: Path) -> None:
        from flows.placing.plan_in_use import read_in_use

        three = tables_of([100, 50, 10], [8, 16, 4], names=["users", "items", "tiny"])
        read_in_use(path, PlacementTask(three, 2, 2**50), None, lambda _: None)

    return Reader("plans of TorchRec", ".json", (json_bytes(whole), json_bytes({"ebc": bags})), read)


def _constraints() -> Reader:
    from dreamshard.constraints_file import read_constraints

    text = (
        "pin: {users: 0}\nexclude: {items: [2, 3]}\nexclude_devices: [3]\ntogether: [[users, words]]\n"
        "apart: [[items, words]]\n"
        "memory_gb: {0: 60, 1: 40}\nreserve_gb: 0.5\n"
        "sharding_types: {default: [table_wise, column_wise], items: [table_wise, row_wise]}\n"
        "narrowest_columns: {items: 8}\ncache: {items: 0.5}\n"
    )
    names = ("users", "items", "words")
    valid = (b'{"pin": {"users": 0}, "memory_gb": [1, 2, 3, 4]}', b"cache: true\nreserve_gb: 8\n", text.encode())
    return Reader("constraints", ".yaml", valid, lambda path: read_constraints(path, names, 4))


def _hardware() -> Reader:
    from dreamshard.testbeds.accelerators.hardware_file import read_hardware

    base = b"base: h100\nmemory: 94 GB\ndevices_per_host: 4\nnetwork_bandwidth: 200 Gbit/s\nname: mine\n"
    return Reader("hardware", ".yaml", (base, b'{"base": "a100", "memory": "40 GiB"}'), read_hardware)


def _exchanges() -> Reader:
    from dreamshard.exchange_sample import Exchange, ExchangeSample
    from storage.lake.exchange_samples import read_exchanges, write_exchanges

    sample = ExchangeSample(
        exchange=Exchange(sent_bytes=torch.tensor([1000, 2000])),
        forward_ms=torch.tensor([1.0, 2.0]), backward_ms=torch.tensor([1.0, 2.0]), spread_ms=0.1, repeats=3, clock="cpu",
        testbed="cluster", hardware="h100", versions={"torch": "2"},
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        write_exchanges(Path(folder), "links", [sample])
        [file] = Path(folder).rglob("*.parquet")
        valid = file.read_bytes()

    def read(path: Path) -> None:
        folder = path.parent / "lake" / "exchange_samples" / "links"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "x.parquet").write_bytes(path.read_bytes())
        read_exchanges(folder.parent.parent, "links", {"torch": "2"})

    return Reader("measured all-to-alls", ".parquet", (valid,), read)
