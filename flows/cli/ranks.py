"""`torchrun ... -m flows.cli.ranks COMMAND`: a `dreamshard` command on ranks of many hosts (docs/many-hosts.md).

Rank 0 runs the command; a rank of every process, rank 0's too, measures for it.
"""

from collections.abc import Sequence

from dreamshard.testbeds.ranks import launched_ranks, num_launched
from flows.cli import app, terminal
from flows.cli.command import command
from flows.runtime.launched_ranks import RANKS


@command
def main(words: Sequence[str] | None = None) -> None:
    """Run one of torchrun's processes; exits as `dreamshard` does, and a process other than rank 0 with 1 if rank 0 fails."""
    if num_launched() < 2:
        raise ValueError(
            "torchrun did not start several processes (WORLD_SIZE is not set), so there are no other ranks; start it as in "
            "docs/many-hosts.md, or plain `dreamshard` on one host"
        )
    with launched_ranks() as ranks:
        terminal.note(f"{len(ranks.layout.ranks)} ranks joined, {ranks.layout.devices_per_host} per host")
        try:
            RANKS.set(ranks)
            app.main(words)
        except SystemExit as end:
            if end.code:
                raise


if __name__ == "__main__":
    main()
