"""Collect costs of shards on one device: `python -m dreamshard.shard_profiling.collect --out FOLDER --seconds N`.

Needs torch, fbgemm, NumPy, PyArrow, tqdm and jaxtyping, but no Prefect, MLflow or DuckDB, so it runs on a GPU machine
without a network. Ends when the time is up or the collection is complete; the same options resume it. Started by torchrun
or another launcher (docs/many-hosts.md), each rank measures a share of the shards, and rank 0 writes them all.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tqdm import tqdm

from dreamshard.shard_profiling.collection import collect, default_device
from dreamshard.shard_profiling.design import ALONE_DIMS, CollectionConfig, small_collection
from dreamshard.testbeds.cluster.launched import KEY, LaunchedRanks, drive, keep, own_key
from dreamshard.testbeds.cluster.launcher_variables import launched_process

ON_A_GPU_MACHINE = """\
how to use half an hour of a GPU (torch 2.11, CUDA 13, Python 3.12, no network):
  before  install the wheels of fbgemm-gpu 1.6.0 (465 MB), pytest, pluggy, iniconfig, pygments and packaging if missing:
            pip install --no-index --no-deps --no-compile --target ~/site WHEELS; export PYTHONPATH=~/site:$PWD
   2 min  run the tests that need a GPU; measure only if they pass:
            python3 -m pytest -m cuda tests/dreamshard/testbeds/test_fused_op.py tests/dreamshard/testbeds/test_emulated.py \\
              tests/dreamshard/testbeds/cluster/test_testbed.py tests/dreamshard/shard_profiling/test_collection.py
   2 min  measure the first shards, and see how fused cost differs from the sum of single tables:
            python3 -m dreamshard.shard_profiling.collect --out costs --seconds 90
            python3 -m dreamshard.shard_profiling.report costs
  20 min  measure the rest; each shard is saved once it is measured, and each call resumes where the last one ended:
            python3 -m dreamshard.shard_profiling.collect --out costs --seconds 540
  after   on any machine: refit the roofline, learn a placer, add both and the data to the package:
            python -m dreamshard.shard_profiling.publish costs --name h200
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command; prints the result as JSON."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        _run(options)
    except ValueError as error:
        parser.exit(1, f"{error}\n")


def _run(options: argparse.Namespace) -> None:
    process = launched_process(os.environ)
    if process is None or process.num_ranks == 1:
        _collect(options, None)
        return
    key = own_key(os.environ.get(KEY))
    if process.rank > 0:
        sys.exit(0 if keep(process, options.join_timeout, key) else 1)
    with drive(process, options.join_timeout, key) as ranks:
        _collect(options, ranks)


def _collect(options: argparse.Namespace, ranks: LaunchedRanks | None) -> None:
    config = small_collection(CollectionConfig()) if options.small else CollectionConfig()
    given = {name: value for name, value in vars(options).items() if value is not None and hasattr(config, name)}
    if options.memory_gb is not None:
        given["memory_bytes"] = round(options.memory_gb * 2**30)
    if options.sources:
        given["sources"] = tuple(options.sources)
    if options.alone:
        given["alone_dims"] = ALONE_DIMS
    config = replace(config, **given)
    with tqdm(total=config.num_shards, unit="shard", disable=options.quiet) as bar:

        def progress(done: int, total: int, summary: str) -> None:
            bar.total = total
            bar.set_postfix_str(summary, refresh=False)
            bar.update(done - bar.n)

        result = collect(
            options.out,
            config,
            seconds=options.seconds,
            device_type=options.device or (ranks.layout.device_type() if ranks else default_device()),
            workers=options.workers,
            progress=progress,
            ranks=ranks,
        )
    sys.stdout.write(json.dumps(vars(result)) + "\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m dreamshard.shard_profiling.collect",
        description=(__doc__ or "").splitlines()[0],
        epilog=ON_A_GPU_MACHINE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the parts; resumes the collection it holds")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="time limit")
    parser.add_argument("--device", choices=["cpu", "cuda"], help="default: cuda if there is one")
    parser.add_argument("--small", action="store_true", help="small tables and batch, for a machine without a GPU")
    parser.add_argument(
        "--max-shards", dest="num_shards", metavar="N", type=int, help="size of the complete collection"
    )
    parser.add_argument("--sources", nargs="+", metavar="LIST", help="bundled lists whose tables are measured")
    parser.add_argument(
        "--alone",
        action="store_true",
        help=f"first measure every table alone, {ALONE_DIMS[0]} to {ALONE_DIMS[-1]} columns wide",
    )
    parser.add_argument("--max-tables", type=int, help="most tables in one shard")
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--memory-gb", type=float, help="largest shard, GiB")
    parser.add_argument("--precision", choices=["fp16", "fp32"])
    parser.add_argument("--optimizer", choices=["sgd", "rowwise_adagrad"])
    parser.add_argument("--repeats", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=4, help="threads that draw lookups")
    parser.add_argument("--join-timeout", type=float, default=600.0, metavar="S", help="seconds to wait for all hosts")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    return parser


if __name__ == "__main__":
    main()
