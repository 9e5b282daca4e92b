"""All-to-alls measured alone: they serve every training on the same hardware.

exchange_samples/links=<links>/<content>.parquet       all-to-alls that were measured in a row
"""

import json
from collections.abc import Mapping, Sequence

import torch

from dreamshard.costs import Exchange, ExchangeSample
from storage.filesystem import AnyPath, list_files
from storage.lake.parquet_files import content_id, hive_folder, read_parquet_files, write_rows
from storage.lake.rows import Row, now

_OF_SAMPLE = ("testbed", "hardware", "host_devices", "clock", "spread_ms", "repeats")
_OF_DEVICES = ("forward_ms", "backward_ms")


def write_exchanges(root: AnyPath, links: str, samples: Sequence[ExchangeSample]) -> None:
    """Write samples below the root of a lake.

    Args:
        links: what connects the devices, whatever their number; `read_exchanges` finds the samples under it.
    """
    content = [_to_row(sample) for sample in samples]
    path = _links_folder(root, links) / f"{content_id(content)}.parquet"
    if content and not path.exists():
        write_rows(path, "exchange_samples", [row | {"created_at": now()} for row in content])


def read_exchanges(root: AnyPath, links: str, versions: Mapping[str, str]) -> list[ExchangeSample]:
    """The samples of these links, oldest first, without those of other library versions than `versions`."""
    files = list_files(_links_folder(root, links), "*.parquet")
    rows = [row for table in read_parquet_files(files) for row in table.to_pylist()]
    samples = [_from_row(row) for row in sorted(rows, key=lambda row: row["created_at"])]
    return [sample for sample in samples if sample.versions.items() <= versions.items()]


def _links_folder(root: AnyPath, links: str) -> AnyPath:
    return hive_folder(root / "exchange_samples", links=links)


def _to_row(sample: ExchangeSample) -> Row:
    exchange = sample.exchange
    return {
        **{name: getattr(sample, name) for name in _OF_SAMPLE},
        **{name: getattr(sample, name).tolist() for name in _OF_DEVICES},
        **{f"slowest_{name}": float(getattr(sample, name).max()) for name in _OF_DEVICES},
        "versions": json.dumps(dict(sample.versions), sort_keys=True),
        "num_devices": exchange.num_devices,
        "devices_per_host": exchange.devices_per_host,
        "largest_bytes": int(exchange.sent_bytes.max()),
        "sent_bytes": exchange.sent_bytes.tolist(),
    }


def _from_row(row: Row) -> ExchangeSample:
    return ExchangeSample(
        exchange=Exchange(sent_bytes=torch.tensor(row["sent_bytes"]), devices_per_host=row["devices_per_host"]),
        versions=json.loads(row["versions"]),
        forward_ms=torch.tensor(row["forward_ms"]),
        backward_ms=torch.tensor(row["backward_ms"]),
        **{name: row[name] for name in _OF_SAMPLE},
    )
