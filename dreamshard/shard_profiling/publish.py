"""Collected costs -> what the package ships: `python -m dreamshard.shard_profiling.publish FOLDER --name h200`.

Learns a placer from the shards and puts one folder into `dreamshard/models/`, whole or not at all: the placer, from
which measurements it was learnt, the measurements themselves as one Parquet file, and a report of them in Markdown.
What lies there is package data, so `dreamshard place ... --placer h200` works from an installed wheel.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dreamshard.formatting import markdown_table
from dreamshard.shard_profiling.bundled import PACKAGED, check_name, save_shipped
from dreamshard.shard_profiling.dataset import MeasuredShard, parquet_bytes, read_shards, samples_of
from dreamshard.shard_profiling.fit import LearntFromShards, ShardTraining, describe, learn_from_shards
from dreamshard.shard_profiling.report import markdown
from dreamshard.testbeds.refit import refit
from dreamshard.testbeds.specs import AcceleratorSpec, accelerator
from dreamshard.training import make_placer

SHARDS = "shards.parquet"
REPORT = "REPORT.md"


@dataclass(frozen=True, kw_only=True)
class Shipped:
    """What was put into the package.

    Attributes:
        folder: of the placer.
        shards: that it was learnt from.
        data_bytes: size of their Parquet file.
        report: Markdown.
    """

    folder: Path
    shards: int
    data_bytes: int
    report: str


def ship(source: Path, name: str, links: AcceleratorSpec, training: ShardTraining, package: Path = PACKAGED) -> Shipped:
    """Learn from a collection and put placer, data and report into `package`.

    Args:
        source: a folder of parts, or one file.
        name: what `--placer` shall call it; a word of the hardware's name, as its driver reports it.
        links: whose links and memory complete a placer learnt from one device.
        training: how long, and with which seed.
        package: the folder of shipped placers.

    Raises:
        ValueError: there are too few shards, they were measured in several ways, or on other hardware than `name`.
        TrainingDivergedError: the loss is not finite.
    """
    shards = read_shards(source)
    check_name(name, str(describe(shards)["hardware"]))
    learnt = learn_from_shards(shards, links, training)
    data, text = parquet_bytes(shards), _report(shards, learnt, links)
    folder = save_shipped(package, name, make_placer(learnt.state), learnt.measurements, {SHARDS: data, REPORT: text})
    return Shipped(folder=folder, shards=len(shards), data_bytes=len(data), report=text)


def _report(shards: Sequence[MeasuredShard], learnt: LearntFromShards, links: AcceleratorSpec) -> str:
    parts = [
        "# Costs of shards",
        markdown(shards),
        "Mean relative error on shards that were held out, by number of tables:",
        markdown_table([error.row() for error in learnt.errors]),
        f"The roofline's figures, refitted: {refit(links, samples_of(shards))}",
    ]
    return "\n\n".join(parts) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """The command; prints the report, and where everything lies as JSON on stderr."""
    parser = argparse.ArgumentParser(
        prog="python -m dreamshard.shard_profiling.publish", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument(
        "source", type=Path, help="what `dreamshard.shard_profiling.collect` wrote: a folder of parts, or one file"
    )
    parser.add_argument("--name", required=True, help="of the placer, e.g. h200; a word of the hardware's name")
    parser.add_argument("--links", help="accelerator whose links are used; default: the name")
    parser.add_argument("--package", type=Path, default=PACKAGED, help="folder of shipped placers")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    try:
        links = accelerator(given.links or given.name)
        found = ship(given.source, given.name, links, ShardTraining(seed=given.seed), given.package)
    except ValueError as error:
        parser.exit(1, f"{error}\n")
    sys.stdout.write(found.report)
    where = {"folder": str(found.folder), "shards": found.shards, "data_bytes": found.data_bytes}
    sys.stderr.write(json.dumps(where) + "\n")


if __name__ == "__main__":
    main()
