"""Turn collected costs into a bundled placer: `python -m dreamshard.shard_profiling.publish FOLDER --name h200`.

Learns a placer from the shards and adds one folder to the package's `models/`, atomically: the placer, a description of
its measurements, the measurements as one Parquet file, and a report of them in Markdown. It is package data, so
`dreamshard place ... --placer h200` works from an installed wheel.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from dreamshard.formatting import markdown_table
from dreamshard.shard_profiling.bundled_placers import PACKAGED, check_name, save_bundled
from dreamshard.shard_profiling.dataset import measurement_conditions, parquet_bytes, read_shards, samples_of
from dreamshard.shard_profiling.fit import ShardTraining, learn_from_shards
from dreamshard.shard_profiling.report import summary
from dreamshard.testbeds.accelerators.refit import refit
from dreamshard.testbeds.accelerators.specs import AcceleratorSpec, accelerator
from dreamshard.training import make_placer

SHARDS = "shards.parquet"
REPORT = "REPORT.md"


def publish(source: Path, name: str, links: AcceleratorSpec, training: ShardTraining, package: Path = PACKAGED) -> Path:
    """Learn from a collection and add placer, data and report to `package`; returns their folder.

    Args:
        source: a folder of parts, or one file.
        name: for `--placer`; a word of the hardware's name, as its driver reports it.
        links: accelerator whose links and memory complete a placer learnt from one device.

    Raises:
        ValueError: there are too few shards, they were measured under several conditions, or on other hardware than `name`.
        TrainingDivergedError: the loss is not finite.
    """
    shards = read_shards(source)
    check_name(name, str(measurement_conditions(shards)["hardware"]))
    fitted = learn_from_shards(shards, links, training)
    report = [
        "# Costs of shards",
        summary(shards),
        "Mean relative error on shards that were held out, by number of tables:",
        markdown_table([error.row() for error in fitted.errors]),
        f"The roofline's figures, refitted: {refit(links, samples_of(shards))}\n",
    ]
    extra_files = {SHARDS: parquet_bytes(shards), REPORT: "\n\n".join(report).encode()}
    return save_bundled(package, name, make_placer(fitted.state), fitted.measurements, extra_files)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command; prints the report, and on stderr what was written as JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m dreamshard.shard_profiling.publish", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument(
        "source", type=Path, help="output of `dreamshard.shard_profiling.collect`: a folder, or one file"
    )
    parser.add_argument("--name", required=True, help="name of the placer, e.g. h200; a word of the hardware's name")
    parser.add_argument("--links", help="accelerator whose links are used; default: the name")
    parser.add_argument("--package", type=Path, default=PACKAGED, help="folder of the bundled placers")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    try:
        links = accelerator(options.links or options.name)
        folder = publish(options.source, options.name, links, ShardTraining(seed=options.seed), options.package)
    except ValueError as error:
        parser.exit(1, f"{error}\n")
    sys.stdout.write((folder / REPORT).read_text(encoding="utf-8"))
    data = folder / SHARDS
    written = {"folder": str(folder), "shards": len(read_shards(data)), "data_bytes": data.stat().st_size}
    sys.stderr.write(json.dumps(written) + "\n")


if __name__ == "__main__":
    main()
