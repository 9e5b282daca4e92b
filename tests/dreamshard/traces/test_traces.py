"""Profiler traces of ranks: what counts, who waited, and what is refused."""

import gzip
import json
import os
from pathlib import Path

import pytest
import torch

from dreamshard.hardware.accelerator import PRESETS, preset_of
from dreamshard.tables import Placement
from dreamshard.traces import read_trace, trace_files, traced_sample
from tests.helpers.tables import roomy_task, tables_of

TASK = roomy_task(tables_of([100, 100, 100], 8))
PLACED = Placement.whole([0, 1, 1], 2)
OLD = {
    "lookup": "fbgemm::split_embedding_codegen_lookup_rowwise_adagrad_function",
    "there": "## alltoall_fwd_single ##",
    "back": "## alltoall_bwd_single ##",
    "gradients": "torch::autograd::CppNode<SplitLookupFunction_rowwise_adagrad_Op>",
    "nccl": "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)",
}
NEW = {
    "lookup": "fbgemm::split_embedding_codegen_lookup_adam_function_pt2",
    "there": "## All2All_Pooled_fwd ##",
    "back": "## All2All_Pooled_bwd ##",
    "gradients": "torch::autograd::CppNode<SplitLookupFunction_adam_Op_pt2>",
    "nccl": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
}
ROWS = {
    "lookup": "fbgemm::split_embedding_codegen_lookup_sgd_function",
    "there": "## reduce_scatter_base ##",
    "back": "## reduce_scatter_base_bw (all_gather) ##",
    "gradients": "autograd::engine::evaluate_function: torch::autograd::CppNode<SplitNoBagLookupFunction_sgd_Op>",
    "nccl": "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
}
SYNC = {
    "lookup": "fbgemm::ssd_embedding_codegen_lookup_rowwise_adagrad_function",
    "there": "## all2all_pooled ##",
    "back": "autograd::engine::evaluate_function: AllToAllSingleBackward",
    "gradients": "fbgemm::split_embedding_backward_codegen_rowwise_adagrad_unweighted_exact_cuda",
    "nccl": "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)",
}
AFTER = {"lookup": 100, "there": 1000, "back": 3000, "gradients": 4000}  # microseconds from the step's start


def event(category, name, start, duration, number=None, tid=1, device=0):
    made = {"ph": "X", "cat": category, "name": name, "tid": tid, "ts": start, "dur": duration}
    return made | ({} if number is None else {"args": {"correlation": number, "device": device}})


def trace(rank=0, late=0.0, clock=0.0, names=NEW, steps=(0, 1), without=(), devices=(0, 0, 0, 0), **args):
    """Two steps; a kernel of 200 us in each part, 900 in the backward pass, and an all-reduce that does not count."""
    events = [{"ph": "M", "name": "process_name", "args": {"name": "python"}}]
    for step in steps:
        at, number = clock + 1e4 * step, 10 * step
        events.append(event("user_annotation", f"ProfilerStep#{step}", at, 9e3))
        for (part, after), device in zip(AFTER.items(), devices, strict=True):
            if part in without:
                continue
            number, start = number + 1, at + after + (late if part == "there" else 0.0)
            kernel = names["nccl"] if part in ("there", "back") else "void kernel<float>()"
            took = {"gradients": 900.0, "there": 500.0 - late}.get(part, 200.0)
            events.append(event("cpu_op", names[part], start, 50.0))
            events.append(event("cuda_runtime", "launch", start + 9, 5, number))
            events.append(event("kernel", kernel, start + 20, took, number, 7, device))
        events.append(event("cuda_runtime", "launch", at + 6000, 5, number + 1))
        events.append(event("kernel", "ncclAllReduce", at + 6010, 70, number + 1, tid=7))
    gpus, job = [{"name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 1}], {"rank": rank, "world_size": 2}
    return {"deviceProperties": gpus, "distributedInfo": job, "traceEvents": events} | args


def without_kernels(trace):
    events = [event for event in trace["traceEvents"] if event.get("cat") != "kernel"]
    return trace | {"traceEvents": events, "distributedInfo": {"rank": 0, "world_size": 2, "backend": "nccl"}}


def sample_of_traces(folder: Path, *traces, placement=PLACED):
    for number, content in enumerate(traces):
        (folder / f"rank{number}.json.gz").write_bytes(gzip.compress(json.dumps(content).encode()))
    (folder / ".rank0.json.gz.1.2.tmp").write_bytes(b"of a writer that was killed")
    return traced_sample(trace_files(folder), TASK, placement, {})


@pytest.mark.parametrize("names", [OLD, NEW, ROWS, SYNC], ids=["torch 1.13", "torch 2.13", "row-wise", "compiled"])
def test_a_step_is_read_by_what_launched_its_kernels(tmp_path, names):
    sample = sample_of_traces(tmp_path, trace(0, names=names), trace(1, names=names))
    torch.testing.assert_close(sample.costs.phases_ms, torch.tensor([[0.2, 0.5, 0.2, 0.9]] * 2))
    assert (sample.hardware, sample.repeats, sample.testbed) == ("NVIDIA H100 80GB HBM3 x2", 2, "traced")
    assert preset_of(sample.hardware) == PRESETS["h100"]


def test_ranks_without_tables_and_steps_that_only_some_profiled_are_read(tmp_path):
    idle = trace(0, without=("lookup", "gradients"), steps=(1, 2))
    sample = sample_of_traces(tmp_path, idle, trace(1, late=300.0), placement=Placement.whole([1, 1, 1], 2))
    torch.testing.assert_close(sample.costs.phases_ms, torch.tensor([[0, 0.2, 0.2, 0], [0.2, 0.2, 0.2, 0.9]]))
    assert sample.repeats == 1


def test_a_kernel_launched_outside_all_operators_counts_by_its_name(tmp_path):
    content = trace(0, without=("lookup",))
    lookups = [event("kernel", "split_embedding_codegen_forward_unweighted_kernel", 1e4 * k, 70) for k in (0, 1)]
    (tmp_path / "rank0.json").write_text(json.dumps(content | {"traceEvents": content["traceEvents"] + lookups}))
    read = read_trace(tmp_path / "rank0.json")
    assert [step.compute_ms[0] for step in read.steps.values()] == [0.07, 0.07]


def test_all_reduces_of_gloo_do_not_count(tmp_path):
    operators = [("ProfilerStep#0", 0, 9e3), (NEW["lookup"], 100, 70), (NEW["gradients"], 4000, 900)]
    operators += [("c10d::allreduce_", 6000, 10), ("gloo:all_reduce", 6005, 400)]
    (tmp_path / "rank0.json").write_text(json.dumps({"traceEvents": [event("cpu_op", *one) for one in operators]}))
    (step,) = read_trace(tmp_path / "rank0.json").steps.values()
    assert (step.compute_ms, step.collectives) == ([0.07, 0, 0, 0.9], [])


def test_json_as_old_profilers_wrote_it_is_read(tmp_path):
    about = {"ph": "X", "cat": "cpu_op", "name": "NAME", "ts": 1.0, "dur": 0, "args": {"FLOPS": "NUMBER"}}
    content = json.dumps(trace() | {"traceEvents": [*trace()["traceEvents"], about]})
    name = 'C:\\users\\n.py(3): \\"f\\" \\\\x \x01 \udcff'
    written = content.replace("NAME", name).replace('"NUMBER"', " -nan").encode(errors="surrogateescape")
    (tmp_path / "rank0.json").write_bytes(written)
    assert len(read_trace(tmp_path / "rank0.json").steps) == 2


@pytest.mark.parametrize("clock", [0.0, 5e6])
def test_waiting_for_the_last_rank_does_not_count_whatever_the_clocks_say(tmp_path, clock):
    sample = sample_of_traces(tmp_path, trace(0), trace(1, late=300.0, clock=clock))
    assert sample.costs.phases_ms[:, 1].tolist() == pytest.approx([0.2, 0.2])


def test_of_some_ranks_the_least_duration_counts_and_the_others_are_not_seen(tmp_path):
    sample = sample_of_traces(tmp_path, trace(1, late=300.0))
    assert sample.costs.phases_ms[1].tolist() == pytest.approx([0.2, 0.2, 0.2, 0.9])
    assert sample.costs.phases_ms[0].isnan().all()
    assert sample.overall_ms == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("traces", "placement", "words"),
    [
        ([trace(steps=())], PLACED, "no ProfilerStep"),
        ([trace(0), trace(1, steps=(2, 3))], PLACED, "no profiled step in common"),
        ([trace(0, devices=(0, 0, 0, 1))], PLACED, "GPUs 0, 1; profile a job of one process per GPU"),
        ([without_kernels(trace())], PLACED, "no kernels of its GPU"),
        ([trace(without=("gradients", "back"))], PLACED, "lookups but no backward pass"),
        ([trace(without=tuple(AFTER))], PLACED, "no fused lookups"),
        ([trace(0), trace(0)], PLACED, "one trace per rank"),
        ([trace(0, distributedInfo={"rank": 0, "world_size": 8})], PLACED, "rank 0 of 8, the plan of 2"),
        ([trace(0)], Placement.whole([1, 1, 1], 2), "puts 0 shards on rank 0"),
        ([trace(0), trace(1, without=("there",))], PLACED, "ranks took part in"),
    ],
)
def test_other_traces_are_refused_in_a_sentence(tmp_path, traces, placement, words):
    with pytest.raises(ValueError, match=words):
        sample_of_traces(tmp_path, *traces, placement=placement)


@pytest.mark.parametrize(
    "content",
    [json.dumps(trace())[:-300].encode(), b"", b"[]", gzip.compress(b"{}")[:9]],
    ids=["cut", "empty", "a list", "cut gzip"],
)
def test_a_damaged_trace_is_refused_in_a_sentence(tmp_path, content):
    (tmp_path / "rank0.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"rank0.json is not a complete trace of PyTorch's profiler"):
        read_trace(tmp_path / "rank0.json")


@pytest.mark.skipif("DREAMSHARD_GPU_MEASUREMENTS" not in os.environ, reason="public GPU measurements are not shipped")
def test_a_published_trace_of_an_a100():
    """Of HolisticTraceAnalysis; milliseconds a step of forward and backward kernels, added up by hand."""
    trace = read_trace(Path(os.environ["DREAMSHARD_GPU_MEASUREMENTS"]) / "traces/a100-40gb-8ranks-rank3.json.gz")
    assert (trace.rank, trace.num_ranks, trace.hardware) == (3, 8, "NVIDIA A100-PG509-200")
    steps = trace.steps.values()
    compute_ms = torch.tensor([step.compute_ms for step in steps])
    assert compute_ms.mean(dim=0).tolist() == pytest.approx([2.57, 0, 0, 9.9], rel=0.01)
    assert [len(step.collectives) for step in steps] == [2] * 6
    assert compute_ms[:, 0].std() < 0.01
