"""Constraints of a placement that TorchRec's default sharders can run."""

import pytest
import torch

torchrec = pytest.importorskip("torchrec")

from dreamshard.constraints import ANY_SHARDING, Constraints  # noqa: E402
from dreamshard.placement import SHARDING_TYPES  # noqa: E402
from dreamshard.torchrec import narrowed, tables_of  # noqa: E402
from dreamshard.workloads.model_tables import ModelTable  # noqa: E402

META = torch.device("meta")


def bag(name: str, dim: int = 16) -> torchrec.EmbeddingBagConfig:
    return torchrec.EmbeddingBagConfig(name=name, num_embeddings=100, embedding_dim=dim, feature_names=[name])


def sequence(name: str, dim: int = 16) -> torchrec.EmbeddingConfig:
    return torchrec.EmbeddingConfig(name=name, num_embeddings=100, embedding_dim=dim, feature_names=[name])


class Model(torch.nn.Module):
    """A pooled table, one of 10 columns, and a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.ebc = torchrec.EmbeddingBagCollection(device=META, tables=[bag("pooled"), bag("odd", 10)])
        self.ec = torchrec.EmbeddingCollection(device=META, tables=[sequence("words")])


def types_of(constraints: Constraints = ANY_SHARDING, device: str = "cuda", **options) -> dict[str, set[str]]:
    tables = tables_of(Model()).by_name
    found, _ = narrowed(constraints, tables, device_type=device, **options)
    return {name: set(found.sharding_types_for(name)) for name in tables}


def test_sequences_and_odd_columns_are_narrowed_to_what_torchrec_runs():
    found = types_of()
    assert found["pooled"] == set(SHARDING_TYPES)
    assert found["words"] == {"table_wise", "row_wise", "data_parallel"}
    assert found["odd"] == {"data_parallel"}
    assert types_of(device="cpu")["words"] == {"table_wise", "row_wise"}
    assert types_of(device="cpu")["pooled"] == {"table_wise", "column_wise", "data_parallel"}


def test_what_torchrec_cannot_run_in_any_way_is_refused():
    with pytest.raises(ValueError, match=r"'ec.words' cannot be sharded.* offers"):
        types_of(Constraints(sharding_types=SHARDING_TYPES, sharding_types_of={"words": ("grid_shard",)}))
    with pytest.raises(ValueError, match=r"'ebc.odd' has 10 columns.*widen the table"):
        types_of(Constraints(sharding_types=("table_wise", "row_wise")))


def test_what_torchrec_cannot_cache_is_not_cached():
    tables = tables_of(Model()).by_name
    may = Constraints(sharding_types=SHARDING_TYPES, caching=True)
    found, _ = narrowed(may, tables, device_type="cuda")
    assert [name for name in tables if found.may_be_cached(name)] == ["pooled", "words"]
    on_cpu, _ = narrowed(may, tables, device_type="cpu")
    assert not on_cpu.caching
    with pytest.raises(ValueError, match=r"'odd'\] are to be cached and never"):
        narrowed(Constraints(cached_share_of={"odd": 0.5}, sharding_types=SHARDING_TYPES), tables, device_type="cuda")


def test_managed_collision_collections_are_row_wise_only():
    table = ModelTable(
        name="t",
        rows=10,
        dim=8,
        features=("f",),
        collection="torchrec.modules.mc_embedding_modules.ManagedCollisionEmbeddingBagCollection",
    )
    found, notes = narrowed(ANY_SHARDING, {"t": table}, device_type="cuda")
    assert found.sharding_types_of["t"] == ("row_wise",)
    assert "t are sharded only in ways" in notes[0]
