from dataclasses import dataclass

import pytest
import torch

torchrec = pytest.importorskip("torchrec")

from torchrec import KeyedJaggedTensor  # noqa: E402

from dreamshard.tables import ModelTable  # noqa: E402
from dreamshard.torchrec import open_model, record  # noqa: E402
from dreamshard.workloads import WorkloadConfig, model_tables, statistics  # noqa: E402

USER = ModelTable(name="user", rows=10, dim=16, features=("u",))
ITEM = ModelTable(name="item", rows=20, dim=6, features=("i", "j"))


def keyed(weights=None, **features):
    """A batch of the features, each with a list of ids per sample."""
    samples = [sample for ids in features.values() for sample in ids]
    values = torch.tensor([value for sample in samples for value in sample], dtype=torch.int64)
    return KeyedJaggedTensor(
        keys=list(features),
        values=values,
        lengths=torch.tensor([len(sample) for sample in samples]),
        weights=None if weights is None else torch.full((len(values),), weights),
    )


BATCH = {"u": [[1], [2, 2], []], "i": [[5], [], [6, 7]], "j": [[5, 5], [8], []]}


def test_features_of_a_table_are_counted_sample_by_sample():
    recorded = record(model_tables([USER, ITEM]), [keyed(**BATCH)])
    assert recorded.lookups["user"].indices.tolist() == [1, 2, 2]
    assert recorded.lookups["user"].offsets.tolist() == [0, 1, 3, 3]
    assert recorded.lookups["item"].indices.tolist() == [5, 5, 5, 8, 6, 7]
    assert recorded.lookups["item"].offsets.tolist() == [0, 3, 4, 6]
    tables = recorded.tables
    assert tables.names == ("user", "item")
    assert (tables.dim.tolist(), tables.poolings.tolist()) == ([16, 8], [1.0, 2.0])
    assert tables.pooling_factor.tolist() == [1.0, 2.0]
    assert tables.lookups.tolist() == [3, 6]
    assert tables.unique_rows.tolist() == [2, 4]  # rows 1, 2; rows 5, 6, 7, 8
    assert tables.bins[0, :3].tolist() == [0.5, 0.5, 0.0]  # row 1 once, row 2 twice
    assert tables.bins[1, :3].tolist() == [0.75, 0.0, 0.25]  # row 5 three times, in both features


@dataclass
class TwoInputs:
    ids: KeyedJaggedTensor
    scores: KeyedJaggedTensor


@pytest.mark.parametrize(
    "batch",
    [
        (torch.zeros(3), keyed(**BATCH), torch.zeros(3)),
        {"sparse": keyed(**BATCH)},
        TwoInputs(keyed(u=BATCH["u"]), keyed(0.5, i=BATCH["i"], j=BATCH["j"])),
    ],
)
def test_batches_that_hold_keyed_jagged_tensors_are_read(batch):
    assert record(model_tables([USER, ITEM]), [batch]).tables.lookups.tolist() == [3, 6]


@pytest.mark.parametrize(
    "batches",
    [
        [keyed(u=[[1]])],
        [keyed(u=[[1]], i=[[20]], j=[[]])],
        [keyed(u=[[-1]], i=[[1]], j=[[]])],
        [],
        [(keyed(**BATCH), keyed(u=[[1]] * 3))],
        [(keyed(u=[[1]]), keyed(i=[[1], [2]], j=[[], []]))],
    ],
)
def test_batches_that_do_not_tell_are_refused(batches):
    with pytest.raises(ValueError):
        record(model_tables([USER, ITEM]), batches)


FUNCTIONS = """
import torch
from tests.dreamshard.torchrec.test_batches import keyed
from tests.helpers.meta_models import bag, bags, sequences

def make_model():
    return torch.nn.ModuleDict({"ebc": bags(bag("item", 50, 6, ["i", "j"])), "ec": sequences("word", 1000, 8)})

def make_batches():
    while True:
        yield keyed(word=[[7], [8], [9]], i=[[1], [1], [2]], j=[[], [], []])
"""


@pytest.fixture
def opened(tmp_path):
    """Opens the model with lookups of some samples."""
    (tmp_path / "own.py").write_text(FUNCTIONS)
    both = {"source": f"{tmp_path}/own.py:make_model", "batches": f"{tmp_path}/own.py:make_batches"}
    return lambda samples: open_model(WorkloadConfig(**both, dim=None, batch_size=samples))


def test_a_models_tables_have_the_lookups_of_its_batches(opened):
    model = opened(6)
    item, word = (statistics(table, model.lookups(t)) for t, table in enumerate(model.listed))
    assert [table.name for table in model.listed] == ["item", "word"]
    assert (int(item.rows), int(item.dim), int(item.lookups), int(item.unique_rows)) == (50, 8, 6, 2)
    assert item.bins[0, 1:3].tolist() == [0.5, 0.5]  # row 2 twice, row 1 four times
    assert (float(word.pooling_factor), float(item.poolings), float(word.poolings)) == (1, 2, 0)
    assert "lookups were counted in 6 samples of 2 batches, as one batch" in model.notes


def test_identities_change_with_lookups_and_with_nothing_else(opened):
    first, again, more = map(opened, (3, 3, 6))
    assert first.token == again.token != more.token
    assert first.fingerprint(0) == again.fingerprint(0) != more.fingerprint(0)
