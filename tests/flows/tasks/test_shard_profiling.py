"""Costs of shards from collection to a placer, and time lines from what stages leave behind."""

import itertools
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dreamshard.costs import PHASES
from dreamshard.exchange_sample import Exchange
from dreamshard.shard_profiling.dataset import ShardWriter, read_shards
from dreamshard.shard_profiling.design import small_collection
from dreamshard.shard_profiling.fit import ShardTraining
from flows.forms.configuration import configure
from flows.forms.options import RecipeOptions
from flows.reports import trace_files
from flows.tasks import shard_profiling
from storage.lake import write_exchanges
from storage.run_records import checkpoints, report_store
from storage.run_records.report_store import EvaluationReport, MeasuredRow
from storage.store import open_store
from tests.flows.commands import Dreamshard, failed_with
from tests.helpers.lake import append_samples
from tests.helpers.shards import meta_tables, simulated_shards
from tests.helpers.testbeds import simulated

TABLES = "name,rows,dim,pooling_factor\nusers,1000,64,1\nitems,1000,64,12\nwords,1000,64,12\n"
PLACE = ("--devices", "2", "--memory-gb", "1", "--placer", "h200")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "tables.csv").write_text(TABLES)
    monkeypatch.setenv("DREAMSHARD_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(shard_profiling, "collect_shards", shard_profiling.collect_shards.fn)
    return tmp_path / "home"


def test_without_a_bundled_placer_the_placer_says_what_to_run(dreamshard: Dreamshard, home: Path, tmp_path: Path):
    done = dreamshard("place", str(tmp_path / "tables.csv"), *PLACE, home=home)
    failed_with(done, "no placer learnt from costs of h200", "profile --recipe h200_costs", "train --recipe h200_costs")


def test_a_collection_on_the_cpu_goes_on_where_it_ended_and_is_no_h200(home: Path):
    config = configure(RecipeOptions(recipe="h200_costs"))
    first = shard_profiling.profile_shards(open_store(), config, 0, 1.0, "cpu")
    again = shard_profiling.profile_shards(open_store(), config, 0, 1.0, "cpu")
    assert first["measured_now"] > 0
    assert again["shards"] == f"{first['measured_now'] + again['measured_now']} of 4000"
    assert len(read_shards(Path(again["folder"]))) == first["measured_now"] + again["measured_now"]
    assert "refit" not in again
    with pytest.raises(ValueError, match="no costs of shards have been measured on h200 in this home"):
        shard_profiling.train_on_shards(open_store(), config, 0)


def test_the_collection_continued_last_is_learnt_from_where_the_clock_was_set_back(
    home: Path, monkeypatch: pytest.MonkeyPatch
):
    def learn(shards, *_):
        raise RuntimeError(shards[0].design)

    def collected(folder, design, **_):
        writer = ShardWriter(folder)
        for shard in simulated_shards(1):
            writer.add(type(shard)(**{**vars(shard), "design": design.design}))
        clock_s = next(earlier)
        os.utime(folder, (clock_s, clock_s))

    config, earlier = configure(RecipeOptions(recipe="h200_costs")), itertools.count(10**9, -3600)
    monkeypatch.setattr(shard_profiling, "collect", collected)
    monkeypatch.setattr(shard_profiling, "device_model", lambda _: "NVIDIA H200")
    monkeypatch.setattr(shard_profiling, "learn_from_shards", learn)
    first, second = (replace(config.collection, num_shards=100, seed=seed) for seed in (1, 2))
    for design in (first, second, first):
        shard_profiling.collect_shards(open_store(), design, None, "cpu")
        with pytest.raises(RuntimeError, match=small_collection(design).design):
            shard_profiling.train_on_shards(open_store(), config, 0)


def test_only_exchanges_that_ranks_on_the_accelerator_measured_serve_its_shards(home: Path):
    store = open_store()
    modelled = simulated().measure_exchange(Exchange(sent_bytes=torch.tensor([8, 8])))
    for clock, hardware in (
        ("cuda_event", "NVIDIA H200 x8"),
        ("cuda_event", "NVIDIA H100 x8"),
        ("model", "NVIDIA H200"),
    ):
        write_exchanges(store.lake.root, hardware, [replace(modelled, clock=clock, hardware=hardware)])
    found = shard_profiling._exchanges_on(store, "h200")
    assert [(sample.clock, sample.hardware) for sample in found] == [("cuda_event", "NVIDIA H200 x8")]


def test_shards_of_an_h200_become_a_placer_that_says_from_which_measurements(
    dreamshard: Dreamshard, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    writer = ShardWriter(home / "shards" / "NVIDIA H200" / "design")
    for shard in simulated_shards(40):
        writer.add(type(shard)(**{**vars(shard), "hardware": "NVIDIA H200"}))
    quick = ShardTraining(stages=2, steps=20, policy_rounds=1, tables_per_task=6, num_devices=2)
    monkeypatch.setattr(shard_profiling, "ShardTraining", lambda seed: quick)
    with torch.enable_grad():
        outcome = shard_profiling.train_on_shards(open_store(), configure(RecipeOptions(recipe="h200_costs")), 0)
    assert outcome["table"][-1]["tables"] == "all"
    assert {file.name for file in Path(outcome["placer"]).iterdir()} == {
        "config.json",
        "digests.json",
        "weights.safetensors",
        "measurements.json",
    }
    done = dreamshard("place", str(tmp_path / "tables.csv"), *PLACE, home=home)
    assert done.returncode == 0, done.sentence
    assert "learnt from 40 shards measured on NVIDIA H200" in " ".join(done.stderr.split())
    assert {shard["table"] for shard in json.loads(done.stdout)["shards"]} == {"users", "items", "words"}


def test_a_trace_of_a_collection_is_refused_before_anything_is_measured(
    dreamshard: Dreamshard, home: Path, tmp_path: Path
):
    done = dreamshard("profile", "--recipe", "h200_costs", "--trace", str(tmp_path / "t.json"), home=home)
    failed_with(done, "measures shards one by one")
    assert not (home / "shards").exists()


def test_an_evaluation_is_traced_with_a_process_for_every_placement_that_fits(home: Path, tmp_path: Path):
    def row(placer: str, overall_ms: float | None) -> MeasuredRow:
        devices = (dict.fromkeys(PHASES, (overall_ms or 0.0) / 4), dict.fromkeys(PHASES, 0.0))
        return MeasuredRow(
            placer=placer,
            task="test-000",
            device=(0,),
            overall_ms=overall_ms,
            predicted_ms=1.0,
            place_ms=0.1,
            devices=devices,
        )

    report = EvaluationReport(
        key="k",
        dataset="d",
        tasks="t",
        testbed="simulated",
        hardware="a machine",
        reference="random",
        placers=(),
        gains={},
        rows=(row("random", 8.0), row("dreamshard", 4.0), row("size", None)),
    )
    report_store.save(open_store().evaluations, report)
    assert trace_files.write(open_store(), {"evaluation": "k"}, tmp_path / "trace.json") == 2
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert names == ["test-000, random: 8.000 ms", "test-000, dreamshard: 4.000 ms"]
    ends = {event["pid"]: event["ts"] + event["dur"] for event in events if event["ph"] == "X"}
    assert ends == {0: 8000.0, 1: 4000.0}


def test_a_profile_is_traced_with_the_placements_of_its_iteration(home: Path, tmp_path: Path):
    from dreamshard.placement import Placement
    from dreamshard.tasks import PlacementTask
    from dreamshard.workloads import dataset_version

    tables = meta_tables().select(range(4))
    version = dataset_version(tables)
    open_store().lake.write_dataset(tables, version, "meta")
    task = PlacementTask(tables, 2, 2**40, name="train-000")
    drawn = [[0, 0, 1, 1], [0, 1, 0, 1], [1, 1, 1, 1]]
    samples = [simulated().measure(task, Placement(torch.tensor(device), 2)) for device in drawn]
    for iteration, chosen in ((1, samples[:2]), (2, samples[2:])):
        append_samples(open_store().lake, chosen, "training", iteration, version)
    checkpoints.folder(open_store(), "training").mkdir(parents=True)
    checkpoints.save_proposals(open_store(), "training", 2, [("train-000", drawn[2])])
    assert trace_files.write(open_store(), {"training": "training", "iteration": 2}, tmp_path / "trace.json") == 1
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert f"{samples[2].overall_ms:.3f} ms on simulated" in events[0]["args"]["name"]
