"""`dreamshard place --format torchrec`: a plan that loads in the model it is for, or a refusal that says what is missing."""

import pytest
import torch

torchrec = pytest.importorskip("torchrec")

from typer.testing import CliRunner  # noqa: E402

from dreamshard.model_tables import ModelTable, model_tables  # noqa: E402
from dreamshard.placement import Placement  # noqa: E402
from dreamshard.plan import make_plan  # noqa: E402
from dreamshard.torchrec import from_json, load_plan  # noqa: E402
from flows.cli.app import app  # noqa: E402
from flows.cli.torchrec_plan import torchrec_target, torchrec_text  # noqa: E402

PLACE = ("--devices", "4", "--placer", "size_greedy", "--format", "torchrec")


@pytest.fixture
def place(tmp_path):
    """Place two tables; the arguments are further options."""
    (tmp_path / "tables.csv").write_text("name,rows,dim,pooling_factor\nusers,100,16,1\nwords,50,8,3\n")

    def call(*options: str):
        arguments = ["place", str(tmp_path / "tables.csv"), *PLACE, "--home", str(tmp_path / "home"), *options]
        return CliRunner().invoke(app, arguments)

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


def test_the_plan_of_a_list_loads_in_its_model_only(place, tmp_path):
    out = tmp_path / "plan.json"
    done = place("--memory-gb", "1", "--module-path", "ebc", "--devices-per-host", "2", "--out", str(out))
    assert done.exit_code == 0, done.output
    plan = load_plan(out, Model())
    devices = {str(shard.placement) for each in plan.plan["ebc"].values() for shard in each.sharding_spec.shards}
    assert devices <= {"rank:0/cuda:0", "rank:1/cuda:1", "rank:2/cuda:0", "rank:3/cuda:1"}
    with pytest.raises(ValueError, match=r"'ebc\.users' is 100 x 16 FP32 in the plan and 200 x 16 FP32 in the model"):
        load_plan(out, Model(200))


def test_cpu_ranks_need_no_number_per_host(place, tmp_path):
    out = tmp_path / "plan.json"
    done = place("--memory-gb", "1", "--module-path", "ebc", "--device-type", "cpu", "--out", str(out))
    assert done.exit_code == 0, done.output
    assert {
        shard.placement.device().type
        for each in load_plan(out, Model()).plan["ebc"].values()
        for shard in each.sharding_spec.shards
    } == {"cpu"}


@pytest.mark.parametrize(
    ("options", "missing", "text"),
    [
        (["--memory-gb", "1", "--devices-per-host", "2"], "--module-path", "would not load"),
        (["--memory-gb", "1", "--module-path", "ebc"], "--devices-per-host", "the ranks per host"),
    ],
)
def test_what_is_not_known_is_asked_for(place, options, missing, text):
    done = place(*options)
    assert done.exit_code == 2
    said = " ".join(done.output.replace("│", " ").split())
    assert missing in said
    assert text in said


def test_the_hardware_says_how_many_ranks_a_host_has(place):
    done = place("--hardware", "h100", "--module-path", "ebc")
    assert done.exit_code == 0, done.output


def test_a_model_says_where_its_tables_are():
    details = [
        ModelTable(name="t", rows=20, dim=10, features=("f",), module_path=path, precision="fp16")
        for path in ("a", "b")
    ]
    model = model_tables(details)
    task = model.task(2, 2**30)
    target = torchrec_target(task, model=model, module_path=None, device_type="cpu", spec=None)
    plan = make_plan(task, Placement(torch.tensor([0, 1]), 2), "test")
    text = torchrec_text(plan, target)
    assert from_json(text).plan.keys() == {"a", "b"}
    assert {name: (table.path, table.dim, table.data_type) for name, table in target.tables.items()} == {
        "a.t": ("a.t", 10, "FP16"),
        "b.t": ("b.t", 10, "FP16"),
    }
