"""The design of a collection, and a collection on the CPU that is cut off and resumed."""

import json
import math
import os
import signal
import subprocess
import sys
from concurrent.futures import wait
from dataclasses import replace
from itertools import islice, product
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from dreamshard.shard_profiling.collect import ON_A_GPU_MACHINE, main
from dreamshard.shard_profiling.collection import collect
from dreamshard.shard_profiling.dataset import known_indices, read_shards, samples_of
from dreamshard.shard_profiling.design import (
    ALONE_DIMS,
    DIMS,
    CollectionConfig,
    _bytes,
    collection_pool,
    planned_shards,
    small_collection,
)
from dreamshard.shard_profiling.pool_lookups import PoolLookups

CONFIG = CollectionConfig()
TINY = CollectionConfig(
    sources=("nvidia-synthetic-tiny",), max_tables=4, batch_size=64, memory_bytes=8 * 2**20, repeats=2, num_shards=12
)
OPTIONS = ["--small", "--batch-size", "64", "--repeats", "2", "--workers", "1", "--quiet", "--device", "cpu"]


@pytest.fixture(scope="module")
def plan():
    pool = collection_pool(CONFIG)
    return pool, list(islice(planned_shards(pool, CONFIG), 3000))


def test_the_pool_is_all_of_metas_tables_and_nvidias_lists(plan):
    pool, _ = plan
    sources = [table.source for table in pool]
    assert sources.count("meta-dlrm-2021") == 856
    assert {source for source in sources if source.startswith("nvidia")} == set(CONFIG.sources[1:])
    assert len({table.name for table in pool}) == len(pool)


def test_every_table_is_measured_and_shards_have_1_to_60_tables_of_dims_4_to_256(plan):
    pool, shards = plan
    assert {t for shard in shards for t in shard.tables} == set(range(len(pool)))
    assert {len(shard.tables) for shard in shards} == set(range(1, 61))
    assert {dim for shard in shards for dim in shard.dims} == set(DIMS)
    assert all(len(set(shard.tables)) == len(shard.tables) == len(shard.dims) for shard in shards)
    assert [shard.index for shard in shards] == list(range(3000))


def test_any_prefix_is_spread_evenly_over_what_cost_depends_on(plan):
    pool, shards = plan
    pooling = sorted(table.pooling_factor for table in pool)
    for prefix in (shards[:100], shards[:1000]):
        designed = [shard for shard in prefix if shard.alone_of is None]
        sizes = torch.tensor([math.log(len(shard.tables)) / math.log(61) for shard in designed])
        assert torch.histc(sizes, 4, 0, 1).min() > 0.12 * len(designed)
        dims = torch.tensor([math.log2(sum(shard.dims) / len(shard.dims)) for shard in designed])
        assert torch.histc(dims, 3, 2, 8).min() > 0.15 * len(designed)
        ranks = torch.tensor(
            [sum(pool[t].pooling_factor for t in shard.tables) / len(shard.tables) for shard in designed]
        )
        middle = pooling[len(pooling) // 2]
        assert 0.25 < (ranks < middle).double().mean() < 0.75


def test_tables_of_some_small_shards_are_measured_alone_as_well(plan):
    _, shards = plan
    alone = [shard for shard in shards if shard.alone_of is not None]
    assert 0.05 * len(shards) < len(alone) < 0.3 * len(shards)
    by_index = {shard.index: shard for shard in shards}
    together = {}
    for shard in alone:
        together.setdefault(shard.alone_of, []).append((shard.tables[0], shard.dims[0]))
    for index, found in list(together.items())[:-1]:
        fused = by_index[index]
        assert found == list(zip(fused.tables, fused.dims, strict=True))


def test_no_shard_asks_for_more_memory_than_the_collection_allows():
    config = small_collection(CONFIG)
    pool = collection_pool(config)
    for shard in islice(planned_shards(pool, config), 300):
        asked = sum(_bytes(pool[t], dim, config) for t, dim in zip(shard.tables, shard.dims, strict=True))
        assert 0 < asked <= config.memory_bytes


def test_the_design_is_the_same_every_time_and_another_with_another_seed():
    pool = collection_pool(TINY)
    assert list(islice(planned_shards(pool, TINY), 30)) == list(islice(planned_shards(pool, TINY), 30))
    other = CollectionConfig(sources=TINY.sources, seed=1)
    assert list(islice(planned_shards(pool, other), 30)) != list(islice(planned_shards(pool, TINY), 30))
    assert other.design != TINY.design


def test_every_table_can_be_measured_alone_first_at_each_width():
    config = replace(CONFIG, sources=("meta-dlrm-2021",), alone_dims=ALONE_DIMS)
    pool = collection_pool(config)
    plan = list(islice(planned_shards(pool, config), len(pool) * len(ALONE_DIMS) + 10))
    alone, sets = plan[:-10], plan[-10:]
    assert {(shard.tables[0], shard.dims[0]) for shard in alone} == set(product(range(len(pool)), ALONE_DIMS))
    assert len({shard.dims for shard in alone[:50]}) == len(ALONE_DIMS), "any prefix has all widths"
    assert max(len(shard.tables) for shard in sets) > 1
    assert [shard.index for shard in plan] == list(range(len(plan)))
    assert config.design != CONFIG.design


def test_memory_for_no_table_at_all_is_refused():
    with pytest.raises(ValueError, match=r"none of the .* tables fits into 9\.31e-10 GiB"):
        collection_pool(CollectionConfig(memory_bytes=1))


def test_a_collection_measures_each_shard_once_and_keeps_all_that_is_known_of_it(tmp_path):
    outcome = collect(tmp_path, TINY, seconds=math.inf, device_type="cpu", workers=1)
    assert (outcome.known, outcome.measured, outcome.infeasible, outcome.complete) == (12, 12, 0, True)
    again = collect(tmp_path, TINY, seconds=math.inf, device_type="cpu", workers=1)
    assert (again.known, again.measured, again.complete) == (12, 0, True)
    shards = read_shards(tmp_path)
    pool = collection_pool(TINY)
    for shard, planned in zip(shards, planned_shards(pool, TINY), strict=False):
        assert shard.tables.names == tuple(pool[t].name for t in planned.tables)
        assert tuple(shard.tables.dim.tolist()) == planned.dims
        assert shard.forward_ms > 0
        assert shard.backward_ms > 0
        assert shard.tables.lookups.sum() > 0
        assert (shard.hardware, shard.clock) == (outcome.hardware, "thread_cpu")
    sample = samples_of(shards)[0]
    assert sample.overall_ms == pytest.approx(shards[0].forward_ms + shards[0].backward_ms, rel=1e-5)
    assert sample.task.tables.names[0] == f"{shards[0].tables.names[0]}@{int(shards[0].tables.dim[0])}"
    assert [shard.index for shard in shards] == list(range(12))


def test_a_folder_of_another_collection_is_refused(tmp_path):
    collect(tmp_path, CollectionConfig(**{**vars(TINY), "num_shards": 1}), seconds=math.inf, device_type="cpu")
    with pytest.raises(ValueError, match="holds shards of another collection"):
        collect(tmp_path, CollectionConfig(**{**vars(TINY), "seed": 5}), seconds=math.inf, device_type="cpu")


def test_a_shard_that_does_not_fit_is_kept_as_such(tmp_path, monkeypatch):
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=2**21))
    outcome = collect(tmp_path, TINY, seconds=math.inf, device_type="cpu", workers=1)
    shards = read_shards(tmp_path)
    misfits = [shard for shard in shards if shard.forward_ms is None]
    assert outcome.infeasible == len(misfits) > 0
    assert all(shard.asked_bytes > shard.free_bytes > 0 for shard in misfits)
    assert len(samples_of(shards)) == 12 - len(misfits)


@pytest.mark.processes
def test_a_collection_that_is_killed_loses_nothing_and_resumes(tmp_path):
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "dreamshard.shard_profiling.collect",
        "--out",
        str(tmp_path / "parts"),
        *OPTIONS,
    ]
    running = subprocess.Popen([*command, "--max-shards", "4000"], env={**os.environ, "OMP_NUM_THREADS": "1"})
    parts = tmp_path / "parts"
    while running.poll() is None and len(list(parts.glob("part-*.parquet")) if parts.exists() else []) == 0:
        try:
            running.wait(0.05)
        except subprocess.TimeoutExpired:
            continue
    running.send_signal(signal.SIGKILL)
    running.wait()
    before = read_shards(parts)
    assert before
    done = subprocess.run(
        [*command, "--max-shards", str(len(before) + 3)], capture_output=True, text=True, check=True, timeout=600
    )
    outcome = json.loads(done.stdout.splitlines()[-1])
    assert (outcome["measured"], outcome["known"], outcome["complete"]) == (3, len(before) + 3, True)
    after = read_shards(parts)
    assert [shard.index for shard in after] == list(range(len(before) + 3))
    assert [s.forward_ms for s in after[: len(before)]] == [s.forward_ms for s in before]
    assert not (Path(parts) / "part-00002.parquet").exists()
    assert known_indices(parts, after[0].design) == set(range(len(after)))


def test_an_unknown_list_is_one_sentence(tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        main(["--out", str(tmp_path), *OPTIONS, "--sources", "nobody"])
    assert end.value.code == 1
    assert capsys.readouterr().err.startswith("no bundled workload is called nobody")


def test_what_is_no_collection_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no measured shards"):
        read_shards(tmp_path)
    (tmp_path / "part-00000.parquet").write_text("not Parquet")
    with pytest.raises(ValueError, match="not part of a collection"):
        read_shards(tmp_path)


def test_lookups_are_not_drawn_while_a_shard_is_timed():
    pool = collection_pool(TINY)
    lookups = PoolLookups(pool, TINY, workers=2)
    with lookups.paused():
        lookups.prefetch([table.name for table in pool[:3]])
        _, waiting = wait(list(lookups._draws.values()), timeout=0.3)
        assert len(waiting) == 3
    assert len(lookups(pool[0].name).offsets) == TINY.batch_size + 1
    assert lookups.table(pool[1].name, 8).dim.tolist() == [8]
    lookups.close()


MISSING_ON_A_GPU_MACHINE = [
    *("prefect", "mlflow", "duckdb", "scipy", "matplotlib", "rich", "typer", "safetensors"),
    *("beartype", "hypothesis", "pytest_timeout", "xdist", "torchrec"),
]


def test_the_tests_that_need_a_gpu_start_where_little_is_installed():
    command = next(line for line in ON_A_GPU_MACHINE.replace("\\\n", " ").splitlines() if "pytest -m cuda" in line)
    arguments = command.split()[3:]
    program = (
        f"import sys; sys.modules.update(dict.fromkeys({MISSING_ON_A_GPU_MACHINE!r})); import pytest; "
        f"sys.exit(pytest.main({[*arguments, '--collect-only', '-p', 'no:randomly']!r}))"
    )
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=root, env=environment, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = [line for line in done.stdout.splitlines() if "::" in line]
    assert len(found) == sum("cuda" in line for line in found) >= 8


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_a_collection_on_cuda_times_with_events(tmp_path):
    config = CollectionConfig(memory_bytes=2**30, num_shards=20, repeats=3)
    outcome = collect(tmp_path, config, seconds=60, device_type="cuda", workers=4)
    shards = read_shards(tmp_path)
    assert outcome.measured == len(shards) > 0
    assert all(shard.clock == "cuda_event" and shard.forward_ms > 0 and shard.backward_ms > 0 for shard in shards)
