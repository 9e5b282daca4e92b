"""The law of NeuroShard's networks, on tiny random networks in the format of the authors' files."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import nn

from dreamshard.tables import Placement, TableSharding
from dreamshard.tasks import PlacementTask
from tests.helpers.neuroshard_law import neuroshard_law
from tests.helpers.tables import pool_of

KEYS = [f"bin_{j}" for j in (0, 1, 10, 11, 12, 13, 14, 15, 16, 2, 3, 4, 5, 6, 7, 8, 9)]
TABLES = replace(pool_of(12), dim=torch.tensor([4, 8, 16, 32, 64, 128] * 2), rows=torch.full((12,), 1000))
TASK = PlacementTask(TABLES, 4, 2**40)
PLACED = Placement.whole([0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 3, 3], 4)


def on_one(count: int, dim: int) -> tuple[PlacementTask, Placement]:
    """Tables of 1,000 rows, all on one of four devices."""
    tables = replace(pool_of(count), dim=torch.full((count,), dim), rows=torch.full((count,), 1000))
    return PlacementTask(tables, 4, 2**40), Placement.whole([0] * count, 4)


def network(name: str, sizes: list[int]) -> dict[str, torch.Tensor]:
    layers = [nn.Linear(*pair) for pair in pairwise(sizes)]
    return {f"{name}.{k}.{part}": value for k, layer in enumerate(layers) for part, value in layer.state_dict().items()}


def mlp(saved, name, x, last_relu=False):
    weights = [key for key in saved["state_dict"] if key.startswith(name) and key.endswith("weight")]
    for k, key in enumerate(weights):
        x = x @ saved["state_dict"][key].T + saved["state_dict"][key.replace("weight", "bias")]
        x = torch.relu(x) if last_relu or k + 1 < len(weights) else x
    return x


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("networks")
    torch.manual_seed(1)
    compute = network("t_hidden", [20, 6, 3]) | network("c_hidden", [3, 5, 1])
    compute["c_hidden.1.bias"] += 3  # costs above zero
    stds = torch.tensor([1.0] * 17 + [40, 10, 1000])  # bins, dim, pooling factor, rows
    saved = {"state_dict": compute, "feature_means": torch.rand(20), "feature_stds": stds}
    torch.save(saved, made / "compute.pt")
    for file, inputs in (("comm_4_bw.pt", 4), ("comm_4_fw.pt", 8)):
        layers = network("hidden", [inputs, 7, 4])
        layers["hidden.1.bias"] += 2
        saved = {"feature_means": 9 * torch.rand(inputs), "feature_stds": 50 + torch.rand(inputs)}
        torch.save(saved | {"state_dict": layers}, made / file)
    return made


def by_hand(folder, waits: bool) -> torch.Tensor:
    """`[D, 3]` compute, backward and forward all-to-all of `PLACED`."""
    compute, backward, forward = (torch.load(folder / f"{name}.pt") for name in ("compute", "comm_4_bw", "comm_4_fw"))

    def normalised(saved, x):
        return (torch.tensor(x) - saved["feature_means"]) / saved["feature_stds"]

    latents = []
    for t in range(12):
        features = {f"bin_{j}": float(TABLES.bins[t, j]) for j in range(17)}
        features |= {"dim": float(TABLES.dim[t]), "row": 1000.0, "pooling_factor": float(TABLES.pooling_factor[t])}
        assert sorted(features) == [*KEYS, "dim", "pooling_factor", "row"]
        inputs = normalised(compute, [features[key] for key in sorted(features)])
        latents.append(mlp(compute, "t_hidden", inputs, last_relu=True))
    held = [(PLACED.device == d).nonzero()[:, 0].tolist() for d in range(4)]
    costs = torch.cat([mlp(compute, "c_hidden", torch.stack([latents[t] for t in tables]).sum(0)) for tables in held])
    dims = [float(TABLES.dim[tables].sum()) for tables in held]
    back = mlp(backward, "hidden", normalised(backward, dims))
    delays = (costs + back - (costs + back).min()) * waits
    fore = mlp(forward, "hidden", normalised(forward, [*dims, *delays.tolist()]))
    return torch.stack([costs, back, fore], dim=1)


def test_phases_are_those_of_the_networks_by_hand(folder):
    law = neuroshard_law(folder)
    for waits in (False, True):
        expected, computed = by_hand(folder, waits), law.phases_ms(TASK, PLACED, waits).float()
        assert expected.min() > 0
        assert torch.allclose(computed[:, 0] + computed[:, 3], expected[:, 0], rtol=1e-4)
        assert torch.allclose(computed[:, 2], expected[:, 1], rtol=1e-4)
        assert torch.allclose(computed[:, 1], expected[:, 2], rtol=1e-4)
        assert torch.allclose(computed[:, 0], 0.25 * expected[:, 0], rtol=1e-4)
    assert law.true_ms(TASK, PLACED) == pytest.approx(float(by_hand(folder, True).sum(1).max()), rel=1e-4)
    assert not torch.allclose(by_hand(folder, True), by_hand(folder, False))


REFUSED = {
    "2 devices": (replace(TASK, num_devices=2), Placement.whole([0] * 6 + [1] * 6, 2)),
    "fp16": (replace(TASK, precision="fp16"), PLACED),
    "dim 24": (replace(TASK, tables=replace(TABLES, dim=torch.full((12,), 24))), PLACED),
    "dim 256": (replace(TASK, tables=replace(TABLES, dim=torch.full((12,), 256))), PLACED),
    "over 4 GiB": (replace(TASK, tables=replace(TABLES, rows=torch.full((12,), 2**23))), PLACED),
    "16 tables": on_one(16, dim=16),
    "rows": (TASK, replace(PLACED, tables=(TableSharding("row_wise"), *PLACED.tables[1:]))),
}


@pytest.mark.parametrize("name", REFUSED)
def test_the_law_refuses_what_was_not_measured(folder, name):
    with pytest.raises(ValueError, match="did not measure"):
        neuroshard_law(folder).true_ms(*REFUSED[name])
