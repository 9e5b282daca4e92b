"""An all-to-all that is not measured: what the links of an accelerator's node give."""

from collections.abc import Mapping

from dreamshard.costs import Exchange, ExchangeSample
from dreamshard.hardware.accelerator import AcceleratorSpec
from dreamshard.hardware.links import all_to_all_s


def exchange_by_links(
    exchange: Exchange, spec: AcceleratorSpec, *, testbed: str, hardware: str, versions: Mapping[str, str] | None = None
) -> ExchangeSample:
    """A sample of the exchange over the links of `spec`, without noise.

    Args:
        testbed: kind of the testbed that says so, and `hardware` what it stands for.
        versions: of libraries, where it measures other costs with them.
    """
    comm_ms = (1e3 * all_to_all_s(exchange.sent_bytes.double(), spec, exchange.devices_per_host)).float()
    return ExchangeSample(
        exchange=exchange,
        forward_ms=comm_ms,
        backward_ms=comm_ms,
        spread_ms=0.0,
        repeats=1,
        clock="model",
        testbed=testbed,
        hardware=hardware,
        host_devices=spec.devices_per_node,
        versions=versions or {},
    )
