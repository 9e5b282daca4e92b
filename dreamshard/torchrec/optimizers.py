"""Which optimizer TorchRec fuses into the backward pass of a table."""

from collections.abc import Mapping
from typing import Any

from torchrec.distributed.utils import optimizer_type_to_emb_opt_type

from dreamshard.tables import BYTES_PER_ROW_STATE, Optimizer

_OPTIMIZERS: dict[str, Optimizer] = {
    "sgd": "sgd",
    "exact_sgd": "sgd",
    "row_wise_adagrad": "rowwise_adagrad",
    "exact_row_wise_adagrad": "rowwise_adagrad",
    "exact_adagrad": "adagrad",
    "adam": "adam",
    "lamb": "lamb",
    "partial_row_wise_adam": "partial_rowwise_adam",
    "partial_row_wise_lamb": "partial_rowwise_lamb",
    "lars_sgd": "lars_sgd",
}
"""By the value of fbgemm's `EmbOptimType`."""


def of_parameter(parameter: Any, table: str) -> tuple[Optimizer | None, frozenset[str]]:
    """The optimizer that `apply_optimizer_in_backward` set on a table's weights, and the names of its settings.

    Args:
        table: for messages.

    Returns:
        None for an optimizer if none was set.

    Raises:
        ValueError: there are several, or it is none that can be planned with.
    """
    classes = getattr(parameter, "_optimizer_classes", [])
    settings = getattr(parameter, "_optimizer_kwargs", [{}])
    if len(classes) > 1:
        raise ValueError(
            f"table {table!r} has {len(classes)} optimizers in its backward pass "
            f"({', '.join(each.__name__ for each in classes)}), but TorchRec fuses one; apply one of them"
        )
    if not classes:
        return None, frozenset()
    named = settings[0].get("optimizer")  # an fbgemm optimizer, which then precedes the class
    return (_named(named, table) if named else of_class(classes[0], table)), frozenset(settings[0]) - {"optimizer"}


def of_fused_params(fused_params: Mapping[str, Any] | None) -> tuple[Optimizer | None, frozenset[str]]:
    """The optimizer of a sharder's `fused_params`, for tables without one of their own, and the names of other settings.

    Raises:
        ValueError: it is none that can be planned with.
    """
    params = fused_params or {}
    named = params.get("optimizer")
    return (_named(named, "fused_params") if named else None), frozenset(params) - {"optimizer"}


def of_class(optimizer: type, table: str) -> Optimizer:
    """The fused optimizer that TorchRec uses for a class of `torch.optim` or `torchrec.optim`.

    Raises:
        ValueError: TorchRec has none for it.
    """
    try:
        fused = optimizer_type_to_emb_opt_type(optimizer)
    except ValueError:
        raise _unknown(f"{optimizer.__module__}.{optimizer.__name__}", table) from None
    return _named(fused, table)


def _named(optimizer: Any, table: str) -> Optimizer:
    value = str(getattr(optimizer, "value", optimizer))
    if value not in _OPTIMIZERS:
        raise _unknown(value, table)
    return _OPTIMIZERS[value]


def _unknown(optimizer: str, table: str) -> ValueError:
    return ValueError(
        f"the optimizer {optimizer} of {table!r} is none whose state is known here, so the bytes of its tables are not; "
        f"use one of {', '.join(BYTES_PER_ROW_STATE)} (torch.optim or torchrec.optim classes that TorchRec fuses)"
    )
