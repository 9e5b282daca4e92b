"""`dreamshard place --format torchrec`: a plan that loads in the model it is for, or a refusal that says what is missing."""

import pytest
import torch

torchrec = pytest.importorskip("torchrec")


from dreamshard.torchrec import load_plan  # noqa: E402
from tests.flows.commands import dreamshard  # noqa: E402

PLACE = ("--devices", "4", "--placer", "size_greedy", "--format", "torchrec")


@pytest.fixture
def place(tmp_path):
    """Place two tables; the arguments are further options."""
    (tmp_path / "tables.csv").write_text("name,rows,dim,pooling_factor\nusers,100,16,1\nwords,50,8,3\n")

    def call(*options: str):
        arguments = ["place", str(tmp_path / "tables.csv"), *PLACE, "--home", str(tmp_path / "home"), *options]
        return dreamshard(*arguments)

    return call


class Model(torch.nn.Module):
    def __init__(self, rows: int = 100) -> None:
        super().__init__()
        sizes = [("users", rows, 16), ("words", 50, 8)]
        self.ebc = torchrec.EmbeddingBagCollection(
            device=torch.device("meta"),
            tables=[
                torchrec.EmbeddingBagConfig(name=name, num_embeddings=rows, embedding_dim=dim, feature_names=[name])
                for name, rows, dim in sizes
            ],
        )


def test_the_plan_of_a_list_loads_in_its_model_only(place, tmp_path, monkeypatch):
    out = tmp_path / "plan.json"
    done = place("--memory-gb", "1", "--out", str(out))
    assert done.returncode == 0, done.stderr
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    plan = load_plan(out, Model(), device_type="cuda")
    devices = {str(shard.placement) for each in plan.plan["ebc"].values() for shard in each.sharding_spec.shards}
    assert devices <= {"rank:0/cuda:0", "rank:1/cuda:1", "rank:2/cuda:0", "rank:3/cuda:1"}
    with pytest.raises(ValueError, match=r"'users' of 200 x 16 is 100 x 16 in the plan"):
        load_plan(out, Model(200))
