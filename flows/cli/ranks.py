"""`python -m flows.cli.ranks COMMAND`: a `dreamshard` command on ranks of many hosts; a launcher starts it on each of them.

Rank 0 runs the command; every process, rank 0's too, keeps one rank that measures for it. docs/many-hosts.md has examples.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from flows.cli import app, terminal

if TYPE_CHECKING:
    from dreamshard.testbeds.cluster.launcher_variables import LaunchedProcess


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one of the launcher's processes; exits as `dreamshard` does, and a process other than rank 0 as rank 0 did."""
    sys.excepthook = app.one_sentence
    options = _parser().parse_args(arguments)
    from dreamshard.testbeds.cluster.launched import KEY, keep, own_key
    from dreamshard.testbeds.cluster.launcher_variables import launched_process

    process = launched_process(os.environ)
    if process is None:
        raise ValueError(
            "no launcher started this process (RANK and WORLD_SIZE are not set), so there are no other ranks; use torchrun, "
            "srun or another one of docs/many-hosts.md, or plain `dreamshard` on one host"
        )
    key = own_key(os.environ.get(KEY))
    if process.rank > 0:
        sys.exit(0 if keep(process, options.join_timeout, key) else 1)
    _run(options.command, process, options.join_timeout, key, options.driver_port)


def _run(
    command: Sequence[str], process: "LaunchedProcess", join_timeout_s: float, key: bytes | None, port: int
) -> None:
    """Run the command in this process, which is rank 0."""
    from dreamshard.testbeds.cluster.launched import drive
    from dreamshard.testbeds.cluster.layout import describe_count
    from flows.runtime.launched_ranks import on_ranks

    with drive(process, join_timeout_s, key, port) as ranks:
        hosts = describe_count(len(ranks.layout.pattern), "host")
        terminal.note(f"{describe_count(len(ranks.layout.ranks), 'rank')} on {hosts} joined")
        try:
            with on_ranks(ranks):
                app.main(command)
        except SystemExit as end:
            if end.code:
                raise


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m flows.cli.ranks",
        description=(__doc__ or "").splitlines()[0],
        allow_abbrev=False,
    )
    parser.add_argument("--join-timeout", type=float, default=600.0, metavar="S", help="seconds to wait for all hosts")
    parser.add_argument(
        "--driver-port",
        type=int,
        default=0,
        metavar="PORT",
        help="port of rank 0 that ranks connect to; default: any free one",
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND", help="of dreamshard, with its options")
    return parser


if __name__ == "__main__":
    main()
