"""Damaged and wrong files of other people: each reader reads them, or refuses them in one sentence that names the file."""

import gzip
import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from dreamshard import read_tables
from dreamshard.constraints import parse_constraints
from dreamshard.files import InputError
from dreamshard.hardware.accelerator import read_hardware
from dreamshard.plan import read_plan
from dreamshard.torchrec import current_plan
from dreamshard.training import load_placer, save_placer
from dreamshard.workloads import WorkloadConfig, open_workload, read_lookups
from tests.helpers.lookups import drawn
from tests.helpers.trained import learnt_placer

PLACER = ("config.json", "weights.safetensors")


@dataclass(frozen=True)
class Reader:
    """A way in: the name of a valid file, its content, and the function that reads it."""

    name: str
    valid: bytes
    read: Callable[[Path], object]


def written(write: Callable[[io.BytesIO], object]) -> bytes:
    write(sink := io.BytesIO())
    return sink.getvalue()


def read_data(path: Path) -> None:
    drawn(open_workload(WorkloadConfig(source=str(path), dim=8, batch_size=16)))


def readers() -> list[Reader]:
    saved = (torch.tensor([4, 4, 1, 0, 9]), torch.tensor([0, 2, 2, 3, 3, 4, 5]), torch.tensor([[2, 0, 1], [0, 1, 1]]))
    tensors = written(lambda sink: torch.save(saved, sink))
    tables = pa.table({"name": ["a", "b"], "rows": [10, 20], "dim": [4, 8], "pooling_factor": [1.0, None]})
    lookups = pa.table({"indices": pa.array([[1, 2], [], [3]], pa.list_(pa.int64()))})
    configs = [{"name": "a", "num_embeddings": 100, "embedding_dim": 8, "feature_names": ["x"], "data_type": "FP16"}]
    planned = {
        "a": {"rows": 9, "dim": 8, "sharding_type": "column_wise", "columns": [[0, 4], [4, 8]], "where": [0, 1]},
        "b": {"rows": 25, "dim": 4, "sharding_type": "row_wise", "cached_share": 0.2},
    }
    plan = {"num_devices": 2, "placer": "p", "predicted": {"overall_ms": 1.5, "devices": [{"tables": 1}] * 2}}
    parameter = {"sharding_type": "table_wise", "compute_kernel": "fused", "ranks": [0]}
    parameter |= {"sharding_spec": [{"shard_offsets": [0, 0], "shard_sizes": [9, 8], "placement": "rank:0/cuda:0"}]}
    constraints = (
        b"pin: {a: 0}\napart: [[a, b]]\nmemory_gb: {0: 60}\nsharding_types: [table_wise, row_wise]\ncache: {b: 0.5}\n"
    )
    hardware = b"base: h100\nmemory: 94 GB\ndevices_per_host: 4\nnetwork_bandwidth: 200 Gbit/s\n"
    criteo = "\t".join(["1", *map(str, range(13)), *(f"{c:08x}" for c in range(26))]) + "\n"
    return [
        Reader("tables.csv", b"name,rows,dim,pooling_factor\na,1000,64,1.5\nb,200,16,31\n", read_tables),
        Reader("tables.parquet", written(lambda sink: pq.write_table(tables, sink)), read_tables),
        Reader("tables.json", json.dumps({"tables": configs}).encode(), read_tables),
        Reader("lookups.pt", tensors, read_data),
        Reader("lookups.pt.gz", gzip.compress(tensors), read_data),
        Reader("day.tsv", criteo.encode() * 3, read_data),
        Reader("a.parquet", written(lambda sink: pq.write_table(lookups, sink)), read_lookups),
        Reader("plan.json", json.dumps(plan | {"tables": planned}).encode(), read_plan),
        Reader(
            "torchrec.json",
            json.dumps({"plan": {"ebc": {"a": parameter}}}).encode(),
            lambda path: current_plan(path.read_bytes(), name=str(path)),
        ),
        Reader("constraints.yaml", constraints, lambda path: parse_constraints(path, ("a", "b"), 4)),
        Reader("hardware.yaml", hardware, read_hardware),
        *(Reader(f"placer/{name}", b"", lambda path: load_placer(path.parent)) for name in PLACER),
    ]


READERS = {reader.name: reader for reader in readers()}


def damages(content: bytes) -> Iterator[bytes]:
    """The content cut off, with bytes replaced, and other content."""
    for part in (0, 1, 3, 7):
        yield content[: part * len(content) // 8]
        for other in (b"\xff", b"\x00" * 8, b"null", b"NaN", b"-1", b"9" * 30, b'"', b",\n", b"[" * 400, b"&a [*a]"):
            start = part * len(content) // 8
            yield content[:start] + other + content[start + len(other) :]
    yield from (b"{}", b"[[]]", b"\xef\xbb\xbf", b"\xef\xbb\xbf{", b"PK\x03\x04", b"[" * 100_000, b"9" * 5000)


@pytest.mark.parametrize("name", READERS)
def test_a_damaged_file_is_read_or_refused_in_one_sentence(name: str, tmp_path: Path):
    reader, file = READERS[name], tmp_path / name
    if file.parent != tmp_path:
        save_placer(learnt_placer(), file.parent)
    else:
        file.write_bytes(reader.valid)
    reader.read(file)
    named = (file.parent.name, file.name, "the plan", "the model")
    for content in damages(file.read_bytes()):
        file.write_bytes(content)
        try:
            reader.read(file)
        except ValueError as error:
            assert type(error) in (ValueError, InputError), repr(error)  # noqa: PT017 - a file may also be read
            assert "\n" not in str(error), error  # noqa: PT017
            assert any(word in str(error) for word in named), error  # noqa: PT017
