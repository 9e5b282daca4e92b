import pytest
import torch

pytest.importorskip("torchrec")

from dreamshard.constraints import ANY_SHARDING, Constraints
from dreamshard.model_table import ModelTable
from dreamshard.placement import SHARDING_TYPES
from dreamshard.torchrec import narrowed, tables_of
from tests.helpers.meta_models import bag, bags, sequences

MODEL = torch.nn.ModuleDict({"ebc": bags(bag("pooled"), bag("odd", dim=10)), "ec": sequences("words")})
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


def test_managed_collision_collections_are_row_wise_only():
    collection = "torchrec.modules.mc_embedding_modules.ManagedCollisionEmbeddingBagCollection"
    table = ModelTable(name="t", rows=10, dim=8, features=("f",), collection=collection)
    constraints, notes = narrowed(ANY_SHARDING, {"t": table}, device_type="cuda")
    assert constraints.sharding_types_of["t"] == ("row_wise",)
    assert "t take only the sharding types" in notes[0]
