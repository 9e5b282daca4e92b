"""TorchRec's planner as a placer: `torchrec_planner` of whole tables, `torchrec_planner_columns` also of their columns."""

from importlib.util import find_spec

from dreamshard.hardware.accelerator import AcceleratorSpec
from dreamshard.tasks import Placer

RIVALS = ("torchrec_planner", "torchrec_planner_columns")


def rival(name: str, *, spec: AcceleratorSpec | None) -> Placer:
    """The rival `name`, which assumes the bandwidths of `spec`, or TorchRec's defaults.

    Raises:
        ValueError: there is no such rival, or torchrec is not installed.
    """
    if name not in installed_rivals():
        raise ValueError(
            f"{name} is none of {', '.join(RIVALS)}, or torchrec is not installed; `pip install --no-deps torchrec==1.8.0`"
        )
    from dreamshard.rivals.torchrec_planner import TorchRecPlanner

    return TorchRecPlanner(spec, name=name, columns=name == RIVALS[1])


def installed_rivals() -> tuple[str, ...]:
    """`RIVALS`; none if torchrec is not installed."""
    return RIVALS if find_spec("torchrec") else ()
