"""The fused operator against torch's own embedding bags."""

import pytest
import torch

from dreamshard.testbeds.device import WeightArena
from dreamshard.testbeds.operators import LEARNING_RATE, build_operator, shard_lookups
from dreamshard.workloads import Lookups

CPU = torch.device("cpu")
CASES = [(p, o) for p in ("fp32", "fp16") for o in ("sgd", "rowwise_adagrad", "adagrad")]


SHAPES = [(20, 4), (20, 8)]


def two_tables() -> list[Lookups]:
    return [
        Lookups(torch.tensor([0, 1, 2, 0, 19]), torch.tensor([0, 1, 3, 5])),
        Lookups(torch.tensor([5, 5, 19, 3], dtype=torch.int32), torch.tensor([0, 2, 2, 4])),
    ]


def reference(lookups: list[Lookups], weights: list[torch.Tensor]) -> torch.Tensor:
    bags = [
        torch.nn.functional.embedding_bag(table.indices.long(), weight, table.offsets[:-1], mode="sum")
        for table, weight in zip(lookups, weights, strict=True)
    ]
    return torch.cat(bags, dim=1)


def run_once(precision, optimizer, device=CPU, index_dtype=torch.int64):
    """Weights before, output, weights after one step with all gradients 1, and the reference's own gradients."""
    lookups = two_tables()
    operator = build_operator(SHAPES, precision, optimizer, device, WeightArena(device))
    weights = operator.split_embedding_weights()
    generator = torch.Generator().manual_seed(0)
    for weight in weights:
        weight.copy_(torch.randn(weight.shape, generator=generator))
    before = [weight.detach().cpu().float().clone().requires_grad_() for weight in weights]
    shard = shard_lookups(lookups, 3, index_dtype)
    output = operator(shard.indices.to(device), shard.offsets.to(device))
    expected = reference(lookups, before)
    expected.sum().backward()
    output.backward(torch.ones_like(output))
    return output.detach().cpu(), expected.detach(), before, [weight.detach().cpu().float() for weight in weights]


@pytest.mark.parametrize(("precision", "optimizer"), CASES)
def test_forward_equals_the_sums_of_embedding_bags(precision, optimizer):
    output, expected, _, _ = run_once(precision, optimizer)
    assert output.dtype == torch.float32
    torch.testing.assert_close(output, expected)


@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-6), ("fp16", 2e-3)])
def test_a_step_of_sgd_takes_the_learning_rate_times_the_gradient(precision, tolerance):
    _, _, before, after = run_once(precision, "sgd")
    for old, new in zip(before, after, strict=True):
        torch.testing.assert_close(new, old.detach() - LEARNING_RATE * old.grad, rtol=tolerance, atol=tolerance)


def test_a_step_of_rowwise_adagrad_divides_by_the_rows_root_mean_square():
    _, _, before, after = run_once("fp32", "rowwise_adagrad")
    for old, new in zip(before, after, strict=True):
        scale = old.grad.square().mean(dim=1, keepdim=True).sqrt() + 1e-8
        torch.testing.assert_close(new, old.detach() - LEARNING_RATE * old.grad / scale, rtol=1e-5, atol=1e-6)


def test_operators_of_one_arena_lie_in_the_same_memory():
    arena = WeightArena(CPU)
    large = build_operator(SHAPES, "fp32", "sgd", CPU, arena)
    small = build_operator(SHAPES[1:], "fp16", "sgd", CPU, arena)
    assert large.weights_host.data_ptr() == small.weights_host.data_ptr()
    assert large.weights_host.numel() == 20 * 4 + 20 * 8
    assert small.split_embedding_weights()[0].shape == (20, 8)


def test_lookups_are_laid_out_table_after_table_from_the_first_samples():
    shard = shard_lookups(two_tables(), 2, torch.int64)
    assert shard.indices.tolist() == [0, 1, 2, 5, 5]
    assert shard.offsets.tolist() == [0, 1, 3, 5, 5]


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize(("precision", "optimizer"), CASES)
def test_on_cuda_forward_equals_the_sums_of_embedding_bags(precision, optimizer):
    output, expected, before, after = run_once(precision, optimizer, torch.device("cuda", 0), torch.int32)
    torch.testing.assert_close(output, expected)
    assert any(not torch.equal(old.detach(), new) for old, new in zip(before, after, strict=True))
