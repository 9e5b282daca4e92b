from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.distributed.optim import _apply_optimizer_in_backward as apply_in_backward

torchrec = pytest.importorskip("torchrec")

from torchrec.distributed.embedding import EmbeddingCollectionSharder  # noqa: E402
from torchrec.distributed.planner import ParameterConstraints  # noqa: E402
from torchrec.distributed.sharding_plan import get_default_sharders  # noqa: E402
from torchrec.modules import mc_modules  # noqa: E402
from torchrec.modules.embedding_configs import DataType, PoolingType  # noqa: E402
from torchrec.modules.fp_embedding_modules import FeatureProcessedEmbeddingBagCollection  # noqa: E402
from torchrec.modules.itep_embedding_modules import ITEPEmbeddingBagCollection  # noqa: E402
from torchrec.modules.mc_embedding_modules import ManagedCollisionEmbeddingBagCollection  # noqa: E402
from torchrec.quant.embedding_modules import EmbeddingBagCollection as QuantCollection  # noqa: E402

from dreamshard.constraints import ANY_SHARDING, UNCONSTRAINED, Constraints  # noqa: E402
from dreamshard.tables import SHARDING_TYPES, ModelTable  # noqa: E402
from dreamshard.torchrec import discover, narrowed, tables_of  # noqa: E402
from tests.helpers.meta_models import META, bag, bags, sequences  # noqa: E402


def make_model() -> nn.Module:
    """Pooled, weighted and sequence tables in several modules."""
    sparse = {
        "ebc": bags(bag("user"), bag("item", 50, 8, ["clicked", "bought"], pooling=PoolingType.MEAN)),
        "weighted": bags(bag("score", data_type=DataType.FP16), is_weighted=True),
    }
    history, over = sequences("word", data_type=DataType.BF16), nn.Linear(4, 2, device=META)
    return nn.ModuleDict({"sparse": nn.ModuleDict(sparse), "history": history, "over": over})


def test_all_collections_of_a_model_are_found_with_their_paths():
    read = tables_of(make_model())
    assert [d.module_path for d in read.details] == ["sparse.ebc", "sparse.ebc", "sparse.weighted", "history"]
    assert [d.pooling for d in read.details] == ["sum", "mean", "sum", "none"]
    assert [d.precision for d in read.details] == ["fp32", "fp32", "fp16", "bf16"]
    assert [d.is_weighted for d in read.details] == [False, False, True, False]
    assert read.by_name["item"].features == ("clicked", "bought")
    assert read.tables.rows.tolist() == [100, 50, 100, 100]


def test_tables_are_where_torchrecs_sharders_find_them():
    assert discover(make_model(), get_default_sharders())[0] == list(tables_of(make_model()).details)
    assert [table.path for table in discover(make_model(), [EmbeddingCollectionSharder()])[0]] == ["history.word"]


@pytest.mark.parametrize(
    ("optimizer", "name"),
    [(torch.optim.Adagrad, "adagrad"), (torchrec.optim.PartialRowWiseAdam, "partial_rowwise_adam")],
)
def test_the_optimizer_in_the_backward_pass_is_known(optimizer, name):
    model = make_model()
    for collection in (model["sparse"], model["history"]):
        apply_in_backward(optimizer, collection.parameters(), {"lr": 0.1})
    read = tables_of(model)
    assert {d.optimizer for d in read.details} == {name}
    assert read.task(2, 2**30).optimizer == name


def test_a_collection_has_the_path_of_the_module_that_is_sharded():
    model = nn.Module()
    inner = bags(bag("user", features=["f"]), is_weighted=True)
    model.processed = FeatureProcessedEmbeddingBagCollection(inner, {"f": nn.Module()})
    config = bag("item", features=["g"])
    policy = mc_modules.DistanceLFU_EvictionPolicy()
    remap = mc_modules.MCHManagedCollisionModule(100, META, policy, eviction_interval=10, input_hash_size=1000)
    remaps = mc_modules.ManagedCollisionCollection({"item": remap}, [config])
    model.remapped = ManagedCollisionEmbeddingBagCollection(bags(config), remaps)
    read = tables_of(model)
    assert [d.module_path for d in read.details] == ["processed", "remapped"]
    assert any("remaps ids before lookups" in note for note in read.notes)


@pytest.mark.parametrize(
    "source",
    [
        ITEPEmbeddingBagCollection(bags(bag("user")), nn.Module()),
        QuantCollection([bag("user", data_type=DataType.INT8)], False, META),
        [1],
        bags(bag("x", data_type=DataType.INT4)),
        bags(bag("x", use_virtual_table=True)),
    ],
)
def test_what_has_no_tables_to_plan_is_refused_by_name(source):
    with pytest.raises(ValueError):
        tables_of(source)


def test_without_collections_plain_embeddings_are_read():
    model = nn.Module()
    model.bags = nn.ModuleList([nn.EmbeddingBag(rows, dim, device=META) for rows, dim in ((100, 16), (7, 10))])
    model.words = nn.Embedding(50, 8, device=META, dtype=torch.float16)
    read = tables_of(model)
    assert read.tables.names == ("bags.0", "bags.1", "words")
    assert read.tables.dim.tolist() == [16, 12, 8]
    assert [d.pooling for d in read.details] == ["mean", "mean", "none"]
    assert [d.precision for d in read.details] == ["fp32", "fp32", "fp16"]
    with pytest.raises(ValueError):
        narrowed(UNCONSTRAINED, read.by_name, device_type="cuda")
    model.ebc = bags(bag("user"))
    assert tables_of(model).tables.names == ("user",), "TorchRec shards collections only"


def test_fbgemms_batched_embeddings_are_read_as_tables():
    from fbgemm_gpu import split_table_batched_embeddings_ops_training as fbgemm

    specs = [(rows, 16, fbgemm.EmbeddingLocation.HOST, fbgemm.ComputeDevice.CPU) for rows in (10, 20)]
    options = {"feature_table_map": [0, 1, 1], "optimizer": fbgemm.OptimType.EXACT_ROWWISE_ADAGRAD}
    model = nn.Module()
    model.tbe = fbgemm.SplitTableBatchedEmbeddingBagsCodegen(specs, **options)
    read = tables_of(model)
    assert read.tables.names == ("tbe.0", "tbe.1")
    assert read.tables.rows.tolist() == [10, 20]
    assert [len(d.features) for d in read.details] == [1, 2]
    assert {d.optimizer for d in read.details} == {"rowwise_adagrad"}


MODEL = nn.ModuleDict({"ebc": bags(bag("pooled"), bag("odd", dim=10)), "ec": sequences("words")})
TABLES = tables_of(MODEL).by_name


def types_of(constraints: Constraints = ANY_SHARDING, device: str = "cuda", **options) -> dict[str, set[str]]:
    constraints_left, _ = narrowed(constraints, TABLES, device_type=device, **options)
    return {name: set(constraints_left.sharding_types_for(name)) for name in TABLES}


def test_sequences_and_odd_columns_get_what_torchrec_runs():
    types = types_of()
    assert types["pooled"] == set(SHARDING_TYPES)
    assert types["words"] == {"table_wise", "row_wise", "data_parallel"}
    assert types["odd"] == {"data_parallel"}
    assert types_of(device="cpu")["words"] == {"table_wise", "row_wise"}, "fbgemm would pool copies of sequences"
    assert types_of(device="cpu")["pooled"] == {"table_wise", "column_wise", "data_parallel"}


def test_usual_types_are_widened_for_a_table_that_has_none_of_them():
    constraints, notes = narrowed(Constraints(), TABLES, device_type="cuda")
    assert constraints.sharding_types_of["odd"] == ("data_parallel",)
    assert constraints.sharding_types_of["pooled"] == ("table_wise", "column_wise")
    assert "odd are copied to every rank" in notes[-1]


@pytest.mark.parametrize(
    "constraints",
    [
        {"sharding_types_of": {"words": ("grid_shard",)}},
        {"sharding_types": ("table_wise", "row_wise")},
        {"cached_share_of": {"odd": 0.5}},
    ],
)
def test_what_torchrec_cannot_run_in_any_way_is_refused(constraints):
    with pytest.raises(ValueError):
        types_of(Constraints(**{"sharding_types": SHARDING_TYPES, **constraints}))


def test_what_torchrec_cannot_cache_is_not_cached():
    may = Constraints(sharding_types=SHARDING_TYPES, caching=True)
    constraints, _ = narrowed(may, TABLES, device_type="cuda")
    assert [name for name in TABLES if constraints.may_be_cached(name)] == ["pooled", "words"]
    assert not narrowed(may, TABLES, device_type="cpu")[0].caching
    only = {"pooled": ParameterConstraints(compute_kernels=["fused_uvm_caching"])}
    halved = replace(may, cached_share_of={"pooled": 0.5})
    assert narrowed(halved, TABLES, device_type="cuda", given=only)[0].cached_share_of["pooled"] == 0.5


def test_managed_collision_collections_are_row_wise_only():
    collection = "torchrec.modules.mc_embedding_modules.ManagedCollisionEmbeddingBagCollection"
    table = ModelTable(name="t", rows=10, dim=8, features=("f",), module_class=collection)
    constraints, notes = narrowed(ANY_SHARDING, {"t": table}, device_type="cuda")
    assert constraints.sharding_types_of["t"] == ("row_wise",)
    assert "t take only the sharding types" in notes[0]
