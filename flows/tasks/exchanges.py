"""Measures all-to-alls by themselves, once per hardware; every later training on it reads them from the lake."""

import torch
from prefect import get_run_logger

from dreamshard.cost_model.exchange_law import Topology
from dreamshard.costs import Exchange, ExchangeSample
from dreamshard.exchange_design import exchanges_for
from dreamshard.testbeds.machine import library_versions
from dreamshard.training import TRAINING_ALGORITHMS
from flows.decisions.warm_start import WarmStart
from flows.runtime.progress import report_progress
from flows.runtime.retries import measuring_task
from flows.runtime.testbed_pool import TestbedReference, answering, shared_testbed
from storage.lake.exchange_samples import read_exchanges, write_exchanges
from storage.store import Store

_Key = tuple[Topology, tuple[int, ...]]


@measuring_task("measure exchanges")
def measure_exchanges(store: Store, dataset: str, tasks: str, start: WarmStart, testbed: TestbedReference) -> int:
    """Tasks -> all-to-alls that the lake lacks of this hardware, measured; returns their number.

    A testbed that cannot measure them measures none, nor does a training whose network would not learn from them.

    Raises:
        MeasurementError: a rank died or hung, twice; what was measured before is in the lake.
        ValueError: the testbed has fewer devices than the exchanges asked for.
    """
    if not TRAINING_ALGORITHMS[start.config.algorithm].uses_exchanges:
        return 0
    with shared_testbed(store, testbed) as opened:
        if opened.links is None:
            get_run_logger().info("%s measures no exchanges by themselves", testbed.identity)
            return 0
    drawn = store.lake.read_tasks(dataset, "train", tasks)
    designed = exchanges_for(drawn, testbed.batch_size, testbed.measure.exchange_devices)
    known = known_exchanges(store, testbed)
    hosts = max((sample.host_devices for sample in known if sample.host_devices), default=None)
    measured = {_key(sample.exchange, hosts) for sample in known}
    missing = [exchange for exchange in designed if _key(exchange, hosts) not in measured]
    samples: list[ExchangeSample] = []
    try:
        for exchange in missing:
            samples.append(_measured(store, testbed, exchange))
            report_progress("exchange", len(samples), len(missing), f"{exchange.num_devices} devices")
    finally:
        write_exchanges(store.lake.root, testbed.links, samples)
    get_run_logger().info(
        "measured %d exchanges on up to %d devices; %d were in the lake",
        len(missing),
        max((exchange.num_devices for exchange in designed), default=1),
        len(known),
    )
    return len(missing)


def known_exchanges(store: Store, testbed: TestbedReference) -> list[ExchangeSample]:
    """All-to-alls in the lake, measured on the testbed's links with the present versions of the libraries."""
    return read_exchanges(store.lake.root, testbed.links, library_versions())


def _key(exchange: Exchange, host_devices: int | None) -> _Key:
    shape = Topology.of(exchange.num_devices, exchange.devices_per_host, host_devices)
    return shape, tuple(exchange.sent_bytes.tolist())


def _measured(store: Store, testbed: TestbedReference, exchange: Exchange) -> ExchangeSample:
    what = f"an all-to-all of {exchange.num_devices} devices"
    with answering(store, testbed, what) as opened:
        sample = opened.measure_exchange(exchange)
    slowest_ms = torch.maximum(sample.forward_ms, sample.backward_ms).max()
    get_run_logger().info("%s, at most %d bytes each: %.4f ms", what, int(exchange.sent_bytes.max()), float(slowest_ms))
    return sample
