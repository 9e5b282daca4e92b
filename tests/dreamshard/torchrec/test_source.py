import pytest

torchrec = pytest.importorskip("torchrec")

from dreamshard.torchrec import open_model  # noqa: E402
from dreamshard.workloads import WorkloadConfig, statistics  # noqa: E402

MODEL = """
import torch
from tests.helpers.meta_models import bag, bags, sequences

def make_model():
    return torch.nn.ModuleDict({"ebc": bags(bag("item", 50, 6, ["i", "j"])), "ec": sequences("word", 1000, 8)})
"""
DATA = """
import torch
from torchrec import KeyedJaggedTensor

def make_batches():
    while True:  # three samples of one lookup of i and w, none of j
        yield KeyedJaggedTensor(
            keys=["word", "i", "j"], values=torch.tensor([7, 8, 9, 1, 1, 2]), lengths=torch.tensor([1] * 6 + [0] * 3)
        )
"""


@pytest.fixture
def functions(tmp_path):
    (tmp_path / "some_model.py").write_text(MODEL)
    (tmp_path / "some_data.py").write_text(DATA)
    return f"{tmp_path}/some_model.py:make_model", f"{tmp_path}/some_data.py:make_batches"


def config(source, batches=None, **options):
    return WorkloadConfig(source=source, batches=batches, dim=None, **({"batch_size": 6} | options))


def test_a_models_tables_have_the_lookups_of_its_batches(functions):
    opened = open_model(config(*functions))
    item, word = map(statistics, opened.tables())
    assert opened.names == ("item", "word")
    assert (int(item.rows), int(item.dim), int(item.lookups), int(item.unique_rows)) == (50, 8, 6, 2)
    assert item.bins[0, 1:3].tolist() == [0.5, 0.5]  # row 2 twice, row 1 four times
    assert (float(word.pooling_factor), float(item.poolings), float(word.poolings)) == (1, 2, 0)
    assert "lookups were counted in 6 samples of 2 batches, as one batch" in opened.notes


def test_identities_change_with_lookups_and_with_nothing_else(functions):
    first, again, more = (open_model(config(*functions, batch_size=n)) for n in (3, 3, 6))
    assert first.token == again.token != more.token
    assert first.fingerprint(0) == again.fingerprint(0) != more.fingerprint(0)
