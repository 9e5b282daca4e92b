"""One table of a list or a model: its size, and what a list or a trainer says of it."""

from typing import Annotated, Literal

import pydantic
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field

from dreamshard.files import MOST_COLUMNS, MOST_ROWS
from dreamshard.tables import NUM_BINS, Optimizer, Precision


def _adding_up(bins: tuple[float, ...]) -> tuple[float, ...]:
    if sum(bins) > 0 and abs(sum(bins) - 1) > 0.01:
        raise ValueError(
            f"shares of distinct rows in bins, or of lookups in blocks, add up to {sum(bins):.4g}, not to 1"
        )
    return bins


Pooling = Literal["sum", "mean", "none"]
"""How a sample's vectors become one; `none` keeps each, as for sequences."""
_OUTPUTS = {"pooled": "sum", "sequence": "none"}

Number = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, le=2**40)]
Bins = Annotated[tuple[Number, ...], Field(min_length=NUM_BINS, max_length=NUM_BINS), AfterValidator(_adding_up)]
_JOINED = BeforeValidator(lambda value: value.split("+") if isinstance(value, str) else value)
Features = Annotated[tuple[str, ...], _JOINED]
BlockShare = Annotated[tuple[Number, ...], Field(min_length=1), _JOINED, AfterValidator(_adding_up)]
_AS_PRINTED = BeforeValidator(lambda value: value.rpartition(".")[2].lower() if isinstance(value, str) else value)
"""TorchRec prints values as `FP16` or `DataType.FP16`."""


@pydantic.dataclasses.dataclass(frozen=True, config=ConfigDict(coerce_numbers_to_str=True, str_strip_whitespace=True))
class ModelTable:
    """One table of a list or a model; None if lookups are not known.

    Attributes:
        name: in the model, unique within its module.
        dim: need not be a multiple of 4.
        pooling_factor: this, `lookups`, `unique_rows` and `bins` are as in `Tables`.
        features: names of the features that look it up.
        module_path: of its collection within the model, as in `named_modules`; empty for the model itself.
        precision: type of the weights.
        is_weighted: whether its lookups have weights.
        optimizer: fused into the backward pass; None if the model does not say.
        num_poolings: pooled vectors per sample; None for one per feature.
        block_share: of the lookups, in each of any number of equal blocks of rows (`0.7+0.2+0.1` in CSV).
        collection: class of the module that holds it, with its package; empty if unknown.

    Raises:
        ValidationError: a value is out of range.
    """

    name: Annotated[str, Field(min_length=1)]
    rows: Annotated[int, Field(ge=1, le=MOST_ROWS)]
    dim: Annotated[int, Field(ge=1, le=MOST_COLUMNS)]
    pooling_factor: Annotated[Number, Field(le=1e6)] | None = None
    lookups: Count | None = None
    unique_rows: Count | None = None
    bins: Bins | None = None
    features: Features = ()
    module_path: str = ""
    precision: Annotated[Precision, _AS_PRINTED] = "fp32"
    pooling: Annotated[Pooling, _AS_PRINTED, BeforeValidator(lambda value: _OUTPUTS.get(value, value))] = "sum"
    is_weighted: bool = False
    optimizer: Annotated[Optimizer, _AS_PRINTED] | None = None
    collection: str = ""
    num_poolings: Annotated[float, Field(gt=0, le=1e6)] | None = None
    block_share: BlockShare | None = None

    @property
    def path(self) -> str:
        """Module path and name."""
        return f"{self.module_path}.{self.name}" if self.module_path else self.name

    @property
    def poolings(self) -> float:
        """As in `Tables`."""
        pooled = float(max(1, len(self.features))) if self.num_poolings is None else self.num_poolings
        return 0.0 if self.pooling == "none" else pooled
