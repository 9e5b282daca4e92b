"""Sources of tables: those that the library reads, and models made by a person's own functions, which need TorchRec."""

import importlib
from functools import lru_cache
from types import ModuleType

from dreamshard.workloads import Workload, WorkloadConfig, change_token, is_function, open_workload


def token_of(workload: WorkloadConfig) -> str:
    """Identity of a source's content now; functions are called for it, files only listed.

    Raises:
        ValueError: there is no such source, or it cannot be read.
    """
    return _opened(workload, "").token if is_function(workload.source) else change_token(workload.source)


def opened_source(workload: WorkloadConfig, token: str) -> Workload:
    """The source, opened once per process for all of its tables.

    Args:
        token: `token_of` the source, so that a changed one is opened again.

    Raises:
        ValueError: the source is invalid, or a function of a model returned something else in another process.
    """
    if not is_function(workload.source):
        return _opened(workload, token)
    model = _opened(workload, "")
    if model.token != token:
        raise ValueError(
            f"{workload.source} or its batches gave other tables in this process than where the ingestion began; make the "
            "functions return the same each time"
        )
    return model


@lru_cache(maxsize=1)
def _opened(workload: WorkloadConfig, token: str) -> Workload:
    opened: Workload = (
        torchrec_bridge().open_model(workload) if is_function(workload.source) else open_workload(workload)
    )
    return opened


close = _opened.cache_clear
"""Forget what is open, so that it takes no memory and is read again next time."""


def torchrec_bridge() -> ModuleType:
    """The package `dreamshard.torchrec`, which takes seconds to import.

    Raises:
        ValueError: TorchRec cannot be imported.
    """
    try:
        return importlib.import_module("dreamshard.torchrec")
    except ImportError as error:
        raise ValueError(
            f"torchrec cannot be imported ({error}); `pip install --no-deps torchrec==1.8.0`, or give a list of its tables"
        ) from error
